"""Deltas for clients that put a message together from them, in JSON, which has no half of a character."""

from __future__ import annotations


class DeltaJoiner:
    """Puts the halves of characters together that deltas have cut; each message of an answer has its own rest."""

    def __init__(self) -> None:
        self._halves: dict[int | None, str] = {}
        """Halves of characters at the end of deltas, by the position of their message; None for reasoning."""

    def join(self, item: int | None, text: str) -> str:
        """Return a delta behind the half of a character that the one before has left; its own last half is kept."""
        text = self._halves.pop(item, "") + text
        if "\ud800" <= text[-1:] <= "\udbff":
            self._halves[item] = text[-1]
            text = text[:-1]
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")

    def clear(self) -> None:
        """Forget what is left of an answer."""
        self._halves.clear()
