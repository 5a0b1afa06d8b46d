"""Errors of the library cross the border of a process: worker pools, queues and parallel test runs pickle them."""

import copy
import inspect
import pickle
from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from agentloop import Agent, AgentLoopError, Runner, exceptions, tool
from agentloop.testing import ScriptedModel, call, say


def every_error() -> Iterator[AgentLoopError]:
    """Yield an error of each public class, made as its constructor wants it."""
    for cls in vars(exceptions).values():
        if not (inspect.isclass(cls) and issubclass(cls, AgentLoopError)):
            continue
        given: dict[str, Any] = {"timeout": 2.5, "max_turns": 3, "n": 4, "tokens": 9, "window": 6, "target": 3}
        given["steps"] = (("DropOldest", 5), ("Summarize", "it failed"))
        if not inspect.isfunction(cls.__init__):
            yield cls("said")
        else:
            yield cls(**{name: given.get(name, f"the {name}") for name in inspect.signature(cls).parameters})


@pytest.mark.parametrize("error", list(every_error()), ids=lambda error: type(error).__name__)
def test_every_error_can_be_pickled_and_copied(error: AgentLoopError) -> None:
    """Its text, its attributes and its notes are the same there."""
    error.add_note("a note")
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(twin) is type(error)
        assert (str(twin), twin.args, vars(twin)) == (str(error), error.args, vars(error) | {"run_data": None})


@tool(failure_error_function=None)
def fail() -> str:
    """Fail."""
    raise ValueError("no")


@pytest.mark.parametrize("max_turns", [1, 5])
def test_an_error_of_a_run_arrives_without_what_only_its_process_has(max_turns: int) -> None:
    """The run's data holds agents with functions; the error itself is what the other side needs."""
    steps = [call("nothing"), say("x")] if max_turns == 1 else [call("fail")]
    agent = Agent("a", model=ScriptedModel(steps), tools=[fail])
    with pytest.raises(AgentLoopError) as caught:
        Runner.run_sync(agent, "go", max_turns=max_turns)
    assert caught.value.run_data is not None
    there = pickle.loads(pickle.dumps(caught.value))
    assert (type(there), str(there), there.run_data) == (type(caught.value), str(caught.value), None)


def test_an_attribute_that_cannot_be_pickled_is_left_behind() -> None:
    """It must not replace the error by one about pickling."""
    error = exceptions.InputGuardrailTripwireTriggered("tripped", guardrail_result=lambda: None)
    there = pickle.loads(pickle.dumps(error))
    assert (str(there), there.guardrail_result) == ("tripped", None)


def test_a_result_and_what_its_model_was_asked_can_be_copied() -> None:
    """A scripted model keeps its requests, so that a copy of a result, a state or an agent holds them."""
    model = ScriptedModel([say("one"), call("fail"), say("two")])
    agent = Agent("a", model=model, tools=[attrs.evolve(fail, failure_error_function=lambda ctx, error: "no")])
    Runner.run_sync(agent, "go")
    result = Runner.run_sync(agent, "on")
    twin = copy.deepcopy(result)
    assert (twin.final_output, twin.records) == (result.final_output, result.records)
    assert copy.deepcopy(result.to_state()).final_output == "two"
    assert copy.deepcopy(agent).name == "a"
    request = pickle.loads(pickle.dumps(model.requests[-1].replace(tools=())))
    assert (request.items, list(request.call_ids)) == (model.requests[-1].items, ["call_1"])
