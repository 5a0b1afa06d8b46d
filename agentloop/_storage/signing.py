"""Seals on stored states: with the key, a reader can verify that a state is unchanged and not too old.

A seal hides nothing; `_storage/withholding` does that. Does not know what a state holds.

Decisions:

Seals prove, they don't hide. A sealed state can't be changed unnoticed, nor can a sealed journal be put into the
place of another run's: the key of its lines is derived from the user's key, the kind of store and the run's name
there. Rejected: comparing the name with the run id in the journal's header, since the id of a row or a file is the
application's, and the run's is drawn. Rejected: the path, or the database, in the seal: folders are moved, and
databases restored. A handle of a paused web run holds a digest of its state, which needs no key. Secrets are hidden
by a codec of the application, or stored as digests, from which short secrets can be guessed. A session holds the
conversation as it is.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Mapping
from typing import Any, TypeAlias

import attrs
from attrs.validators import and_, min_len

from agentloop._common.checks import FIELDS, is_a, optional
from agentloop._common.errors import StateError, UserTypeError, UserValueError

ALGORITHM = "HMAC-SHA256"
LEAST_BYTES = 16


@attrs.frozen
class SealKey:
    """A key that seals states.

    Attributes:
        secret: At least 16 bytes that no other party knows.
        id: Name of the key in the seal, so that keys can be replaced by others.
        expires_in: Seconds for which a seal made with it is valid; None = no limit.

    Example:
        from agentloop import Agent, Runner, RunState, SealKey
        from agentloop.testing import ScriptedModel, say

        key = SealKey(b"sixteen bytes or more", id="2026", expires_in=3600)
        agent = Agent("a", model=ScriptedModel([say("hi")]))
        text = Runner.run_sync(agent, "go").to_state().to_string(key=key)
        print(RunState.from_string(agent, text, key=key).status)  # completed
    """

    secret: bytes = attrs.field(
        repr=False,
        validator=and_(
            FIELDS.needs("expected bytes", is_a(bytes), quoted=False),
            FIELDS.needs(f"at least {LEAST_BYTES} bytes are needed", min_len(LEAST_BYTES), quoted=False),
        ),
    )
    id: str = "1"
    expires_in: float | None = attrs.field(default=None, kw_only=True, validator=optional(FIELDS.seconds()))


_FAR_OFF = 1e12
"""Seconds since 1970; no seal is valid for thirty thousand years, and numbers of any length can't be written."""

Keys: TypeAlias = SealKey | bytes | str | Mapping[str, SealKey]
"""A key; the bytes or text of a secret; or, for reading, keys by id."""


def _make_key(given: Keys) -> SealKey:
    if isinstance(given, SealKey):
        return given
    if isinstance(given, bytes | str):
        return SealKey(given.encode() if isinstance(given, str) else given)
    raise UserTypeError("key: expected a SealKey, bytes or text")


def key_to_seal_with(given: Keys) -> SealKey:
    """Return the one of *given* that seals where others may have sealed before: of keys by id the first.

    Raises:
        UserError: it isn't a key, or what it seals can't be opened by *given*.
    """
    first = next(iter(given.values()), None) if isinstance(given, Mapping) else given
    if first is None:
        raise UserValueError("key: a mapping without a key")
    key = _make_key(first)
    if isinstance(given, Mapping) and given.get(key.id) != key:
        raise UserValueError(f"key: expected the key with the id {key.id!r} under that id")
    return key


def make_seal(text: bytes, given: Keys, bound_to: str | None = None) -> dict[str, Any]:
    """Return a seal on *text*, which holds only for *bound_to* if that is given: the seal says that, not for what."""
    key = _make_key(given)
    seal: dict[str, Any] = {"algorithm": ALGORITHM, "key": key.id}
    if bound_to is not None:
        seal["bound"] = True
    if key.expires_in is not None:
        seal["expires_at"] = round(time.time() + key.expires_in, 3)
    return {**seal, "mac": _mac(text, seal, key, bound_to)}


def check_seal(text: bytes, seal: object, given: Keys, bound_to: str | None = None) -> None:
    """Check the *seal* on *text*.

    Raises:
        StateError: there is no seal, another key made it, the state or the seal was changed, it holds for something
            else than *bound_to*, or it has expired.
    """
    if not isinstance(seal, Mapping):
        raise StateError("the state is not sealed")
    fields = {name: value for name, value in seal.items() if name != "mac"}
    if set(fields) - {"algorithm", "bound", "key", "expires_at"} or fields.get("algorithm") != ALGORITHM:
        raise StateError(f"the state's seal is of a kind that isn't known here (known: {ALGORITHM})")
    if fields.get("bound", True) is not True:
        raise StateError("the state's seal is broken: it doesn't say whether it was sealed for a name")
    if "bound" in fields and bound_to is None:
        raise StateError("the state was sealed for a name, by bound_to=: give the name")
    if "bound" not in fields and bound_to is not None:
        raise StateError(f"the state was sealed for no name, and {bound_to!r} was given")
    expires = fields.get("expires_at")
    if expires is not None and not (isinstance(expires, int | float) and abs(expires) < _FAR_OFF):
        raise StateError("the state's seal expires at no time that there is")
    name = fields.get("key")
    key = given.get(str(name)) if isinstance(given, Mapping) else _make_key(given)
    if key is None or key.id != name:
        raise StateError("the state is sealed with another key")
    mac = seal.get("mac")
    if not isinstance(mac, str) or not hmac.compare_digest(
        mac.encode("utf-8", "replace"), _mac(text, fields, key, bound_to).encode()
    ):
        other = "" if bound_to is None else f", or for another name than {bound_to!r}"
        raise StateError(f"the state's seal is broken: it was changed, or sealed with another key{other}")
    if expires is not None and not time.time() < expires:
        raise StateError("the state's seal has expired")


def _mac(text: bytes, fields: Mapping[str, Any], key: SealKey, bound_to: str | None) -> str:
    named = fields if bound_to is None else {**fields, "bound": bound_to}
    head = repr(sorted(named.items())).encode("utf-8", "backslashreplace")
    return hmac.new(key.secret, hashlib.sha256(head).digest() + text, hashlib.sha256).hexdigest()
