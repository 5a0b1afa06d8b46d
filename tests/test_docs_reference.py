"""The reference has every public name, and says what the docstrings and signatures say."""

import inspect
import pkgutil
import re
from importlib import import_module
from pathlib import Path

import pytest
from kit.docs_scripts import load_docs_script

import agentloop

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs" / "reference").glob("*.md"))

GENERATOR = load_docs_script("generate_reference")


def _entries() -> set[str]:
    pages = "\n".join(path.read_text(encoding="utf-8") for path in PAGES)
    return set(re.findall(r"^#{2,4} `([\w.]+)`$", pages, re.MULTILINE))


def test_every_public_name_is_in_the_reference() -> None:
    """Each name has an entry of its own, or is a module whose names have one."""
    assert set(agentloop.__all__) - _entries() == set()


MODULES = [
    *(one.name for one in pkgutil.iter_modules(agentloop.__path__) if not one.name.startswith("_")),
    "testing.conformance",
]


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_of_a_public_module_is_in_the_reference(module: str) -> None:
    """Each name that the module lists has an entry; a module without a list has names of `agentloop` itself."""
    if module == "temporal":
        pytest.importorskip("temporalio")
    assert set(getattr(import_module(f"agentloop.{module}"), "__all__", ())) - _entries() == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_head_of_a_page_names_what_is_there(page: Path) -> None:
    """A class that has gone leaves its entry, and what people have written above the entries names it no longer."""
    head = page.read_text(encoding="utf-8").partition("\n## ")[0]
    named = set(re.findall(r"`([A-Z][A-Za-z]+[a-z])`", head)) - {"Error"}  # how names of errors end
    assert named - {*agentloop.__all__} - _entries() == set()


MADE_BY_THE_LIBRARY = {
    *(
        "BatchedRun",
        "BlockedOutputArgs",
        "CallOutcome",
        "ErrorHandlerData",
        "HandoffInputData",
        "Handoff",
        "InputGuardrailResult",
    ),
    *("OutputGuardrailResult", "PendingCall", "RetryAdvice", "RetryContext", "RunBatch", "RunData", "RunOpening"),
    *("RunOutcome", "RunStream", "Runtime", "Span", "ToolErrorArgs", "ToolGuardrailResult", "ToolInputData"),
    *("ToolOutputData", "ToolResult", "Trace", "Usage"),
}
"""Classes whose objects an application is given: the example is where it gets them."""
WITHOUT_EXAMPLE = {
    *("RunOptions", "ResumeOptions", "ToolOptions", "default_tool_error_function"),
    *("Codec", "Computer", "Editor", "Journal", "LeasedJournal", "ReplaceableSession"),
    *("SealingJournal", "Session", "Shell", "Storage"),
}
"""Options, and protocols that have an implementation here, which has the example."""


@pytest.mark.parametrize("module", ["agentloop", "agentloop.guardrails", "agentloop.journal", "agentloop.sessions"])
def test_what_people_call_has_an_example(module: str) -> None:
    """In its docstring or that of a method; the pages of the reference show it, and it is run there."""
    listed = import_module(module)
    public = {name: getattr(listed, name) for name in listed.__all__}
    called = {
        name: value
        for name, value in public.items()
        if callable(value) and not (isinstance(value, type) and issubclass(value, BaseException))
    }
    texts = {
        name: [inspect.getdoc(value) or "", *(inspect.getdoc(member) or "" for member in vars(value).values())]
        for name, value in called.items()
    }
    missing = {name for name, found in texts.items() if not any("Example:\n" in text for text in found)}
    assert missing - MADE_BY_THE_LIBRARY - WITHOUT_EXAMPLE == set()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_entry_has_a_text(path: Path) -> None:
    """A name without a docstring has an entry that says nothing."""
    _, *parts = re.split(r"^#+ `([\w.]+)`$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    texts = [re.split(r"^(?:#|<!--)", part, flags=re.MULTILINE)[0] for part in parts[1::2]]
    shown = [re.sub(r"^```py\n.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE).strip() for text in texts]
    assert [name for name, text in zip(parts[::2], shown, strict=True) if not text] == []


def _classes_within() -> set[str]:
    """Return the names of the classes in the packages that only the library itself uses: engine, core, codecs."""
    found = set()
    for package in ("_core", "_engine", "_storage", "_schema"):
        start = import_module(f"agentloop.{package}")
        for one in pkgutil.walk_packages(start.__path__, f"{start.__name__}."):
            module = import_module(one.name)
            found |= {name for name, value in vars(module).items() if getattr(value, "__module__", "") == one.name}
    return {name for name in found if name[0].isupper() and not re.search(r"T(_co|_contra)?$", name)}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_reference_shows_no_internals(path: Path) -> None:
    """No text names a private module or attribute, and no signature a class that can only be imported from one."""
    page = re.sub(r"<!-- reference: .*?-->", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert re.findall(r"agentloop\.(?:\w+\.)*_\w+", page) == []
    spans = "\n".join(re.findall(r"(?<!`)`([^`\n]+)`(?!`)", page))
    assert re.findall(r"(?<![\w\"'])_[a-z]\w*", spans) == []
    signatures = "\n".join(re.findall(r"^```py\n(.*?)^```$", page, re.DOTALL | re.MULTILINE))
    signatures = re.sub(r"'[^']*'|\"[^\"]*\"", "", signatures)
    assert re.findall(r"(?<![\w.])_[a-z]\w*", signatures) == []
    shown = {name.rpartition(".")[2] for name in _entries()}
    assert set(re.findall(r"\b[A-Z]\w+", signatures)) & _classes_within() - shown == set()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_page_of_the_reference_is_up_to_date(path: Path) -> None:
    """The page has the text that its names' docstrings and signatures give."""
    page = path.read_text(encoding="utf-8")
    if "<!-- reference: agentloop.temporal" in page:
        pytest.importorskip("temporalio")
    assert GENERATOR.generate([path.name])[path] == page, "run python docs/generate_reference.py"


def test_docstrings_become_markdown() -> None:
    """Sections become lists, labels bold words; names on several lines and continuations are joined."""
    docstring = """Do it.

    More of it: a colon is no label.

    Args:
        one: First
            and more.
        two,
        three: Others.

    Units: seconds
        each.
    Raises:
        UserError: if not.
    """
    assert GENERATOR.markdown(docstring).split("\n") == [
        *("Do it.", "", "More of it: a colon is no label.", "", "**Arguments:**", ""),
        *("* `one`: First", "  and more.", "* `two`, `three`: Others.", ""),
        *("**Units:** seconds", "each.", "", "**Raises:**", "", "* `UserError`: if not."),
    ]


def test_names_in_the_text_become_links() -> None:
    """A span that is one entry's name links to it; words in lower case and an entry's own name don't."""
    head = "<!-- reference: agentloop\nOne\n-->\n"
    text = f"{head}\n## `One`\n\n`One` `Two` `two` `Two.go` `One.two`\n\n```py\n`Two`\n```\n<!-- end -->"
    other = f"{head}\n## `Two`\n\n### `Two.go`\n\n## `two`\n<!-- end -->"
    found = GENERATOR.linked({"a.md": text, "b.md": other})
    assert "`One` [`Two`](b.md#two) `two` [`Two.go`](b.md#twogo) `One.two`\n" in found["a.md"]
    assert "\n`Two`\n" in found["a.md"]


def test_parameters_are_shown_as_their_source_has_them() -> None:
    """Markers of positional and keyword parameters are kept; a default made by a call is an ellipsis."""

    def function(self: int, one: "A | None", /, two: str = "x", *, three: object = object(), **rest: int) -> "B": ...  # noqa: F821

    shown = GENERATOR.function_text("go", function, method=True)
    assert shown == "go(one: A | None, /, two: str = 'x', *, three: object = ..., **rest: int) -> B"
