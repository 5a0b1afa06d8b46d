"""The current stack of a running body, as text: the frames of its coroutine or of its thread. For reports only."""

from __future__ import annotations

import sys
import traceback
from types import FrameType
from typing import Any

from agentloop._engine.runtime.threads import ThreadSlot


def stack_of(coro: Any, place: ThreadSlot | None) -> str:
    """Return the stack of a running body, outermost frame first; "" where it is not available."""
    if place is not None and place.ident is not None:
        frame = sys._current_frames().get(place.ident)
        return "".join(traceback.format_stack(frame, limit=8)) if frame is not None else ""
    frames: list[FrameType] = []
    while coro is not None:
        frame = getattr(coro, "cr_frame", None) or getattr(coro, "gi_frame", None) or getattr(coro, "ag_frame", None)
        if frame is None:
            break
        frames.append(frame)
        coro = getattr(coro, "cr_await", None) or getattr(coro, "gi_yieldfrom", None)
    return "".join(f"  {frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}\n" for frame in frames)
