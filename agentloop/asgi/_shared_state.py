"""`SharedState`: a value that the tools of a run and the page of its client both see, as AG-UI shares one.

Theory. We hold the text of the value, as its type has written it, and each reader gets another value, made from the
text. So only `change` can change the state, and whether it has changed is whether its text has. The text is all
that a stream needs, too: it compares the text that its client has with the present one. Changes between two looks are
one change to the client, and none can be lost.

A state is in no record. It belongs to the client, which sends it with each request, as it sends its messages, and may
have changed it meanwhile: with the request that resumes a paused run, too. Like the context, whose part it is, it is
given anew for each run segment.

Invariants: the text is what the type writes of the value that it reads from it, and is within the limits. One change is
made at a time, also by the threads of sync bodies.
"""

from __future__ import annotations

import inspect
import json
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from agentloop._schema.output_schema import OutputType, TypedOutput, typed_output
from agentloop.asgi._http import WebLimits
from agentloop.exceptions import ModelBehaviorError, UserError, UserTypeError, UserValueError
from agentloop.settings import JsonLimits

StateT = TypeVar("StateT")

MOST_BYTES = WebLimits().max_shared_state
_MOST_DEPTH = 32
_WHAT = "The shared state"


class SharedState(Generic[StateT]):
    """A state that the tools of a run share with the client's page: what the page shows, and lets its user change.

    `AgentApp(shared_state=Recipe)` makes one for each request, of the state that the client sends; your `admit` gets it
    as `WebRequest.shared_state`, and puts it into the context of the run. For tests of your tools make one yourself.
    The client of AG-UI gets the whole state at the start of the run, and each change as soon as it is made.

    The state is data of the client: check it as you would check a form, before you act on it or show it to the model.
    It is in no log, and its repr hides it.

    Args:
        type: The type of the value: a class of attrs, a dataclass, a model of pydantic, a TypedDict, or a dict. It is
            an object in JSON, and has a default for every field, since a client begins without a state.
        max_bytes: The bytes of the value as JSON. It may have 32 levels.

    Raises:
        UserTypeError: the type is none of these.
        UserValueError: a field has no default.

    Example:
        import attrs
        from agentloop.asgi import SharedState

        @attrs.define
        class Recipe:
            title: str = ""
            steps: list[str] = attrs.Factory(list)

        state = SharedState(Recipe)
        state.change(lambda recipe: attrs.evolve(recipe, steps=[*recipe.steps, "Boil the water."]))
        print(state.value.steps)  # ['Boil the water.']
    """

    def __init__(self, type: type[StateT], *, max_bytes: int = MOST_BYTES) -> None:
        self._type: TypedOutput = typed_output(OutputType(type, strict=False), what=_WHAT).using(None)
        if self._type.wrapped:
            raise UserTypeError(f"shared_state: expected a type that is an object in JSON, got {self._type.type_name}")
        self._limits = JsonLimits(max_bytes=max_bytes, max_depth=_MOST_DEPTH, read_strings=False)
        try:
            self._begin("{}")
        except ModelBehaviorError as error:
            raise UserValueError(
                f"shared_state: expected a default for every field of {self._type.type_name}, as a client begins "
                f"without a state: {error}"
            ) from None

    def _begin(self, text: str) -> None:
        self._lock = threading.RLock()
        self._changing = False
        self._listener: Callable[[], None] | None = None
        self._text = self._write(self._type.parse(text, self._limits))

    def __repr__(self) -> str:
        return f"SharedState({self._type.type_name})"

    @property
    def value(self) -> StateT:
        """The present value; what you do to it stays yours, and changes nothing."""
        found: StateT = self._type.parse(self._text, self._limits)
        return found

    def change(self, change: Callable[[StateT], StateT]) -> None:
        """Change the state to what *change* returns for the present value; the client gets the difference at once.

        Callable from any thread. Changes are made one after the other, so none is lost between two calls side by side;
        let *change* be quick, since other changes wait for it. It may return the value that it got, changed.

        Cancellation: none, it doesn't wait. A change that was made stays, also if its call is cancelled.

        Raises:
            UserTypeError: *change* returned nothing, or something that doesn't fit the type; names the place.
            UserValueError: the new value is too long or too deep.
            UserError: *change* changes the state itself.
            Exception: the error of *change*. The state is as it was.
        """
        with self._lock:
            if self._changing:
                raise UserError("change: a function that changes the state can't call `change`: return the new state")
            before = self._text
            self._changing = True
            try:
                made: Any = change(self.value)
            finally:
                self._changing = False
            if inspect.iscoroutine(made):
                made.close()  # else Python warns that it was never awaited
                raise UserTypeError("change: expected a function that returns the new state at once, got an async one")
            if made is None:
                raise UserTypeError("change: expected the new state, got None: return it from the function")
            try:
                self._text = self._write(made)
            except ModelBehaviorError as error:
                raise UserValueError(str(error)) from None
            listener = self._listener if self._text != before else None
        if listener is not None:
            listener()

    def _read(self, given: Any) -> SharedState[StateT]:
        """Return a state of the same type with the value that a client has *given*, as JSON; None: it has none yet.

        Raises:
            ModelBehaviorError: it doesn't fit, or is too long or too deep; names the place.
        """
        made: SharedState[StateT] = object.__new__(SharedState)
        made._type, made._limits = self._type, self._limits
        made._begin(_to_text({} if given is None else given))
        return made

    def _listen(self, listener: Callable[[], None]) -> None:
        """Let *listener* be called after each change, in the thread that has made it."""
        self._listener = listener

    def _write(self, value: Any) -> str:
        text = _to_text(json.loads(self._type.dump(value)))
        again = self._type.parse(text, self._limits)
        return _to_text(json.loads(self._type.dump(again)))


def _to_text(value: Any) -> str:
    """Return a value of JSON as text, with `?` for each half of a character."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace").decode()
