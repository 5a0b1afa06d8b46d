"""A world: the values that one run depends on, as data. Does not know how a world is run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict

import attrs

from agentloop.agents import Agent
from agentloop.exceptions import UserTypeError, UserValueError
from agentloop.items import Item
from agentloop.testing.scripted import Step, list_steps
from agentloop.testing.simulation._simulated_parts import Behavior
from agentloop.testing.simulation._stepping import Kind
from agentloop.testing.simulation.schedules import Tape

Order: TypeAlias = Literal["gate", "passes", "steps"]
Mode: TypeAlias = Literal["plain", "streamed"]
AgentOrMaker: TypeAlias = Agent[Any, Any] | Callable[[], Agent[Any, Any]]


@attrs.frozen
class CancelAt:
    """The caller's cancellation: the task step of the run before which it comes, counted from 0, and its kind.

    With `waiting`, `step` counts the moments at which everything waits at the gate, in place of task steps. Nothing
    else is under way at such a moment, so the consequences of the cancellation don't depend on its kind.
    """

    step: int
    kind: Kind = "scope"
    waiting: bool = False


@attrs.frozen(kw_only=True)
class Verdict:
    """A decision on a call, given when the call waits for one. The run then resumes."""

    call_id: str
    approved: bool = True
    path: tuple[str, ...] = ()
    always: bool = False
    message: str | None = None
    arguments: str | None = None


@attrs.frozen(kw_only=True)
class Steering:
    """One act of the application on a run under way: *text* is added as the input *id*; None takes that input back.

    A streamed run gets it once its reader has read *after* events, a plain one at its first pause.

    Example:
        from agentloop import Agent
        from agentloop.testing import Steering, World, run_one, say

        added = Steering(id="hint", text="Be brief.", when="idle")
        world = World(agent=lambda: Agent("a"), script=[say("Well, ..."), say("No.")], steering=[added])
        seen = run_one(world, streamed=True)
        print(seen.acknowledged, seen.result.final_output)  # ('hint',) No.
    """

    id: str
    text: str | None
    after: int = 0
    when: Literal["turn", "idle"] = "turn"


@attrs.frozen(kw_only=True)
class ExternalAnswer:
    """The application's answer to a call of an external tool: while the run works (*live*), or once it has paused.

    Example:
        from agentloop import Agent, ask_user
        from agentloop.testing import ExternalAnswer, World, call, run_one, say

        script = [call("ask_user", {"question": "Tea?"}, call_id="c1"), say("Here you are.")]
        answers = [ExternalAnswer(call_id="c1", value="yes")]
        world = World(agent=lambda: Agent("a", tools=[ask_user()]), script=script, answers=answers)
        print(run_one(world).result.status)  # completed
    """

    call_id: str
    value: Any = None
    path: tuple[str, ...] = ()
    error: str | None = None
    live: bool = False


def _check_tape(numbers: Iterable[int]) -> tuple[int, ...]:
    return Tape(numbers).numbers


def _freeze_script(script: Sequence[Step] | None) -> tuple[Step, ...] | None:
    return None if script is None else list_steps("script", script)


def _freeze_scripts(scripts: Mapping[str, Sequence[Step]]) -> Mapping[str, tuple[Step, ...]]:
    return {path: tuple(script) for path, script in scripts.items()}


@attrs.frozen(kw_only=True)
class World:
    """The values that one run depends on. Immutable; each run of a world makes its own objects from it.

    Attributes:
        agent: The agent; or a function that makes one, called once per run, which gives each run tools with a state of
            their own.
        script: The responses of the run's model, one step for each request, for all agents of the run. None: the
            agents' own models answer, which then should be made anew by *agent*.
        nested: The scripts of nested runs, by call ids: `"c1"` is the run that call `c1` began, `"c1/d2"` one inside
            it. A nested run without a script uses its agent's own model.
        input: The run's input.
        behaviors: Behaviors in place of the tools' own bodies, by `"c1/d2"` (path and call id) or by the tool's name.
        cancel: The caller's cancellation.
        context: Makes the application's object, once per run.
        options: Further arguments of `Runner.run`. `hooks`, `session`, `journal` and `run_config` may be functions that
            make one, once per run.
        verdicts: Given when their calls wait for one; the run is resumed until none fits.
        answers: Given when their calls wait for one; the run is resumed as after verdicts.
        steering: What the application adds to the run, and takes back, in this order. It is refused where the run is
            over, and then left out.
        slow_reader: True if the reader of a streamed run waits after each event until the tape lets it continue.
        reader_leaves: The name of the event at which the reader of a streamed run leaves; None: it reads all events.
        reader_stops: The name of the event at which the reader cancels the run after its turn, and continues to read.
        serialize: True if the run's state passes through its text form before each resume.
        tape: Chooses the next task or waiter; past its end the first one.
        order: `"gate"`: answers of models, bodies, guardrails and session I/O wait until the tape lets one through: the
            same schedule on both backends. `"passes"`: the tape permutes the tasks that are ready together, as a loop
            may. `"steps"`: it takes any ready task as the next, as if every wait took unknown time.
        switch_lines: True if functions that run in worker threads, sync bodies above all, run line by line, each line
            when the tape lets it (Python 3.12 and later; not in the order `"passes"`). Otherwise each is one step.
    """

    agent: AgentOrMaker
    script: tuple[Step, ...] | None = attrs.field(default=None, converter=_freeze_script)
    nested: Mapping[str, tuple[Step, ...]] = attrs.field(factory=dict, converter=_freeze_scripts)
    input: str | tuple[Item, ...] = "go"
    behaviors: Mapping[str, Behavior] = attrs.field(factory=dict)
    cancel: CancelAt | None = None
    context: Callable[[], Any] | None = None
    options: Mapping[str, Any] = attrs.field(factory=dict)
    verdicts: tuple[Verdict, ...] = ()
    answers: tuple[ExternalAnswer, ...] = attrs.field(default=(), converter=tuple)
    steering: tuple[Steering, ...] = attrs.field(default=(), converter=tuple)
    serialize: bool = True
    slow_reader: bool = False
    reader_leaves: str | None = None
    reader_stops: str | None = None
    tape: tuple[int, ...] = attrs.field(default=(), converter=_check_tape)
    order: Order = attrs.field(default="gate", validator=attrs.validators.in_(("gate", "passes", "steps")))
    switch_lines: bool = False

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.agent, Agent) and not callable(self.agent):
            raise UserTypeError(f"World.agent: expected an Agent, or a function that makes one, got {self.agent!r}")
        if self.context is not None and not callable(self.context):
            raise UserTypeError(
                f"World.context: expected a function that makes it, once per run (lambda: …), got {self.context!r}"
            )
        if "context" in self.options:
            raise UserValueError("World.options: the context is given by World.context")
        if self.cancel is not None and self.cancel.waiting and self.order != "gate":
            raise UserValueError(f"World.cancel: in the order {self.order!r} nothing waits at a gate")


class WorldOptions(TypedDict, total=False):
    """The options of `explore`, `kill_sweep` and `crash_sweep` that make their `World`. All are optional.

    Attributes:
        nested: Scripts of nested runs, by call ids.
        input: The run's input.
        context: Makes the application's object, once per run.
        options: Further arguments of `Runner.run`.
        order: The kind of choices that a schedule has: see `World`. If left out, `"steps"` for `explore`, otherwise
            `"passes"`.
    """

    nested: Mapping[str, Sequence[Step]] | None
    input: str | tuple[Item, ...]
    context: Callable[[], Any] | None
    options: Mapping[str, Any] | None
    order: Order


def make_world(agent: AgentOrMaker, script: Sequence[Step] | None, given: WorldOptions, **parts: Any) -> World:
    """Return the world of *agent* and *script* with the options *given*, and *parts* where none is given."""
    chosen = {name: value for name, value in given.items() if value is not None}
    return World(agent=agent, script=script, **{**parts, **chosen})
