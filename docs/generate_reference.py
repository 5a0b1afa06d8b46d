"""Write the pages of the reference from docstrings and signatures: `python docs/generate_reference.py`.

A page in `docs/reference` is Markdown with lists of names in comments. This script writes the text between a list and
the next `<!-- end -->`; the rest of the page is written by hand. A list is

    <!-- reference: agentloop.journal
    FileJournal
    Lease: held, check
    CrashRun()
    -->

that is, a module and its names. A class has entries for its documented members, or for those after the colon (`-` for
none). A name with `()` is shown without its parameters. `*` means every name of the module's `__all__`, and `*: Model`
all but this one; the module's own docstring comes first then. A list of `-` has that docstring alone.

`--check` writes nothing, names the pages that are out of date, and fails if there are any.

Decisions:

The pages are read in two places: on a forge, which shows Markdown and nothing else, and on a site made by Sphinx. So
the pages are plain Markdown, and the site takes what it needs from them: the navigation is made of the lists in the
index pages.

The reference is Markdown too, written by `docs/generate_reference.py` from signatures and docstrings, and committed;
a test fails when a page is out of date. Rejected: autodoc beside it, hidden from the forge. Two texts of one
docstring, in reStructuredText and in Markdown, differ sooner or later, and what a forge shows would be checked by no
one. Also rejected: a library that reads the sources (griffe). It reads plain classes well, but the fields of
msgspec's Structs, attrs' factories and the sections of these docstrings need code of our own all the same; `inspect`
gives the signatures. What is lost is the inventory by which other sites link to Python objects.

An example is read only, by a reader who comes from a search. So each block of a page runs in a fresh namespace, or
the line above it names the block that it follows; the tests run it so. Rejected: one namespace for a page, which is
shorter and hides what a block needs; and all imports in each block, which repeats a tool of twenty lines to show one.

Links are checked by a test against files and headings, without the network. Links to other sites aren't: a check that
fails when another site is down says nothing about a change.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache, partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, ForwardRef, is_typeddict

import attrs
import msgspec

FOLDER = Path(__file__).parent / "reference"
WIDTH = 100
"""Columns of a signature; a longer one has a line for each parameter."""
LONGEST = 40
"""Lines of the definition of a type or a constant; of a longer one the name is shown."""

_LIST = re.compile(
    r"(?P<list><!-- reference: (?P<module>[\w.]+)\n(?P<names>.*?)-->\n)(?P<text>.*?)(?P<end><!-- end -->)", re.DOTALL
)
_SECTION = re.compile(r"^([A-Z][a-z]+(?: \([a-z ]+\))?):$")
_LABEL = re.compile(r"^(Attributes|Cancellation|Concurrency|Invariants|Returns|Shapes|Units): (?=\S)")
_SPAN = re.compile(r"(?<!\[)`([A-Za-z_][\w.]*)`")
_ENTRIES = ("Args", "Attributes", "Raises", "Raises (all methods)", "Modes")
_TITLES = {"Args": "Arguments"}
_EXAMPLE = "Example"
"""The section of a docstring whose lines are code. The tests run it, as they run every example of a page."""


@attrs.frozen
class Entry:
    """A name of a list: the object, where it is from, and the members that get entries of their own."""

    module: ModuleType
    name: str
    value: Any
    bare: bool = False
    members: tuple[str, ...] | None = None

    @property
    def title(self) -> str:
        return self.name.rpartition(".")[2]


# ------------------------------------------------------------------------------------------------ names


def entries_of(module: ModuleType, names: str) -> Iterator[Entry]:
    """Yield the entries that a list of *names* of *module* asks for, in order."""
    for line in names.split("\n"):
        name, _, given = (part.strip() for part in line.partition(":"))
        members = None if not given else tuple(one.strip() for one in given.split(",") if one.strip() != "-")
        if name == "*":
            yield from (
                Entry(module, one, getattr(module, one)) for one in _all_names(module) if one not in (members or ())
            )
        elif name and name != "-":
            plain = name.removesuffix("()")
            yield Entry(module, plain, getattr(module, plain), bare=name.endswith("()"), members=members)


def _all_names(module: ModuleType) -> list[str]:
    """Return the names of `__all__` in the order of the source; or of the list if some are defined elsewhere."""
    order = list(_assigned(module))
    return sorted(module.__all__, key=order.index) if set(module.__all__) <= set(order) else list(module.__all__)


@cache
def _tree(module: ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(module))


def _assigned(module: ModuleType) -> Mapping[str, ast.stmt]:
    """Return the statements of *module* that define names, by name."""
    found: dict[str, ast.stmt] = {}
    for node in _tree(module).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.setdefault(node.name, node)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.setdefault(node.target.id, node)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found.setdefault(node.targets[0].id, node)
    return found


def _field_docs(statements: list[ast.stmt]) -> dict[str, str]:
    """Return the docstrings below assignments, by the names that are assigned."""
    found = {}
    for node, following in pairwise(statements):
        target = (
            node.target
            if isinstance(node, ast.AnnAssign)
            else node.targets[0]
            if isinstance(node, ast.Assign)
            else None
        )
        if (
            isinstance(target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
        ):
            found[target.id] = inspect.cleandoc(str(following.value.value))
    return found


# ------------------------------------------------------------------------------------------------ signatures


def _annotation(given: Any) -> str:
    """Return an annotation as its source has it."""
    if isinstance(given, ForwardRef):
        return given.__forward_arg__
    if given is None or given is type(None):
        return "None"
    return given if isinstance(given, str) else inspect.formatannotation(given)


def _default(value: Any) -> str:
    """Return a default as its source has it, `...` for one that a call makes or that has no such text."""
    if inspect.isroutine(value) or inspect.isclass(value):
        return value.__name__
    text = "..." if value is ... or value is attrs.NOTHING else repr(value)
    return "..." if text.startswith("<") else text


def _written_annotations(owner: type) -> dict[str, Any]:
    """Return the annotations of a class and its bases as they are written."""
    found: dict[str, Any] = {}
    for base in reversed(owner.__mro__):
        found |= inspect.get_annotations(base)
    return found


def _signature(value: Any) -> inspect.Signature | None:
    if isinstance(value, type) and issubclass(value, msgspec.Struct):
        return _struct_signature(value)
    try:
        return inspect.signature(value)
    except (TypeError, ValueError):
        return None


def _struct_signature(struct: type[msgspec.Struct]) -> inspect.Signature:
    """Return the signature of a Struct with its annotations as they are written; `inspect` evaluates them."""
    written = _written_annotations(struct)
    fields = struct.__struct_fields__
    defaults = [*[msgspec.NODEFAULT] * (len(fields) - len(struct.__struct_defaults__)), *struct.__struct_defaults__]
    parameters = []
    for name, default in zip(fields, defaults, strict=True):
        kind = "POSITIONAL_OR_KEYWORD" if name in struct.__match_args__ else "KEYWORD_ONLY"
        given = inspect.Parameter.empty if default is msgspec.NODEFAULT else default
        parameters.append(
            inspect.Parameter(name, getattr(inspect.Parameter, kind), default=given, annotation=written[name])
        )
    return inspect.Signature(parameters)


def _parameters(signature: inspect.Signature, *, method: bool) -> list[str]:
    """Return the parameters as texts, with `/` and `*` among them, without `self`, `cls` and private ones."""
    texts: list[str] = []
    seen_star = False
    positional = False
    for number, (name, one) in enumerate(signature.parameters.items()):
        if (method and number == 0 and name in ("self", "cls")) or name.startswith("_"):
            continue
        if positional and one.kind is not one.POSITIONAL_ONLY:
            texts.append("/")
            positional = False
        positional = one.kind is one.POSITIONAL_ONLY
        if one.kind is one.KEYWORD_ONLY and not seen_star:
            texts.append("*")
            seen_star = True
        stars = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        seen_star = seen_star or stars == "*"
        text = stars + name
        if one.annotation is not one.empty:
            text += f": {_annotation(one.annotation)}"
        if one.default is not one.empty:
            text += (" = " if one.annotation is not one.empty else "=") + _default(one.default)
        texts.append(text)
    return [*texts, "/"] if positional else texts


def _shown(before: str, parameters: list[str], after: str = "") -> str:
    line = f"{before}({', '.join(parameters)}){after}"
    if len(line) <= WIDTH or not parameters:
        return line
    return f"{before}(\n" + "".join(f"    {one},\n" for one in parameters) + f"){after}"


def function_text(name: str, function: Any, *, bare: bool = False, method: bool = False) -> str:
    """Return the first lines of a function: its name, parameters and result. A context manager says that it is one."""
    signature = None if bare else _signature(function)
    inner = inspect.unwrap(function)
    asynchronous = "async " if inspect.iscoroutinefunction(inner) else ""
    if signature is None:
        return asynchronous + name
    result = "" if signature.return_annotation is signature.empty else _annotation(signature.return_annotation)
    if inner is not function and (inspect.isasyncgenfunction(inner) or inspect.isgeneratorfunction(inner)):
        result = re.sub(r"^(Async)?(?:Iterator|Generator)\[", lambda found: f"{found[1] or ''}ContextManager[", result)
    return _shown(asynchronous + name, _parameters(signature, method=method), f" -> {result}" if result else "")


def class_text(name: str, value: type, *, bare: bool = False) -> str:
    """Return the first lines of a class: what makes an instance of it, or its fields if it is a `TypedDict`."""
    if is_typeddict(value):
        fields = "".join(f"\n    {key}: {_annotation(given)}" for key, given in value.__annotations__.items())
        return f"class {name}(TypedDict):{fields}"
    if getattr(value, "_is_protocol", False):
        return f"class {name}(Protocol)"
    # Without an `__init__` of its own, the signature of an exception says nothing.
    inherited = issubclass(value, BaseException) and not inspect.isfunction(value.__init__)
    signature = None if bare or inherited else _signature(value)
    if signature is None:
        return f"class {name}"
    return _shown(f"class {name}", _parameters(signature, method=False))


# ------------------------------------------------------------------------------------------------ docstrings


def _blocks(lines: list[str]) -> Iterator[list[str]]:
    """Yield the paragraphs, labels and sections of a docstring, each as its lines."""
    block: list[str] = []
    for number, line in enumerate(lines):
        following = lines[number + 1] if number + 1 < len(lines) else ""
        deeper = line.startswith(" ")
        after_indent = bool(block) and block[-1].startswith(" ")
        if not line and following.startswith(" ") and block[:1] == [f"{_EXAMPLE}:"]:
            block.append(line)  # code may have blank lines
            continue
        labelled = bool(_LABEL.match(line)) and number > 0 and (not block or after_indent or following.startswith(" "))
        if block and not deeper and (not line or _SECTION.match(line) or labelled or after_indent):
            yield block
            block = []
        if line or block:
            block.append(line)
    if block:
        yield block


def _definitions(lines: list[str]) -> str:
    """Return `name: text` and its deeper continuation lines as a list; the names may take several lines."""
    items: list[str] = []
    names = ""
    for line in textwrap.dedent("\n".join(lines)).split("\n"):
        if not line.strip():
            continue
        if line.startswith(" ") and not names:
            items[-1] += f"\n  {line.strip()}"
        elif line.endswith(",") and ":" not in line:
            names += line + " "
        else:
            name, _, text = (names + line.strip()).partition(":")
            names = ""
            items.append(f"* {', '.join(f'`{one.strip()}`' for one in name.split(','))}:{text}")
    return "\n".join(items)


def markdown(docstring: str) -> str:
    """Return a docstring as Markdown: its sections become lists, and `Units: …` a paragraph with a bold word."""
    parts = []
    lines = inspect.cleandoc(docstring).split("\n")
    for block in _blocks(lines):
        first, *rest = block
        section = _SECTION.match(first)
        label = _LABEL.match(first) if block is not None and first is not lines[0] else None
        if section and rest:
            name = section[1]
            if name == _EXAMPLE:
                parts.append("**Example:**\n\n```python\n" + textwrap.dedent("\n".join(rest)) + "\n```")
                continue
            text = _definitions(rest) if name in _ENTRIES else textwrap.dedent("\n".join(rest))
            parts.append(f"**{_TITLES.get(name, name)}:**\n\n{text}" if name in _ENTRIES else f"**{name}:** {text}")
        elif label:
            parts.append("\n".join([_LABEL.sub(r"**\1:** ", first), *(line.strip() for line in rest)]))
        else:
            parts.append("\n".join(block))
    return "\n\n".join(part.rstrip() for part in parts)


# ------------------------------------------------------------------------------------------------ entries


def _documented(value: Any) -> str:
    return inspect.getdoc(value) or ""


def _members(entry: Entry) -> Iterator[tuple[str, Any, str]]:
    """Yield the name, the object and the docstring of each member that gets an entry, in the order of the source.

    Members of private bases count as the class's own. A field has an entry if a docstring stands below it.
    """
    if entry.members == ():
        return
    for base in reversed(entry.value.__mro__):
        if base is not entry.value and not base.__name__.startswith("_"):
            continue
        if not base.__module__.startswith("agentloop"):
            continue
        body = _class_body(base)
        fields = _field_docs(body)
        for name in dict.fromkeys([*(_defined(body)), *(entry.members or ())]):
            wanted = name in entry.members if entry.members is not None else not name.startswith("_")
            value = base.__dict__.get(name)
            doc = fields.get(name) or (getattr(value, "__doc__", None) if _is_member(value) else None)
            if wanted and doc:
                yield name, value, doc


def _is_member(value: Any) -> bool:
    return inspect.isfunction(value) or isinstance(value, property | classmethod | staticmethod)


def _class_body(owner: type) -> list[ast.stmt]:
    module = sys.modules[owner.__module__]
    node = next(
        (one for one in ast.walk(_tree(module)) if isinstance(one, ast.ClassDef) and one.name == owner.__name__), None
    )
    return node.body if node is not None else []


def _defined(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id


def _member_text(owner: type, name: str, value: Any) -> str:
    full = f"{owner.__name__}.{name}"
    if isinstance(value, classmethod | staticmethod):
        return function_text(full, value.__func__, method=isinstance(value, classmethod))
    if inspect.isfunction(value):
        return function_text(full, value, method=True)
    if isinstance(value, property) and value.fget is not None:
        result = inspect.signature(value.fget).return_annotation
        return f"{full}: {_annotation(result)}" if result is not inspect.Signature.empty else full
    given = _written_annotations(owner).get(name)
    return f"{full}: {_annotation(given)}" if given is not None else full


def _fenced(text: str) -> str:
    return f"```py\n{text}\n```"


def _bases(value: type) -> str:
    shown = [base.__name__ for base in value.__bases__ if issubclass(base, BaseException)]
    return f"Subclass of {', '.join(f'`{name}`' for name in shown)}." if shown and issubclass(value, Exception) else ""


def _data_text(entry: Entry) -> tuple[str, str]:
    """Return the definition and the docstring of a type or a constant, from the module that assigns it."""
    for module in [entry.module, *_imported_from(entry)]:
        node = _assigned(module).get(entry.title)
        if node is not None:
            source = ast.get_source_segment(inspect.getsource(module), node) or ""
            short = source if source.count("\n") < LONGEST else source.split("\n", 1)[0].partition("=")[0].rstrip()
            return re.sub(r"^(\w+): TypeAlias\b", r"\1", short), _field_docs(_tree(module).body).get(entry.title, "")
    raise LookupError(f"{entry.module.__name__}.{entry.name} is assigned in no module that is known here")


def _imported_from(entry: Entry) -> Iterator[ModuleType]:
    package = entry.module.__name__
    for node in ast.walk(_tree(entry.module)):
        if isinstance(node, ast.ImportFrom) and any(one.name == entry.title for one in node.names):
            yield import_module(node.module or package)
    for name, module in list(sys.modules.items()):
        if name.startswith(package + "."):
            yield module


def entry_text(entry: Entry, level: int) -> str:
    """Return the entry of a name, with those of its members, under headings of *level* and the next."""
    value = entry.value
    heading = f"{'#' * level} `{entry.title}`"
    if inspect.isclass(value):
        parts = [heading, _fenced(class_text(entry.title, value, bare=entry.bare)), _bases(value)]
        parts.append(markdown(value.__doc__ or ""))
        for name, member, doc in _members(entry):
            shown = _fenced(_member_text(value, name, member))
            parts += [f"{'#' * (level + 1)} `{entry.title}.{name}`", shown, markdown(doc)]
    elif inspect.isroutine(value) or entry.bare:
        parts = [heading, _fenced(function_text(entry.title, value, bare=entry.bare)), markdown(_documented(value))]
    else:
        definition, doc = _data_text(entry)
        parts = [heading, _fenced(definition), markdown(doc)]
    return "\n\n".join(part for part in parts if part)


# ------------------------------------------------------------------------------------------------ pages


def render(page: str) -> str:
    """Return a page with the text after each of its lists written anew."""

    def replace(found: re.Match[str]) -> str:
        module = import_module(found["module"])
        above = page[: found.start()]
        level = 3 if re.search(r"^## (?!`)", above, re.MULTILINE) else 2
        texts = [entry_text(entry, level) for entry in entries_of(module, found["names"])]
        if re.search(r"^[*-](:|$)", found["names"], re.MULTILINE):
            texts.insert(0, markdown(module.__doc__ or ""))
        return "\n".join([found["list"], "\n\n".join(texts), "", found["end"]])

    return _LIST.sub(replace, page)


def linked(pages: Mapping[str, str]) -> dict[str, str]:
    """Return the *pages* with each code span that is the name of one entry, and of one alone, made a link to it."""
    places: dict[str, list[str]] = {}
    for page, text in pages.items():
        for title in re.findall(r"^#+ `([\w.]+)`$", text, re.MULTILINE):
            places.setdefault(title, []).append(f"{page}#{title.lower().replace('.', '')}")
    targets = {title: found[0] for title, found in places.items() if len(found) == 1}
    return {page: _LIST.sub(partial(_linked_text, page, targets), text) for page, text in pages.items()}


def _linked_text(page: str, targets: Mapping[str, str], found: re.Match[str]) -> str:
    lines = []
    fenced = False
    own = ""
    for line in found["text"].split("\n"):
        if line.startswith("```"):
            fenced = not fenced
        if heading := re.match(r"#+ `([\w.]+)`$", line):
            own = heading[1]
        elif not fenced:
            line = _SPAN.sub(partial(_link, page, own, targets), line)
        lines.append(line)
    return found["list"] + "\n".join(lines) + found["end"]


def _link(page: str, own: str, targets: Mapping[str, str], span: re.Match[str]) -> str:
    target = targets.get(span[1])
    # A word in lower case may be a parameter or a field of the same name.
    if target is None or not re.search(r"[A-Z_.]", span[1]) or span[1] in (own, own.partition(".")[0]):
        return span[0]
    return f"[{span[0]}]({target.removeprefix(page)})"


def generate(names: list[str] | None = None) -> dict[Path, str]:
    """Return the pages as they should be, by path. Only those called *names* are written anew, all if it is None."""
    pages = {path.name: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.md"))}
    fresh = {name: render(text) if names is None or name in names else text for name, text in pages.items()}
    return {FOLDER / name: text for name, text in linked(fresh).items()}


def main(arguments: list[str]) -> int:
    """Write the pages, or check them; return 1 if `--check` finds one that is out of date."""
    stale = {path: text for path, text in generate().items() if path.read_text(encoding="utf-8") != text}
    if arguments == ["--check"]:
        for path in stale:
            print(f"docs/reference/{path.name} is out of date: run python docs/generate_reference.py")
        return int(bool(stale))
    for path, text in stale.items():
        path.write_text(text, encoding="utf-8")
        print(f"docs/reference/{path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
