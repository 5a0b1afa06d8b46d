"""Sphinx settings. The pages are plain Markdown, which a forge shows as well."""

import re
from pathlib import Path

import agentloop

project = "agentloop"
author = "The agentloop authors"
release = agentloop.__version__

extensions = ["myst_parser", "sphinx_copybutton"]
html_theme = "furo"
html_title = "agentloop"

myst_heading_anchors = 4

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
