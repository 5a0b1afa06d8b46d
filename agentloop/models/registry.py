"""Model strings: the model for `provider:name`, and the owner of models that several runs share.

* `openai-chat:NAME`: the vendor's Chat Completions, or the server that OPENAI_BASE_URL names
* `openai:NAME`: the vendor's Responses, or the server that OPENAI_BASE_URL names
* `anthropic:NAME`: Anthropic's Messages, or the server that ANTHROPIC_BASE_URL names
* `gemini:NAME`: Gemini behind its vendor's Chat Completions
* `mistral:NAME`, `groq:NAME`, `ollama:NAME` and others: a row of `_chat_vendors`
* `oci:NAME`: a model of Oracle's cloud
* `openai-realtime:NAME`: the vendor's Realtime interface in text, or that of the server that OPENAI_BASE_URL names
* `local:NAME`, `local:`: the model that runs on this machine
* `URL#NAME`: any OpenAI-compatible server, by its base URL: `http://127.0.0.1:8080/v1#qwen`. `URL:NAME` means the
  same if the URL has a path, and a URL alone names the model `default`, for servers with a single model.

Other prefixes come from installed packages: an entry point of the group `agentloop.models`, named like the prefix, is a
function `(name, *, http_client) -> Model`. A provider's module is imported when one of its models is first needed. Does
not know about runs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio
import attrs
from anyio.abc import TaskGroup, TaskStatus

from agentloop.abc import Model
from agentloop.exceptions import UserError, UserTypeError, UserValueError
from agentloop.models._codec import read_variable, split_url

_PREFIXES = {
    "openai-chat": "agentloop.models.openai_chat:model_by_name",
    "openai": "agentloop.models.openai_responses:model_by_name",
    "anthropic": "agentloop.models.anthropic:model_by_name",
    "gemini": "agentloop.models.openai_chat:gemini_by_name",
    "oci": "agentloop.models.oci:model_by_name",
    "openai-realtime": "agentloop.models.realtime:model_by_name",
    "local": "agentloop.models.local:model_by_name",
}
"""Prefix -> module and function; the function `(name, *, http_client)` returns the model."""
ENTRY_POINTS = "agentloop.models"
"""The group of entry points that bring more prefixes."""
_URL_MODULE = "agentloop.models.openai_chat"


def resolve_model(name: str, *, http_client: Any = None) -> Model:
    """Return a new model for a model string, not yet entered.

    Raises:
        UserTypeError: if *name* isn't text.
        UserValueError: if its prefix is unknown; lists the known ones.
        UserError: from the provider, if the rest of the string is wrong.
    """
    if not isinstance(name, str):
        raise UserTypeError(f"model: expected a Model or a model string, got {type(name).__name__}")
    if name.startswith(("http://", "https://")):
        base_url, model_name = _split_url(name)
        make = import_module(_URL_MODULE).OpenAIChatModel
        options: dict[str, Any] = {"base_url": base_url}
    else:
        prefix, colon, model_name = name.partition(":")
        found = _find_maker(prefix) if colon else None
        if found is None:
            raise UserValueError(_format_unknown(name, prefix))
        make, options = found, {}
    try:
        model: Model = make(model_name, http_client=http_client, **options)
    except UserValueError as error:
        # The provider's error names one of its own arguments, which the author of a model string doesn't know.
        raise UserValueError(f"model {_quote_name(name)!r}: {error}") from None
    return model


@attrs.frozen
class Provider:
    """A prefix of model strings.

    Attributes:
        prefix: The part before the colon.
        where: The base URL that is asked, or what else answers.
        missing: What it needs and hasn't: environment variables, or a command to run.
    """

    prefix: str
    where: str
    missing: tuple[str, ...] = ()


def list_providers() -> list[Provider]:
    """Return the prefixes of model strings, and what each needs; those of installed packages have no more to say.

    Looks at the environment, and asks no server.
    """
    from importlib.metadata import entry_points  # for this list only

    from agentloop.models import _chat_vendors, _install
    from agentloop.models._openai import OPENAI
    from agentloop.models.anthropic import ANTHROPIC
    from agentloop.models.openai_chat import GEMINI

    rows = []
    for prefix, vendor in (
        ("openai", OPENAI),
        ("openai-chat", OPENAI),
        ("openai-realtime", OPENAI),
        ("anthropic", ANTHROPIC),
        ("gemini", GEMINI),
    ):
        url = vendor.find_url(None)
        missing: tuple[str, ...] = () if vendor.find_key(url) or not vendor.is_at(url) else (vendor.key_variable,)
        rows.append(_describe(prefix, url, missing, vendor.url_variable))
    for prefix in _chat_vendors.CHAT_VENDORS:
        url, missing = _chat_vendors.describe_url(prefix), tuple(_chat_vendors.list_missing(prefix))
        rows.append(_describe(prefix, url, missing, _chat_vendors.find_url_variable(prefix)))
    needs = () if read_variable("OCI_GENAI_API_KEY") or _has_oci_profile() else ("OCI_GENAI_API_KEY or a profile",)
    rows.append(Provider("oci", "Oracle's cloud", needs))
    is_here = _install.has_engine() and _install.find_weights() is not None
    rows.append(Provider("local", "this machine", () if is_here else (f"`{_install.INSTALL_COMMAND}`",)))
    rows += [Provider(point.name, point.value) for point in sorted(entry_points(group=ENTRY_POINTS))]
    return rows


def _describe(prefix: str, url: str, missing: tuple[str, ...], variable: str | None) -> Provider:
    """Return the row of *prefix*; what a URL holds beside host and path may be a secret, and isn't shown."""
    if "{" in url:
        return Provider(prefix, url, missing)
    try:
        shown, _ = split_url(url)
    except UserValueError:
        return Provider(prefix, "…", (*missing, f"a right URL in {variable}"))
    return Provider(prefix, shown, missing)


def _has_oci_profile() -> bool:
    return Path(read_variable("OCI_CONFIG_FILE") or "~/.oci/config").expanduser().exists()


def _find_maker(prefix: str) -> Callable[..., Model] | None:
    """Return the function for *prefix*, of the library or of an installed package; None if there is none."""
    if place := _PREFIXES.get(prefix):
        module, _, function = place.partition(":")
        make: Callable[..., Model] = getattr(import_module(module), function)
        return make
    from agentloop.models._chat_vendors import CHAT_VENDORS, model_by_vendor  # for these prefixes only

    if prefix in CHAT_VENDORS:
        return partial(model_by_vendor, prefix)
    from importlib.metadata import entry_points  # reads the disk, for prefixes from elsewhere only

    for point in entry_points(group=ENTRY_POINTS, name=prefix):
        make = point.load()
        return make
    return None


def _quote_name(name: str) -> str:
    # The part before an @ may be a password, and a query may hold a key.
    return "…" if "@" in name or "?" in name or len(name) > 200 else name


def _format_unknown(name: str, prefix: str) -> str:
    if (name := _quote_name(name)) == "…":
        prefix = name
    from importlib.metadata import entry_points  # as in `_find_maker`

    from agentloop.models._chat_vendors import CHAT_VENDORS

    prefixes = [*_PREFIXES, *CHAT_VENDORS, *sorted(entry_points(group=ENTRY_POINTS).names)]
    known = ", ".join(f"{known}:NAME" for known in prefixes)
    import difflib  # for this text only

    near = difflib.get_close_matches(prefix, prefixes, n=1)
    advice = f" Did you mean {near[0] + ':'!r}?" if near else ""
    if not near and ":" not in name and name != "…":
        advice = f" It begins with a provider: did you mean {f'{next(iter(_PREFIXES))}:{name}'!r}?"
    return f"model: {name!r} is no known model string.{advice} There are: {known}, URL#NAME (http:// or https://)."


def _split_url(text: str) -> tuple[str, str]:
    """Return the base URL and the model's name of a model string that is a URL."""
    from urllib.parse import urlsplit, urlunsplit  # which loads modules that no other part of a run needs

    try:
        parts = urlsplit(text)
    except ValueError:
        raise UserValueError("model: the URL in the model string isn't one") from None
    path, name = parts.path, parts.fragment
    if not name:
        path, _, name = path.partition(":")
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, "")), name or "default"


@attrs.define(eq=False)
class _HeldModel:
    lock: anyio.Lock = attrs.field(factory=anyio.Lock)
    model: Model | None = None


class Providers:
    """Owns the models of model strings: enters each once, and leaves all at the end of the block.

    Every model is entered and left in one task of its own, so that it may hold anything, cancel scopes included; it
    outlives the block's body, also when that is cancelled. Owned by the code that opens it (`open_runtime`); for one
    event loop.
    """

    def __init__(self, *, http_client: Any = None) -> None:
        self._http_client = http_client
        self._held: dict[str, _HeldModel] = {}
        self._over = anyio.Event()
        self._tasks: TaskGroup | None = None
        self._errors: list[Exception] = []

    async def __aenter__(self) -> Self:
        self._tasks = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Leave every model. Raise the first of their errors, with the others as notes, unless the body failed."""
        assert self._tasks is not None
        tasks, self._tasks = self._tasks, None
        self._over.set()
        # The nursery doesn't get the body's own exception, as it would raise it again in a group.
        await tasks.__aexit__(None, None, None)  # noqa: ASYNC102 - joins; the tasks end by themselves
        if self._errors and exc is None:
            first, *others = self._errors
            for other in others:
                first.add_note(f"Another model failed while it was being closed: {other!r}")
            raise first

    async def open(self, name: str) -> Model:
        """Return the entered model for *name*; the same string gives the same model. Waits until it is entered.

        Raises:
            UserError: as `resolve_model`; also outside the block.
        """
        if self._tasks is None:
            raise UserError("Providers: use it within its `async with` block")
        held = self._held.setdefault(name, _HeldModel())
        async with held.lock:
            if held.model is None:
                model = resolve_model(name, http_client=self._http_client)
                await self._tasks.start(self._hold, model, name=f"model {name}")
                held.model = model
            return held.model

    async def _hold(self, model: Model, *, task_status: TaskStatus[None]) -> None:
        started = False
        try:
            async with model:
                started = True
                task_status.started()
                with anyio.CancelScope(shield=True):
                    await self._over.wait()
        except Exception as error:
            if not started:
                raise
            self._errors.append(error)
