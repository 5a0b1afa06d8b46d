"""Two values of one name, in two modules: the one isn't taken for the other without a word."""

import copy
import pickle
from types import ModuleType
from typing import Any

import msgspec
import pytest

from agentloop import Agent, Runner, events, model_events, records
from agentloop.exceptions import UserTypeError
from agentloop.testing import FunctionModel

MODULES = (events, model_events, records)


def classes_of(module: ModuleType) -> dict[str, type[msgspec.Struct]]:
    """Return the values that *module* defines, by name."""
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, msgspec.Struct) and value.__module__ == module.__name__
    }


PAIRS = [
    (one, other)
    for left in MODULES
    for right in MODULES
    for name, one in classes_of(left).items()
    for other in [classes_of(right).get(name)]
    if other is not None and other is not one
]


def make(cls: type[msgspec.Struct]) -> Any:
    """Return an instance of *cls*; its fields don't matter."""
    return cls(**dict.fromkeys(cls.__struct_fields__))


def test_the_modules_share_names() -> None:
    """The table below is of all that the three modules define: eleven names, each in two of them."""
    assert len(PAIRS) == 22


@pytest.mark.parametrize(("asked", "given"), PAIRS, ids=lambda cls: f"{cls.__module__}.{cls.__name__}")
def test_the_class_of_the_wrong_module_is_an_error(asked: type[Any], given: type[Any]) -> None:
    """Both in `isinstance` and in a `case`; the message says where to import it from."""
    value = make(given)
    with pytest.raises(UserTypeError, match=f"import {asked.__name__} from {given.__module__}$"):
        isinstance(value, asked)
    with pytest.raises(UserTypeError, match=f"asks for the {asked.__name__} of {asked.__module__}"):
        match value:
            case asked():  # type: ignore[misc]
                pass
            case _:
                pass


@pytest.mark.parametrize(
    "cls",
    list(dict.fromkeys(one for pair in PAIRS for one in pair)),
    ids=lambda cls: f"{cls.__module__}.{cls.__name__}",
)
def test_all_else_is_asked_as_before(cls: type[Any]) -> None:
    """Instances, subclasses, other values, and what pickle and copy make."""

    class Own(cls):  # type: ignore[misc]
        pass

    value = make(cls)
    assert isinstance(value, cls)
    assert isinstance(make(Own), cls)
    assert not isinstance(value, Own)
    for other in (events.TurnEnded(), model_events.Raw(1), 1, None, cls):
        assert not isinstance(other, cls)
    assert pickle.loads(pickle.dumps(value)) == value == copy.deepcopy(value)


async def test_an_event_of_a_stream_is_no_event_of_a_model(anyio_backend: Any) -> None:
    """An editor offers both; the loop would never find any text."""
    with pytest.raises(UserTypeError, match=r"import TextDelta from agentloop\.events$"):
        async with Runner.run_streamed(Agent("a", model=FunctionModel(lambda _: "hello")), "hi") as stream:
            async for event in stream:
                isinstance(event, model_events.TextDelta)


async def test_a_model_that_streams_events_of_a_run_is_told_so(anyio_backend: Any) -> None:
    """Nothing of its text was shown before."""
    from contextlib import asynccontextmanager

    from agentloop.abc import Model
    from agentloop.items import AssistantMessage

    class Own(Model):
        @asynccontextmanager
        async def stream(self, request: Any) -> Any:
            async def answer() -> Any:
                yield model_events.ResponseStarted()
                yield events.TextDelta("hello")
                yield model_events.ResponseDone([AssistantMessage("hello")])

            yield answer()

    with pytest.raises(UserTypeError, match=r"this is the TextDelta of agentloop\.events, "):
        async with Runner.run_streamed(Agent("a", model=Own()), "hi") as stream:
            async for _ in stream:
                pass
