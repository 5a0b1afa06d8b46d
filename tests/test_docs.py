"""Every Python example of the documentation is executed, as a reader would who copies it.

A block runs alone, in a fresh namespace, unless the line above it says what it follows:

    Continues the example above.
    Continues the example under [Heading](#heading).     (or: the examples)

Then it runs after the nearest block above, or after the last block under that heading, which may follow others itself.
A block marked `<!-- no-run -->` needs more than a test has; a sentence above it ("Needs …") says what.
"""

import builtins
import dis
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import attrs
import pytest
from test_docs_links import slug

ROOT = Path(__file__).parent.parent
PAGES = [
    path
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if "```python" in path.read_text(encoding="utf-8")
]

_FENCE = re.compile(r"^```(?P<kind>[\w{}-]*)[^\n]*\n(?P<text>.*?)^```\s*$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_CONTINUES = re.compile(r"^Continues the (?:example above|examples? under \[[^\]]+\]\(#(?P<anchor>[\w-]+)\))\.$")
_PRINTED = re.compile(r"\bprint\(.*\)  # (.*)$", re.MULTILINE)
"""In an example of a docstring, the comment behind a call of `print` is what that call prints."""
_UNRUN = "<!-- no-run -->"
_BY_PYTEST = "<!-- pytest -->"
"""Before a block that is a test file of its own, with fixtures: pytest runs it."""


@attrs.frozen
class Example:
    """One ```python block: its code, its first line in the page, and the output the page shows after it.

    Shown output is a ```text block joined to the code by the one word `prints`. `follows` is the number of the block
    that runs before it, None for a block that runs alone.
    """

    code: str
    line: int
    shown: str | None
    follows: int | None = None


def examples(page: str) -> list[Example]:
    """Return the blocks of *page* that are to be run, in order."""
    fences = list(_FENCE.finditer(page))
    found: list[Example] = []
    ends: list[int] = []
    for fence, following in zip(fences, [*fences[1:], None], strict=True):
        before = page[: fence.start()].rstrip()
        if fence["kind"] != "python" or before.endswith((_UNRUN, _BY_PYTEST)):
            continue
        prints = following is not None and following["kind"] == "text"
        between = page[fence.end() : following.start()].strip() if following is not None else ""
        shown = following["text"] if following is not None and prints and between == "prints" else None
        line = page.count("\n", 0, fence.start()) + 2
        found.append(Example(fence["text"], line, shown, _followed(page, before, ends)))
        ends.append(fence.end())
    return found


def _followed(page: str, before: str, ends: list[int]) -> int | None:
    """Return the number of the block that the last line of *before* names; *ends* are those of the blocks so far."""
    sentence = _CONTINUES.match(before.rpartition("\n")[2])
    if sentence is None:
        return None
    if sentence["anchor"] is None:
        assert ends, "the first block of a page continues none"
        return len(ends) - 1
    code = [fence.span() for fence in _FENCE.finditer(page)]
    headings = [
        heading for heading in _HEADING.finditer(page) if not any(start < heading.start() < end for start, end in code)
    ]
    for heading, following in zip(headings, [*headings[1:], None], strict=True):
        if slug(heading[1]) == sentence["anchor"]:
            end = following.start() if following is not None else len(page)
            under = [number for number, place in enumerate(ends) if heading.end() < place <= end]
            assert under, f"no block above stands under {heading[1]!r}"
            return under[-1]
    raise AssertionError(f"the page has no heading #{sentence['anchor']}")


def chains(found: list[Example]) -> Iterator[list[Example]]:
    """Yield what a reader copies: each block that no other follows, after all the blocks that it needs."""
    for number in sorted(set(range(len(found))) - {example.follows for example in found}):
        chain = [found[number]]
        while (follows := chain[0].follows) is not None:
            chain.insert(0, found[follows])
        yield chain


def _globals_of(code: CodeType) -> set[str]:
    """Return the global names that the functions of *code* use: a block that doesn't call them runs without."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    used = {step.argval for one in inner for step in dis.get_instructions(one) if step.opname == "LOAD_GLOBAL"}
    return used.union(*map(_globals_of, inner))


def run_chain(path: Path, chain: list[Example], capsys: pytest.CaptureFixture[str]) -> None:
    """Run blocks one after the other in a namespace of their own; their output is the one that the page shows."""
    namespace: dict[str, object] = {"__name__": "__docs__"}
    for example in chain:
        capsys.readouterr()
        where = f"{path.name}:{example.line}"
        # Blank lines in front, so that a traceback points into the page.
        code = compile("\n" * (example.line - 1) + example.code, str(path), "exec")
        try:
            exec(code, namespace)
        except NameError as error:
            error.add_note(f"{where} doesn't run alone: complete it, or say which example it continues")
            raise
        unknown = sorted(_globals_of(code) - set(namespace) - set(dir(builtins)))
        assert not unknown, f"{where} doesn't run alone: {', '.join(unknown)} is used and not defined"
        if path.parent.name == "reference" and (wanted := _PRINTED.findall(example.code)):
            assert capsys.readouterr().out.splitlines() == wanted, f"{where} prints something else"
        if example.shown is not None:
            assert capsys.readouterr().out == example.shown, f"{where} prints something else"


def run_examples(path: Path, page: str, capsys: pytest.CaptureFixture[str]) -> int:
    """Run all blocks of one page and return how many there are."""
    found = examples(page)
    for chain in chains(found):
        run_chain(path, chain, capsys)
    return len(found)


@pytest.fixture
def _logging_as_before() -> Iterator[None]:
    """Take back what a page does to the library's loggers: other tests read their lines."""
    loggers = [logging.getLogger(name) for name in ("agentloop", "agentloop.tools", "agentloop.mcp")]
    before = [(one.level, one.propagate, list(one.handlers)) for one in loggers]
    yield
    for one, (level, propagate, handlers) in zip(loggers, before, strict=True):
        one.setLevel(level)
        one.propagate = propagate
        for handler in [each for each in one.handlers if each not in handlers]:
            one.removeHandler(handler)
            handler.close()


@pytest.mark.usefixtures("_logging_as_before")
@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_examples_of_a_page_run_and_print_what_it_shows(
    path: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block runs alone or after those that the page says it follows; where the page shows the output, it is that."""
    for number, chain in enumerate(chains(examples(path.read_text(encoding="utf-8")))):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        run_chain(path, chain, capsys)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_block_that_is_not_run_says_what_it_needs(path: Path) -> None:
    """A reader who copies it finds the condition right above: a key, an extra, a server."""
    page = path.read_text(encoding="utf-8")
    for above in page.split(_UNRUN)[:-1]:
        paragraph = above.rstrip().rpartition("\n\n")[2]
        assert re.search(r"\bNeeds\b[^.]*", paragraph), f"{path.name}:{above.count(chr(10)) + 1}"


def _test_files() -> Iterator[tuple[str, str]]:
    """Yield the pages' blocks that pytest runs, each with the name of its page."""
    for path in PAGES:
        page = path.read_text(encoding="utf-8")
        for fence in _FENCE.finditer(page):
            if page[: fence.start()].rstrip().endswith(_BY_PYTEST):
                yield path.stem, fence["text"]


def test_blocks_that_are_test_files_pass_alone(pytester: pytest.Pytester) -> None:
    """Each block runs as a reader would copy it, without the page's other blocks."""
    blocks = list(_test_files())
    assert any("no_orphans" in text for _, text in blocks)
    for number, (name, text) in enumerate(blocks):
        pytester.makepyfile(**{f"test_{name}_{number}": text})
    plugin = "agentloop.testing.plugin"
    loaded = any(getattr(one, "__name__", "") == plugin for one in pytester._request.config.pluginmanager.get_plugins())
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", *([] if loaded else ["-p", plugin]))
    result.assert_outcomes(passed=len(blocks))


def test_the_readme_and_the_tutorial_have_examples() -> None:
    """The newcomer's pages aren't prose alone; the test also guards the reader of fences."""
    for path in (ROOT / "README.md", ROOT / "docs" / "tutorial" / "first-run.md"):
        assert list(examples(path.read_text(encoding="utf-8"))), path


def test_reader_of_examples(capsys: pytest.CaptureFixture[str]) -> None:
    """The reader joins blocks as the page says, skips marked ones, checks output and leaves other fences alone."""
    page = (
        "```python\nx = 1\n```\n\n<!-- no-run -->\n```python\n1 / 0\n```\n\n```bash\nfalse\n```\n\n"
        "Continues the example above.\n\n```python\nprint(x + 1)\n```\nprints\n```text\n{}\n```\n"
    )
    assert run_examples(Path("page.md"), page.format(2), capsys) == 2
    with pytest.raises(AssertionError, match=r"page\.md:17"):
        run_examples(Path("page.md"), page.format(3), capsys)


def test_a_block_follows_those_that_its_page_names(capsys: pytest.CaptureFixture[str]) -> None:
    """A block alone shares nothing; one that names a heading follows the last block under it, and what that follows."""
    page = (
        "## A `b`\n\n```python\nx = 1\n```\nContinues the example above.\n```python\n# Not a heading\nx += 1\n```\n\n"
        "## C\n\n```python\ny = 1\n```\n\n## D\n\n{}\n```python\nprint(x)\n```\n"
    )
    named = page.format("Continues the example under [A](#a-b).")
    assert [example.follows for example in examples(named)] == [None, 0, None, 1]
    assert run_examples(Path("page.md"), named, capsys) == 4
    assert capsys.readouterr().out == "2\n"
    with pytest.raises(NameError) as caught:
        run_examples(Path("page.md"), page.format("Some text."), capsys)
    assert caught.value.__notes__ == ["page.md:22 doesn't run alone: complete it, or say which example it continues"]
    with pytest.raises(AssertionError, match=r"page\.md:2 doesn't run alone: x is used and not defined"):
        run_examples(Path("page.md"), "```python\ndef read():\n    return x\n```\n", capsys)
    for wrong in ("Continues the example under [E](#e).", "Continues the example under [D](#d)."):
        with pytest.raises(AssertionError):
            examples(page.format(wrong))
