"""The pages can be read on a forge: their links lead somewhere, and the index lists every page."""

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "examples").rglob("*.md")])


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def _tokens(text: str) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(text)


def slug(heading: str) -> str:
    """Return the anchor that a forge makes of a heading's words."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors_of(text: str) -> set[str]:
    """Return the anchors that a forge gives to the headings of a page; a repeated heading gets a number."""
    seen: Counter[str] = Counter()
    found = set()
    tokens = _tokens(text)
    for opening, inline in pairwise(tokens):
        if opening.type == "heading_open":
            words = "".join(part.content for part in inline.children or () if part.type in ("text", "code_inline"))
            anchor = slug(words)
            found.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
            seen[anchor] += 1
    return found


def links_of(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the target and the text of each link and image of a page."""
    for token in _tokens(text):
        children = token.children or []
        for number, part in enumerate(children):
            line = (token.map or [0])[0] + 1
            if part.type == "image":
                yield line, str(part.attrs["src"]), part.content
            elif part.type == "link_open":
                closing = next(n for n in range(number, len(children)) if children[n].type == "link_close")
                yield line, str(part.attrs["href"]), "".join(inner.content for inner in children[number:closing])


def broken_links(path: Path, text: str) -> list[str]:
    """Return a line for each local link of the page that leads nowhere, or has no text."""
    wrong = []
    for line, href, words in links_of(text):
        url = urlsplit(href)
        if not words:
            wrong.append(f"{_name(path)}:{line}: the link to {href} has no text")
        if url.scheme:
            continue
        target = (path.parent / unquote(url.path)).resolve() if url.path else path
        if target != path and not target.exists():
            wrong.append(f"{_name(path)}:{line}: {href} doesn't exist")
        elif url.fragment and target.suffix == ".md":
            page = text if target == path else target.read_text(encoding="utf-8")
            if url.fragment not in anchors_of(page):
                wrong.append(f"{_name(path)}:{line}: no heading of {_name(target)} has the anchor {url.fragment}")
    return wrong


@pytest.mark.parametrize("path", PAGES, ids=_name)
def test_links_of_a_page_lead_somewhere(path: Path) -> None:
    """Each relative link names a file of the repository, and a heading of it; each link has a text."""
    assert broken_links(path, path.read_text(encoding="utf-8")) == []


def test_reader_of_links(tmp_path: Path) -> None:
    """The reader finds links in tables and lists, counts repeated headings, and leaves other sites alone."""
    text = (
        "# One `two`: three!\n\n## Same\n\n## Same\n\n* [a](#one-two-three) [b](#same-1) [c](https://example.com/x)\n\n"
        "| x |\n|---|\n| [d](no.md) |\n\n[](docs/index.md) ![e](#absent)\n"
    )
    assert broken_links(ROOT / "page.md", text) == [
        "page.md:11: no.md doesn't exist",
        "page.md:13: the link to docs/index.md has no text",
        "page.md:13: no heading of page.md has the anchor absent",
    ]


@pytest.mark.parametrize("path", PAGES, ids=_name)
def test_a_page_is_plain_markdown(path: Path) -> None:
    """A forge shows directives and roles of the site's own dialect as code, so no page has any."""
    directives = [token.info for token in _tokens(path.read_text(encoding="utf-8")) if token.info.startswith("{")]
    assert directives == []


FOLDERS = sorted({path.parent.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")})


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_index_lists_every_page(folder: str) -> None:
    """A new page needs a line of its own in `docs/index.md`, and in the index of its folder if that has one."""
    listed = {
        index: {(index.parent / href).resolve() for _, href, _ in links_of(index.read_text(encoding="utf-8"))}
        for index in {DOCS / "index.md", DOCS / folder / "index.md"}
        if index.exists()
    }
    pages = {path for path in (DOCS / folder).glob("*.md") if path != DOCS / "index.md"}
    assert pages, folder
    for index, found in listed.items():
        assert {_name(page) for page in pages - found - {index}} == set(), f"add a line for each to {_name(index)}"


@pytest.mark.parametrize("path", sorted(set(DOCS.rglob("*.md")) - {DOCS / "index.md"}), ids=_name)
def test_a_page_leads_back_to_the_index(path: Path) -> None:
    """A reader who comes from a search finds the other pages; a forge has no navigation beside the page."""
    targets = {(path.parent / href).resolve() for _, href, _ in links_of(path.read_text(encoding="utf-8"))}
    assert targets & {DOCS / "index.md", path.parent / "index.md"} - {path}, "add [All pages](../index.md)."


def test_every_task_has_a_row() -> None:
    """The table of `docs/index.md` leads to every how-to page and tutorial by what a reader wants to do."""
    table = (DOCS / "index.md").read_text(encoding="utf-8").partition("## I want to …")[2].partition("\n## ")[0]
    found = {DOCS / href.partition("#")[0] for _, href, _ in links_of(table)}
    wanted = {path for folder in ("how-to", "tutorial") for path in (DOCS / folder).glob("*.md")}
    assert {_name(page) for page in wanted - found} == {"docs/how-to/index.md"}
