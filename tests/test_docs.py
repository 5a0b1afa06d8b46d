"""Every Python example of the documentation is executed."""

import re
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

ROOT = Path(__file__).parent.parent
PAGES = [
    path
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if "```python" in path.read_text(encoding="utf-8")
]

_FENCE = re.compile(r"^```(?P<kind>[\w{}-]*)[^\n]*\n(?P<text>.*?)^```\s*$", re.MULTILINE | re.DOTALL)
_UNRUN = "<!-- no-run -->"
_BY_PYTEST = "<!-- pytest -->"
"""Before a block that is a test file of its own, with fixtures: pytest runs it."""


@attrs.frozen
class Example:
    """One ```python block: its code, its first line in the page, and the output the page shows after it.

    Shown output is a ```text block joined to the code by the one word `prints`.
    """

    code: str
    line: int
    shown: str | None


def examples(page: str) -> Iterator[Example]:
    """Yield the blocks of *page* that are to be run, in order."""
    fences = list(_FENCE.finditer(page))
    for fence, following in zip(fences, [*fences[1:], None], strict=True):
        if fence["kind"] != "python" or page[: fence.start()].rstrip().endswith((_UNRUN, _BY_PYTEST)):
            continue
        prints = following is not None and following["kind"] == "text"
        between = page[fence.end() : following.start()].strip() if following is not None else ""
        shown = following["text"] if following is not None and prints and between == "prints" else None
        yield Example(fence["text"], page.count("\n", 0, fence.start()) + 2, shown)


def run_examples(path: Path, page: str, capsys: pytest.CaptureFixture[str]) -> int:
    """Run the blocks of one page in one namespace and return how many there were."""
    namespace: dict[str, object] = {"__name__": "__docs__"}
    count = 0
    for example in examples(page):
        capsys.readouterr()
        # Blank lines in front, so that a traceback points into the page.
        exec(compile("\n" * (example.line - 1) + example.code, str(path), "exec"), namespace)
        if example.shown is not None:
            assert capsys.readouterr().out == example.shown, f"{path.name}:{example.line} prints something else"
        count += 1
    return count


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_examples_of_a_page_run_and_print_what_it_shows(
    path: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of a page share a namespace; where the page shows the output, it is the output."""
    monkeypatch.chdir(tmp_path)
    run_examples(path, path.read_text(encoding="utf-8"), capsys)


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
    """The reader runs a page in one namespace, skips marked blocks, checks output and leaves other fences alone."""
    page = (
        "```python\nx = 1\n```\n\n<!-- no-run -->\n```python\n1 / 0\n```\n\n```bash\nfalse\n```\n\n"
        "```python\nprint(x + 1)\n```\nprints\n```text\n{}\n```\n"
    )
    assert run_examples(Path("page.md"), page.format(2), capsys) == 2
    with pytest.raises(AssertionError, match=r"page\.md:15"):
        run_examples(Path("page.md"), page.format(3), capsys)
