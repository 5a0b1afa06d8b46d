"""The candidate's answers, kept by request: equal requests of later runs, and of later comparisons, cost nothing."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentloop import records as r
from agentloop._common.whole_files import write_whole
from agentloop._storage.model_codec import request_to_json
from agentloop._storage.record_codec import record_from_json, record_to_json
from agentloop.exceptions import StateError
from agentloop.items import Item
from agentloop.lab._recording import normal_items
from agentloop.model_events import ModelInfo, ModelRequest, ModelResponse

_PLACE = ("path", "turn", "items")


def key_of(request: ModelRequest, model: ModelInfo, repeat: int) -> str:
    """Return the key of a request to *model*; it leaves out the place in its run and the ids of calls."""
    shown = {name: value for name, value in request_to_json(request).items() if name not in _PLACE}
    items: Sequence[Item] = request.items
    data = [shown, normal_items(items), model.provider, model.name, model.base_url, repeat]
    return hashlib.sha256(json.dumps(data, sort_keys=True, default=repr).encode("utf-8", "surrogatepass")).hexdigest()


class AnswerCache:
    """The answers in *folder*, a file each, readable by its owner only; without a folder in memory."""

    def __init__(self, folder: str | os.PathLike[str] | None) -> None:
        self._folder = None if folder is None else Path(folder)
        self._kept: dict[str, tuple[ModelResponse, float]] = {}

    def find(self, key: str) -> tuple[ModelResponse, float] | None:
        """Return the answer kept under *key*, and the seconds that the model took; None if there is none.

        Raises:
            StateError: if its file is damaged; names it.
        """
        if self._folder is None:
            return self._kept.get(key)
        path = self._folder / f"{key}.json"
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        try:
            data = json.loads(text)
            record = record_from_json(data["answer"])
            assert isinstance(record, r.ModelResponded)
            return record.response, float(data["seconds"])
        except Exception as error:
            raise StateError(f"{path} is no answer of a model that the lab has kept: delete it ({error})") from error

    def keep(self, key: str, response: ModelResponse, seconds: float) -> None:
        """Keep an answer under *key*, whole or not at all."""
        if self._folder is None:
            self._kept[key] = response, seconds
            return
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        answer: dict[str, Any] = record_to_json(r.ModelResponded((), 0, 0.0, response))
        text = json.dumps({"seconds": round(seconds, 3), "answer": answer})
        write_whole(self._folder / f"{key}.json", text.encode())
