"""Sphinx settings."""

import re
from importlib import metadata
from pathlib import Path

import agentloop.runtime
from agentloop.models.registry import Providers

# The signature of a Struct is made of its annotations, and this one is imported for type checkers alone.
agentloop.runtime.Providers = Providers

project = "agentloop"
author = "The agentloop authors"
release = metadata.version("agentloop")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["build"]
html_theme = "furo"
html_title = "agentloop"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4

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


_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
_LISTED = re.compile(r"^\* \[[^\]]+\]\(([\w/-]+)\.md\)", re.MULTILINE)


def lists_become_toctrees(app, docname, source):
    """Append hidden toctrees to an index page, one for each of its sections: the pages that the section lists.

    A forge shows the lists, the site builds its navigation from them, so each page is named once. A page that an index
    of its own folder lists is left to that index.
    """
    if Path(docname).name != "index":
        return
    captions_and_texts = ["", *_HEADING.split(source[0])]
    for caption, text in zip(captions_and_texts[::2], captions_and_texts[1::2], strict=True):
        pages = [page for page in _LISTED.findall(text) if page.endswith("index") or not _has_index(app, docname, page)]
        if pages:
            options = [":hidden:", *([f":caption: {caption}"] if caption else [])]
            source[0] += "\n".join(["", "```{toctree}", *options, "", *pages, "```", ""])


def _has_index(app, docname, page):
    folder = Path(app.srcdir, docname).parent / page
    return folder.parent != Path(app.srcdir, docname).parent and (folder.parent / "index.md").exists()


def setup(app):
    app.connect("source-read", lists_become_toctrees)
    # Before napoleon, which reads what is left as sections.
    app.connect("autodoc-process-docstring", labels_become_fields, priority=400)
