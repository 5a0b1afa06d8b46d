"""Sphinx settings."""

import re
from importlib import metadata

import agentloop.runtime
from agentloop.models.registry import Providers

# The signature of a Struct is made of its annotations, and this one is imported for type checkers alone.
agentloop.runtime.Providers = Providers

project = "agentloop"
author = "The agentloop authors"
release = metadata.version("agentloop")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["build", "mutants.md"]
html_theme = "furo"
html_title = "agentloop"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
# Imported for type checkers alone. A class with one name that can't be read has all its annotations left as text, and
# `CallSettled` is the name of an event and of a record.
autodoc_type_aliases = {"RunState": "agentloop.RunState"}
napoleon_google_docstring = True
napoleon_numpy_docstring = False

_LABEL = re.compile(r"^(?!(?:Args|Raises|Returns|Yields|Example):)([A-Z][A-Za-z ]{2,20}(?: \([a-z ]+\))?): (?=\S)")
_NAMES = re.compile(r"^ +(?:\w+, )*\w+,$")
_SPAN = re.compile(r"(?<![`:\w])`([^`]+)`(?![`_])(?=(\w?))")


def _span(match):
    # reST wants a separator where letters follow a literal.
    return f"``{match[1]}``" + ("\\ " if match[2] else "")


def labels_become_fields(_app, _what, _name, _obj, _options, lines):
    """Turn `Units: seconds` and its indented continuation into a field, and Markdown's code spans into reST's.

    Several arguments explained at once may take more than one line to be named; napoleon wants one.
    """
    for number in reversed(range(len(lines) - 1)):
        if _NAMES.match(lines[number]):
            lines[number] += " " + lines.pop(number + 1).lstrip()
    for number, line in enumerate(lines):
        following = lines[number + 1] if number + 1 < len(lines) else ""
        starts_block = number == 0 or not lines[number - 1].strip() or lines[number - 1].startswith((":", " "))
        if number and (starts_block or following.startswith(" ")):
            line = _LABEL.sub(r":\1: ", line)
        lines[number] = _SPAN.sub(_span, line)


def setup(app):
    # Before napoleon, which reads what is left as sections.
    app.connect("autodoc-process-docstring", labels_become_fields, priority=400)
