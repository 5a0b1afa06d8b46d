"""The frames of a failure that a test's author wants to see: those of their own code.

Imported in each pytest session with the plugin: nothing but the standard library.
"""

from __future__ import annotations

from types import FrameType, TracebackType

_CARRIERS = frozenset({"anyio", "asyncio", "trio", "outcome", "contextlib", "concurrent", "threading"})
"""Packages whose frames are between ours and the frames of the application, and say nothing of either."""
_RUNNERS = frozenset({"_pytest", "pluggy", "pytest"})


def is_of_the_library(frame: FrameType) -> bool:
    """Return True if *frame* runs code of agentloop."""
    return _package(frame) == "agentloop"


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def hide_library(error: BaseException) -> bool:
    """Leave the library's frames out of the tracebacks of *error*, and of the errors that led to it; True if it did.

    Only an error of the library's own is changed: its message says what is wrong in the application's code. The frames
    of any other error are needed to find its cause. An error that led to it and that no frame of the application
    raised is left without a traceback, which is then its message only.
    """
    if not _is_of_the_library(error) or not any(_is_of_the_application(one.tb_frame) for one in _links(error)):
        return False
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        if _is_of_the_library(one) or _is_of_the_application(_links(one)[-1].tb_frame):
            one.__traceback__ = _without_library(_links(one))
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
    return True


def _is_of_the_library(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] == "agentloop" or error.__traceback__ is None


def _is_of_the_application(frame: FrameType) -> bool:
    return _package(frame) not in {"agentloop", *_CARRIERS, *_RUNNERS}


def _links(error: BaseException) -> list[TracebackType]:
    links = []
    link = error.__traceback__
    while link is not None:
        links.append(link)
        link = link.tb_next
    return links


def _without_library(links: list[TracebackType]) -> TracebackType | None:
    """Return the traceback of *links* without the frames of the library, and of what its first one calls."""
    kept: list[TracebackType] = []
    inside = False
    for link in links:
        inside = inside or is_of_the_library(link.tb_frame)
        if not inside or _is_of_the_application(link.tb_frame):
            kept.append(link)
    traceback: TracebackType | None = None
    for link in reversed(kept if any(_is_of_the_application(one.tb_frame) for one in kept) else []):
        traceback = TracebackType(traceback, link.tb_frame, link.tb_lasti, link.tb_lineno)
    return traceback
