"""A run as a value: its log, with which to decide on waiting calls, store the run, move it, and resume it.

Fact: the records. Index: the fold, made from them on first use and updated with every appended record. Deciding methods
only append a record; the engine reads the verdicts from the log when the run resumes. Restored records are checked in
order while they are folded, because a stored log may have been tampered with. Runs nothing and does not know about the
engine; stored forms are in `_storage`.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, TypeAlias, final

import anyio
from anyio.lowlevel import checkpoint, current_token

from agentloop import records as r
from agentloop._common.checks import NAMES, check, optional
from agentloop._common.error_text import shorten
from agentloop._common.misplaced import function_takes_options, refuse_attribute
from agentloop._common.naming import qualify_name
from agentloop._common.turns import ITEMS_A_TURN, collect_in_turns
from agentloop._concurrency.backend import liveness
from agentloop._core.call_identity import find_tool, have_same_arguments
from agentloop._core.call_state import CallState, make_interruption, make_question
from agentloop._core.plan import read_arguments
from agentloop._core.record_events import events_of
from agentloop._core.run_fold import RunFold
from agentloop._schema.json_check import find_violation
from agentloop._schema.json_text import parse_object
from agentloop._storage.journal_claims import claim
from agentloop._storage.signing import Keys
from agentloop.abc import Codec, Journal
from agentloop.agents import Agent
from agentloop.agents._graph import AgentGraph, changes
from agentloop.events import Event
from agentloop.exceptions import (
    InputRefusedError,
    JournalError,
    ModelBehaviorError,
    StateError,
    UserError,
    UserTypeError,
    UserValueError,
)
from agentloop.items import ApprovalRequest, CallToAnswer, Interruption, Item, ToolCall, to_items
from agentloop.outcomes import AddedInput
from agentloop.settings import JsonLimits

if TYPE_CHECKING:
    from cattrs import BaseConverter

    from agentloop._storage.state_codec import Stored

logger: logging.Logger = logging.getLogger("agentloop")

_USUAL_ELSEWHERE = {"get_interruptions": "interruptions", "pending_input": "inputs"}
"""Attributes of other libraries' states: the ones here in place of them."""


@final
class RunState:
    """The log of a run. Made by `RunResult.to_state`, `RunStream.state` or the `from_…` methods.

    The caller owns it. Deciding methods append records and do nothing else. Mutable, not thread-safe. Two states are
    equal if their records are.

    Attributes:
        agent: The agent that the run began with.
        context: The application's object for the next run segment, unless the caller gives it another one.
        records: The log.
        converter: The application's own cattrs converter, or None. It writes stored values, and reads the arguments
            given with a verdict.

    Example:
        from agentloop import Agent, Runner, RunState, tool
        from agentloop.testing import ScriptedModel, call, say

        @tool(needs_approval=True)
        def pay(amount: int) -> str:
            "Pay."
            return f"paid {amount}"

        agent = Agent("a", model=ScriptedModel([call("pay", {"amount": 5}), say("Paid.")]), tools=[pay])
        text = Runner.run_sync(agent, "Pay 5.").to_state().to_string()  # store it; the process may end here
        state = RunState.from_string(agent, text)
        state.approve(state.interruptions[0])
        print(Runner.run_sync(agent, state).final_output)  # Paid.
    """

    schema_version: ClassVar[str] = "2"

    def __init__(self, agent: Agent[Any, Any], records: Iterable[r.Record], *, context: Any = None) -> None:
        if not isinstance(agent, Agent):
            raise UserTypeError(f"agent: expected an Agent, got {agent!r}")
        self.agent = agent
        self.context = context
        self.records: list[r.Record] = list(records)
        self.graph_before: Mapping[str, Any] | None = None
        """The agents' graph at the time when the run was stored; None for a run of this process."""
        self.converter: BaseConverter | None = None
        self._made: RunFold | None = None
        self._found = len(self.records)  # when the object was made: what follows was given on it
        self._stored = self._found  # what follows isn't in the journal that this was read from
        self._appending: anyio.Event | None = None  # of the `append_to` under way: set when it ends

    @classmethod
    def _of(cls, agent: Agent[Any, Any], fold: RunFold, context: Any, converter: BaseConverter | None) -> RunState:
        """Return a state with the records of *fold* that is detached from the running run."""
        state = cls(agent, fold.records, context=context)
        state.converter = converter
        state._made = fold.detached()  # which costs half of what folding the records again would
        return state

    def __repr__(self) -> str:
        try:
            fold = self._fold
        except StateError as error:
            return f"<RunState of {len(self.records)} records that don't fit: {error}>"
        status = fold.ended.status if fold.ended is not None else "under way"
        return f"<RunState {fold.run_id} {status}, turn {fold.turn}, {len(self.records)} records>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the status, and a row for each call. It hides what the repr hides."""
        from agentloop._common import notebook  # only notebooks need it

        try:
            fold = self._fold
        except StateError:
            return notebook.page("RunState", pieces=[notebook.block(repr(self))])
        ended = fold.ended
        return notebook.run_cell(
            self.agent.name,
            "under way" if ended is None else ended.status,
            notebook.count(fold.turn, "turn"),
            notebook.count(len(self.records), "record"),
            f"run {fold.run_id}",
            answer=self.final_output,
            is_secret=ended is not None and ended.secret,
            calls=((call.call, call.outcome) for call in fold.calls.values() if call.outcome is not None),
            waiting=self.interruptions,
        )

    def __eq__(self, other: object) -> bool:
        return self._records_to_json() == other._records_to_json() if isinstance(other, RunState) else NotImplemented

    __hash__: ClassVar[None] = None  # type: ignore[assignment]  # mutable

    def _records_to_json(self) -> list[Any]:
        from agentloop._storage.record_codec import record_to_json

        return [record_to_json(record) for record in self.records]

    @property
    def _fold(self) -> RunFold:
        """The fold of the records, made on first use.

        Raises:
            StateError: if a record doesn't fit those before it.
        """
        if self._made is None:
            self._made = self._fold_again()
        return self._made

    def _fold_again(self) -> RunFold:
        """Return a new fold of the records that shares no state with this object.

        Raises:
            StateError: if a record doesn't fit those before it; names its index and kind.
        """
        fold = RunFold()
        apply_checked(fold, self.records)
        return fold

    def _give_fold(self) -> RunFold:
        """Return a fold of the records for a run that continues them. This object makes another one if it is asked.

        The records are the fact. If one of them was replaced, as by one with another time, we fold them again.
        """
        fold, self._made = self._fold, None
        return fold if fold.records == self.records else self._fold_again()

    def _append(self, record: r.Record) -> None:
        from agentloop._core.gate import admit  # only a run with a verdict or an input needs it

        fold = self._fold
        self.records.append(fold.apply(admit(fold, record)))

    # -- looking

    @property
    def run_id(self) -> str:
        """The id of the whole run, the same in all its segments: that of `RunContext.run_id`."""
        return self._fold.run_id

    @property
    def owner(self) -> str | None:
        """The owner of the run, in the application's words (`RunConfig.owner`); None if nothing was said."""
        return self._fold.started.owner if self._fold.started is not None else None

    @property
    def status(self) -> r.RunStatus | None:
        """How the last run segment ended; None if it has not ended: the run is under way, or its process died."""
        return self._fold.ended.status if self._fold.ended is not None else None

    @property
    def _has_failed(self) -> bool:
        """True if the run has failed for good: no other run segment may continue it."""
        return self._fold.started is not None and self.status != "completed" and self._find_end("") != ""

    @property
    def _is_over(self) -> bool:
        """True if the run has completed, or failed for good."""
        return self.status == "completed" or self._has_failed

    @property
    def input(self) -> tuple[Item, ...]:
        """The items that the run began with; empty if it has not started. Later input (`add_input`) is not in it."""
        return self._fold.input

    def began_with(self, input: str | Iterable[Item]) -> bool:
        """Tell whether the run began with *input*. A secret that was stored as a digest is compared by it."""
        begun = self._fold.started
        if begun is None:
            return False
        from agentloop._storage.state_codec import line_encoder

        given, as_plain = begun.replace(input=to_items(input)), line_encoder(None, self.converter)
        return as_plain(given) == as_plain(begun)

    @property
    def final_output(self) -> Any:
        """The final output; None unless the run has completed. Of a stored run it is plain data."""
        return self._fold.ended.final_output if self._fold.ended is not None else None

    @property
    def error(self) -> str | None:
        """The error that ended the last run segment, as `TYPE(MESSAGE)`; None if none did."""
        return self._fold.ended.error if self._fold.ended is not None else None

    def events(self, after: str | None = None) -> Iterator[tuple[str, Event]]:
        """Return the events of the log with their ids, in order: those that its streams have shown, without signals.

        An id is `RECORD.INDEX`, as `RunStream.last_event_id` gives it. The events are made as they are asked for.

        Args:
            after: The id of an event; only those that follow it are returned. None for all.

        Raises:
            UserTypeError, UserValueError: if *after* isn't an id.
        """
        last = None if after is None else parse_event_id(after)
        return _read_events(tuple(self.records), AgentGraph(self.agent), last)

    # -- deciding

    @property
    def interruptions(self) -> tuple[Interruption, ...]:
        """The calls that wait for a verdict (`ApprovalRequest`) or for their answer (`CallToAnswer`).

        Those of nested runs are included. Empty unless the run was interrupted.
        """
        return tuple(self._fold.interruptions())

    def _asked(self) -> Iterator[ApprovalRequest]:
        """Yield the calls of open turns for which a verdict was requested, also those that have one."""
        for call in self._open_calls():
            if call.approval is not None:
                yield make_interruption(call.call, call.approval)

    def _questions(self) -> Iterator[CallToAnswer]:
        """Yield the calls of open turns that the application answers, also those that have their answer."""
        for call in self._open_calls():
            if call.question is not None:
                yield make_question(call, call.question)

    def _open_calls(self) -> Iterator[CallState]:
        for fold in _walk_folds(self._fold):
            yield from fold.batch if fold.batch_open else ()

    def _refuse_cancel(self, path: tuple[str, ...], call_id: str) -> None:
        """Say what to do instead, if the call to be cancelled waits for a person in this paused run.

        Raises:
            StateError: it does.
        """
        for one in self.interruptions:
            if one.call.call_id == call_id and one.path == path:
                answers = isinstance(one, CallToAnswer)
                what, do = (
                    ("its answer", "answer the call by error=,") if answers else ("a verdict", "reject the call,")
                )
                raise StateError(
                    f"cancel_call: call {call_id!r} waits for {what}, and the run has paused, so nothing of it can be "
                    f"cancelled: {do} with the reason as the message, and resume the run"
                )

    def _close_verdicts(self) -> None:
        """From now on take the verdicts given so far as those of another process."""
        self._found = len(self.records)

    if not TYPE_CHECKING:  # else every name would be an attribute to a type checker

        def __getattr__(self, name: str) -> NoReturn:
            refuse_attribute(self, name, _USUAL_ELSEWHERE)

    @function_takes_options("RunState.approve")
    def approve(
        self,
        call: Interruption | str,
        *,
        arguments: str | Mapping[str, Any] | None = None,
        always: bool = False,
        by: str | None = None,
        replace: bool = False,
    ) -> None:
        """Approve *call*, so that it runs when the state is resumed.

        Args:
            call: An interruption, or its call id. Of several verdicts that this object gives on a call the last one
                holds.
            arguments: JSON text or a mapping that replaces the model's arguments: another invocation, which policies
                and guardrails check again. They must fit the tool's schema.
            always: True to approve later calls of the same agent to the same tool, too, for the rest of the run.
            by: Who gives the verdict, in the application's words; the log keeps it (`VerdictGiven.by`).
            replace: True to take the place of a verdict that another process has given, as long as the call hasn't
                started.

        Raises:
            StateError: if the call has such a verdict (says which one, and whose) and *replace* is False, if no such
                call waits or the run is over, or if the interruption is of another call than the one that waits.
            UserError: if *arguments* don't fit the tool; names every fault. The call then still waits.

        Example:
            from agentloop import Agent, Runner, tool
            from agentloop.testing import ScriptedModel, call, say

            @tool(needs_approval=True)
            def pay(amount: int) -> str:
                "Pay."
                return f"paid {amount}"

            agent = Agent("a", model=ScriptedModel([call("pay", {"amount": 500}), say("ok")]), tools=[pay])
            state = Runner.run_sync(agent, "Pay.").to_state()
            state.approve(state.interruptions[0], arguments={"amount": 5})  # a person may correct the arguments
            print(Runner.run_sync(agent, state).new_items[-2].output)  # paid 5
        """
        text = None if arguments is None else as_text(arguments)
        self._decide(call, replace, approved=True, arguments=text, always=always, by=by)

    @function_takes_options("RunState.reject")
    def reject(
        self,
        call: Interruption | str,
        *,
        message: str | None = None,
        always: bool = False,
        by: str | None = None,
        replace: bool = False,
    ) -> None:
        """Reject *call*: it never runs, and the model receives *message*. Otherwise as `approve`.

        Example:
            from agentloop import Agent, Runner, tool
            from agentloop.testing import ScriptedModel, call, say

            @tool(needs_approval=True)
            def pay(amount: int) -> str:
                "Pay."
                return f"paid {amount}"

            agent = Agent("a", model=ScriptedModel([call("pay", {"amount": 500}), say("ok")]), tools=[pay])
            state = Runner.run_sync(agent, "Pay.").to_state()
            state.reject(state.interruptions[0], message="Too much.")
            print(Runner.run_sync(agent, state).new_items[-2].output)  # Too much.
        """
        self._decide(call, replace, approved=False, message=message, always=always, by=by)

    def _decide(self, call: Interruption | str, replace: bool, **verdict: Any) -> None:
        check_goes_on(self._fold)
        graph, own = AgentGraph(self.agent), self.records[self._found :]
        given = verdict_on(self._fold, call, graph, own=own, converter=self.converter, replace=replace, **verdict)
        self._append(given)

    def answer(
        self, call: Interruption | str, value: Any = None, *, error: str | None = None, by: str | None = None
    ) -> None:
        """Answer *call*, which waits for the application, so that the run continues with it when it is resumed.

        Args:
            call: An interruption, or its call id.
            value: The answer, of JSON's own types. It must fit the schema that the tool's answers have. The tool's
                output guardrails and bounds see it when the run continues.
            error: In place of a value: the model gets these words, as those of a call that has failed.
            by: Who answers, in the application's words; the log keeps it (`CallAnswered.by`).

        Raises:
            StateError: if the call has its answer (says whose: the first one counts), if it took longer than the tool's
                timeout, if no such call waits or the run is over, or if the interruption is of another call.
            UserError: if *value* doesn't fit. The call then still waits.

        Example:
            from agentloop import Agent, Runner, tool
            from agentloop.testing import ScriptedModel, call, say

            @tool(external=True)
            def choose(question: str) -> int:
                "Ask the user for a number."

            model = ScriptedModel([call("choose", {"question": "How many?"}), say("Three.")])
            agent = Agent("a", model=model, tools=[choose])
            state = Runner.run_sync(agent, "Go.").to_state()
            state.answer(state.interruptions[0], 3, by="ada")
            print(Runner.run_sync(agent, state).new_items[-2].output)  # 3
        """
        check_goes_on(self._fold)
        self._append(answer_to(self._fold, call, value, time.time(), error=error, by=by))

    @property
    def inputs(self) -> tuple[AddedInput, ...]:
        """The inputs that were added to the run, in their order, and what has become of each."""
        return tuple(self._fold.inputs.values())

    def add_input(
        self,
        input: str | Iterable[Item],
        *,
        when: Literal["turn", "idle"] = "turn",
        id: str | None = None,
        by: str | None = None,
    ) -> str:
        """Add input that the model is shown once the state is resumed; return its id. See `RunStream.add_input`.

        Args:
            input: Text or items.
            when: `"turn"` to show it with the next request, `"idle"` when the run would end otherwise.
            id: The id of the input, which you choose; a second call with it and the same input adds nothing, also when
                the run is over.
            by: Who gives the input, in the application's words; the log keeps it (`InputAdded.by`).

        Raises:
            InputRefusedError: if the run is over or has no turn left, if another input has the id, or if the one that
                has it was withdrawn or rejected.
            UserError: if a call in the input has no output behind it.

        Example:
            from agentloop import Agent, RunConfig, Runner
            from agentloop.config.conditions import MaxTurns
            from agentloop.testing import ScriptedModel, call, say
            from agentloop import tool

            @tool
            def look() -> str:
                "Look."
                return "a cat"

            agent = Agent("a", model=ScriptedModel([call("look"), say("ok")]), tools=[look])
            state = Runner.run_sync(agent, "Look.", run_config=RunConfig(stop_when=MaxTurns(1))).to_state()
            print(state.add_input("In French, please."))  # input_1
            print(Runner.run_sync(agent, state).new_items[-2].text)  # In French, please.
        """
        from agentloop._core.inbox import make_input  # few states get one

        added = make_input(self._fold, input, when, id, by, time.time(), live=False, over=self._find_end("add_input"))
        if added is None:
            assert id is not None
            return id
        self._append(added)
        return added.id

    def withdraw(self, id: str, *, by: str | None = None) -> None:
        """Take the added input *id* back, which the model hasn't been shown.

        Raises:
            InputRefusedError: if the run is over, or the input doesn't wait; its `reason` says what has become of it.
        """
        from agentloop._core.inbox import make_withdrawal

        if over := self._find_end("withdraw"):
            raise InputRefusedError(over, reason="over")
        self._append(make_withdrawal(self._fold, id, by, time.time()))

    def clear_pending_input(self, *, by: str | None = None) -> tuple[str, ...]:
        """Take back every added input that the model hasn't been shown; return their ids, in order.

        Raises:
            InputRefusedError: if the run is over, and an input waited when it ended.

        Example:
            from agentloop import Agent, RunConfig, Runner, tool
            from agentloop.config.conditions import MaxTurns
            from agentloop.testing import ScriptedModel, call, say

            @tool
            def look() -> str:
                "Look."
                return "a cat"

            agent = Agent("a", model=ScriptedModel([call("look"), say("ok")]), tools=[look])
            state = Runner.run_sync(agent, "Look.", run_config=RunConfig(stop_when=MaxTurns(1))).to_state()
            state.add_input("In French, please.")
            print(state.clear_pending_input())  # ('input_1',)
        """
        waiting = tuple(self._fold.inbox)
        for name in waiting:
            self.withdraw(name, by=by)
        return waiting

    def _find_end(self, what: str) -> str:
        """Return why no run segment may continue, as the message of *what*; an empty text if one may."""
        try:
            check_goes_on(self._fold)
        except StateError as error:
            return f"{what}: {error}"
        return ""

    # -- storing

    async def append_to(self, journal: Journal) -> None:
        """Append what was given on this object to *journal*, from which it was read: verdicts, inputs, withdrawals.

        The run's own process isn't needed, and the process that resumes the run from the journal finds them. The
        journal is read first, and has to hold what the state was read with: of several states of one journal one can
        append. A run that is under way has its journal to itself.

        Cancellation: as `Journal.append`. Until this has returned, the records may be in the journal or not. A second
            call finds out, and appends what is missing.

        Raises:
            StateError: a secret answer was given, and the journal has no codec: no run could read it there. Nothing is
                appended.
            JournalError: if something else has written to the journal since, a run or another call has it, or it isn't
                the one that the state was read from. Nothing is appended.

        Example:
            import tempfile
            from pathlib import Path

            import anyio
            from agentloop import Agent, Runner, RunState, tool
            from agentloop.journal import FileJournal
            from agentloop.testing import ScriptedModel, call, say

            @tool(needs_approval=True)
            def pay(amount: int) -> str:
                "Pay."
                return f"paid {amount}"

            async def main(path):
                agent = Agent("a", model=ScriptedModel([call("pay", {"amount": 5}), say("ok")]), tools=[pay])
                async with FileJournal(path) as journal:
                    await Runner.run(agent, "Pay 5.", journal=journal)
                async with FileJournal(path) as journal:  # in another process
                    state = await RunState.from_journal(agent, journal)
                    state.add_input("And note it.")
                    await state.append_to(journal)
                async with FileJournal(path) as journal:
                    print(len((await RunState.from_journal(agent, journal)).inputs))  # 1

            with tempfile.TemporaryDirectory() as folder:
                anyio.run(main, Path(folder, "run.journal"))
        """
        while self._appending is not None:  # one call after the other
            await self._appending.wait()
        if len(self.records) == self._stored:
            await checkpoint()
            return
        release = claim(journal, liveness(current_token()))
        self._appending = done = anyio.Event()
        try:
            await self._append_given(journal)
        finally:
            release()
            self._appending = None
            done.set()

    async def _append_given(self, journal: Journal) -> None:
        """Append what *journal*, which is claimed, lacks, after a comparison of all that it holds.

        A call that was cancelled natively may have left records in it that aren't counted in `_stored`.
        """
        from agentloop._storage import state_codec as codec

        records, sealed_by = tuple(self.records), codec.codec_of(journal)
        lines = await codec.journal_lines(journal)
        held = await codec.read_lines_in_turns(lines, sealed_by) if lines else None
        known = len(held.records) if held is not None else 0
        as_plain = codec.line_encoder(None, self.converter)  # digests for secrets: equal records have equal lines
        if (
            held is None
            or not self._stored <= known <= len(records)
            or await collect_in_turns(map(as_plain, held.records))
            != await collect_in_turns(map(as_plain, records[:known]))
        ):
            raise JournalError(
                f"append_to: the state was made from {self._stored} records, and the journal holds {known}, or others: "
                "read the state from the journal again, and give it once more"
            )
        if sealed_by is None:
            _check_kept(records[known:])
        given = list(map(codec.line_encoder(sealed_by, self.converter), records[known:]))
        if not held.is_current:  # a journal of an older schema continues in this one
            graph = AgentGraph(self.agent).describe_as_text()
            given.insert(0, codec.header(self.run_id, graph, sealed=sealed_by is not None))
        if known < len(records):
            await journal.append(given)
        self._stored = self._found = len(records)

    def to_json(
        self,
        *,
        context_serializer: Callable[[Any], Any] | None = None,
        strict_context: bool = False,
        codec: Codec | None = None,
        converter: BaseConverter | None = None,
    ) -> dict[str, Any]:
        """Return the state as JSON values: schema version, the agents' graph, the context, the records.

        Args:
            context_serializer: A callable that returns JSON values for the application's object. Without it a mapping
                is stored as it is, and another object is left out with a warning.
            strict_context: True to raise in place of leaving the object out.
            codec: The codec that seals the values that tools mark secret; without it they are stored as digests.
            converter: The application's own cattrs converter; the run's, `RunConfig.converter`, if not given. It writes
                values of the application's types and, without a *context_serializer*, the context.

        Raises:
            StateError: if the context can't be stored and *strict_context* is True.
        """
        from agentloop._storage.state_codec import state_to_json
        from agentloop._storage.withholding import Secrets

        secrets = Secrets(codec, converter or self.converter)
        return state_to_json(self._make_stored(), secrets, context_serializer, strict_context)

    def to_string(
        self,
        *,
        context_serializer: Callable[[Any], Any] | None = None,
        strict_context: bool = False,
        codec: Codec | None = None,
        converter: BaseConverter | None = None,
        key: Keys | None = None,
        bound_to: str | None = None,
    ) -> str:
        """Return `to_json` as canonical JSON text; with *key*, sealed: see `SealKey`.

        Args:
            context_serializer: As for `to_json`.
            strict_context: As for `to_json`.
            codec: As for `to_json`.
            converter: As for `to_json`.
            key: The key that seals the state.
            bound_to: The name under which you keep the state, such as its row's id. It becomes a part of the seal:
                `from_string(..., bound_to=)` then refuses a state that was sealed under another name, so that two of
                your states can't be exchanged unnoticed.

        Raises:
            UserError: if there is a *bound_to* and no *key*.
            StateError: as for `to_json`.
        """
        from agentloop._storage.state_codec import check_bound_to, seal_state, state_to_json, state_to_string
        from agentloop._storage.withholding import Secrets

        check_bound_to(bound_to, key)
        stored, secrets = self._make_stored(), Secrets(codec, converter or self.converter)
        if key is None:
            return state_to_string(stored, secrets, context_serializer, strict_context)
        return seal_state(state_to_json(stored, secrets, context_serializer, strict_context), key, bound_to)

    def _make_stored(self) -> Stored:
        from agentloop._storage.state_codec import Stored

        graph = self.graph_before or AgentGraph(self.agent).describe()
        return Stored(tuple(self.records), self.context, graph)

    @classmethod
    def from_json(
        cls,
        agent: Agent[Any, Any],
        data: Mapping[str, Any],
        *,
        context: Any = None,
        context_deserializer: Callable[[Any], Any] | None = None,
        context_type: Any = None,
        codec: Codec | None = None,
        converter: BaseConverter | None = None,
        key: Keys | None = None,
        bound_to: str | None = None,
    ) -> RunState:
        """Return the state stored in *data*, the result of `to_json` or the parsed text of `to_string`.

        Args:
            agent: The agent that the run began with, as it is defined now.
            data: JSON values. They are never imported or executed.
            context: The application's object, in place of a stored one.
            context_deserializer: A callable that returns the application's object for the stored JSON values.
            context_type: The type of the application's object, made of the stored JSON values without a
                *context_deserializer*.
            codec: The codec that opens the sealed values; without it a run that needs one of them can't resume.
            converter: The application's own cattrs converter. It reads the context, if its type is given, and the
                arguments given with a verdict.
            key: The key of a sealed state, a `SealKey` or keys by id.
            bound_to: The name for which the state was sealed; see `to_string`.

        Raises:
            UserError: if there is a *bound_to* and no *key*.
            StateError: if the schema is unknown, a record doesn't fit, the graph lacks an agent that pending work
                needs, or a seal is broken or missing; names the fault and its position.
        """
        from agentloop._storage.state_codec import state_from_json

        stored = state_from_json(
            data,
            context=context,
            context_deserializer=context_deserializer,
            context_type=context_type,
            key=key,
            bound_to=bound_to,
            codec=codec,
            converter=converter,
        )
        return cls._restore(agent, stored, stored.context, converter)

    @classmethod
    def from_string(cls, agent: Agent[Any, Any], text: str, **options: Any) -> RunState:
        """Return the state stored in *text*, the result of `to_string`; options and errors are those of `from_json`."""
        from agentloop._storage.state_codec import text_to_data

        return cls.from_json(agent, text_to_data(text), **options)

    @classmethod
    async def from_journal(
        cls,
        agent: Agent[Any, Any],
        journal: Journal,
        *,
        context: Any = None,
        converter: BaseConverter | None = None,
    ) -> RunState:
        """Return the state that *journal* holds, after a crash, too. Does not close the journal.

        *converter*, the application's own, reads the arguments given with a verdict.

        Raises:
            StateError: as for `from_json`.
            JournalError: if the journal is empty, broken, or can't be read.
        """
        from agentloop._storage.state_codec import state_from_journal

        return await cls._restore_in_turns(agent, await state_from_journal(journal), context, converter)

    @classmethod
    async def _find_in(cls, agent: Agent[Any, Any], journal: Journal) -> RunState | None:
        """Return the state that *journal* holds, as `from_journal`; None if no run has written to it."""
        from agentloop._storage.state_codec import find_in_journal

        found = await find_in_journal(journal)
        return None if found is None else await cls._restore_in_turns(agent, found, None, None)

    @classmethod
    def _restore(
        cls, agent: Agent[Any, Any], stored: Stored, context: Any, converter: BaseConverter | None
    ) -> RunState:
        state = cls._of_stored(agent, stored, context, converter)
        check_agents(state)
        return state

    @classmethod
    async def _restore_in_turns(
        cls, agent: Agent[Any, Any], stored: Stored, context: Any, converter: BaseConverter | None
    ) -> RunState:
        """Return the state as `_restore`; other tasks have their turns while a long log is folded."""
        state, fold = cls._of_stored(agent, stored, context, converter), RunFold()
        for begin in range(0, len(state.records), ITEMS_A_TURN):
            if begin:
                await checkpoint()
            apply_checked(fold, state.records[begin : begin + ITEMS_A_TURN])
        state._made = fold
        check_agents(state)
        return state

    @classmethod
    def _of_stored(
        cls, agent: Agent[Any, Any], stored: Stored, context: Any, converter: BaseConverter | None
    ) -> RunState:
        state = cls(agent, stored.records, context=context)
        state.converter = converter
        state.graph_before = stored.graph
        return state


def apply_checked(fold: RunFold, records: Sequence[r.Record]) -> None:
    """Apply *records* to *fold*, each after a check that it may follow.

    Raises:
        StateError: if a record doesn't fit those before it; names its index and kind.
    """
    from agentloop._core.transitions import check_next  # only a run that is read back needs it

    index, record = 0, None
    try:
        for index, record in enumerate(records, len(fold.records)):  # noqa: B007 - for the message
            check_next(fold, record)
            fold.apply(record)
    except ValueError as error:
        kind = type(record).__name__
        raise StateError(f"record {index} ({kind}) doesn't fit those before it: {error}") from error


Place: TypeAlias = tuple[tuple[str, ...], str]
"""Path and id of a call."""
OpenRequests: TypeAlias = Mapping[Place, Callable[[], r.ApprovalRequested]]
"""Approval requests not recorded yet, by path and call id: the callbacks that decide on them are still running."""


def verdict_on(
    fold: RunFold,
    call: Interruption | str,
    graph: AgentGraph,
    open_requests: OpenRequests | None = None,
    *,
    own: Sequence[r.Record] = (),
    acted_on: Container[Place] = (),
    converter: BaseConverter | None = None,
    replace: bool = False,
    **verdict: Any,
) -> r.VerdictGiven:
    """Return the record of a verdict on a call of the tree of *fold*: one that waits, or has one of *open_requests*.

    With *replace*, or where its verdict is one of the caller's *own* records, it may be a call that has one already, as
    long as it hasn't started, and is not *acted_on*.

    Raises:
        StateError: if no such call waits (says what became of it), or the interruption is of another call than the one
            that waits.
        UserError: if the arguments given with the verdict don't fit the call's tool in *graph*; names every fault. Also
            if another part of the verdict has a wrong type.
    """
    for name, validator in _PARTS_OF_VERDICTS.items():
        if (part := verdict.get(name)) is not None:
            check(name, validator, part)
    check("replace", _FLAG, replace)
    if isinstance(call, CallToAnswer):
        raise StateError(f"call {call.call.call_id!r} waits for its answer, not for a verdict: answer it")
    path, call_id = _locate_call(fold, call, open_requests or {})
    inner = fold.at(path)
    state = inner.calls.get(call_id) if inner is not None else None
    request = state.approval if state is not None else None
    if open_requests and (path, call_id) in open_requests:
        request = open_requests[path, call_id]()
    if inner is None or state is None or request is None:
        raise StateError(f"no call {call_id!r} waits for a verdict")
    replace = replace or any(one is inner.verdict(state) for one in own)
    if obstacle := _find_obstacle(fold, inner, state, acted_on, replace):
        raise StateError(f"no call {call_id!r} waits for a verdict: {obstacle}")
    if isinstance(call, ApprovalRequest):
        shown = state.call.arguments if request.arguments is None else request.arguments
        if (call.agent, call.call.name, call.call.namespace) != (request.agent, state.call.name, state.call.namespace):
            raise StateError(
                f"the interruption of call {call_id!r} is of another tool or agent than the one that waits"
            )
        if not have_same_arguments(shown, call.call.arguments, inner.limits):
            raise StateError(f"the interruption of call {call_id!r} has other arguments than the call that waits")
    if (edited := verdict.get("arguments")) is not None:
        verdict["arguments"] = _check_edited(edited, state.call, graph.find(request.agent), inner.limits, converter)
    return r.VerdictGiven(
        *(path, inner.turn, time.time(), call_id, request.agent, request.tool, request.digest),
        definition=request.definition,
        **verdict,
    )


def answer_to(
    root: RunFold, call: Interruption | str, value: Any, at: float, *, error: str | None = None, by: str | None = None
) -> r.CallAnswered:
    """Return the record of the answer to a call of the tree of *root*, given at the wall-clock time *at*.

    Raises:
        StateError: no such call waits for an answer; says what became of it.
        UserError: the answer doesn't fit the schema of the call's answers, or has a wrong type.
    """
    check("error", _PART, error)
    check("by", _PART, by)
    if error is not None and value is not None:
        raise UserValueError("answer: expected a value or an error, got both")
    path, call_id = _locate_question(root, call)
    fold = root.at(path)
    state = fold.calls.get(call_id) if fold is not None else None
    asked = state.question if state is not None else None
    if fold is None or state is None or asked is None:
        if state is not None and state.approval is not None and state.outcome is None and not state.attempt:
            raise StateError(f"no call {call_id!r} waits for an answer: it waits for a verdict, approve or reject it")
        raise StateError(f"no call {call_id!r} waits for an answer")
    if isinstance(call, CallToAnswer) and (call.agent, call.call.name) != (asked.agent, state.call.name):
        raise StateError(f"the interruption of call {call_id!r} is of another tool or agent than the one that waits")
    if obstacle := _find_obstacle_to_answer(root, fold, state, asked, at):
        raise StateError(f"no call {call_id!r} waits for an answer: {obstacle}")
    if error is not None:
        return r.CallAnswered(path, fold.turn, at, call_id, error, failed=True, by=by)
    value, named = as_json(value), not fold.gives_secret(state.call)
    if (wrong := find_violation(value, asked.returns, names_keys=named)) is not None:
        raise UserValueError(f"the answer to call {call_id!r} of tool {state.call.name!r} doesn't fit: {wrong}")
    return r.CallAnswered(path, fold.turn, at, call_id, value, by=by)


def as_json(value: Any) -> Any:
    """Return a copy of *value* in JSON's own types.

    Raises:
        UserTypeError: it has no JSON form.
    """
    import json

    try:
        return json.loads(json.dumps(value, ensure_ascii=False, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as fault:
        raise UserTypeError(f"answer: it has no JSON form: {fault}") from None


def _check_kept(records: Iterable[r.Record]) -> None:
    """Check that a journal without a codec keeps what *records* say.

    Raises:
        StateError: it would hold an answer as a digest only.
    """
    for one in records:
        if isinstance(one, r.CallAnswered) and one.secret:
            raise StateError(
                f"append_to: the answer to call {one.call_id!r} is secret, and this journal would keep only a digest: "
                "give the journal a codec, or run the agent with this state and the journal"
            )


def describe_answer(answer: r.CallAnswered) -> str:
    """Return that *answer* was given, and by whom, as far as it says."""
    return "it was answered" if answer.by is None else f"it was answered by {shorten(answer.by, 80)!r}"


def _find_obstacle_to_answer(root: RunFold, fold: RunFold, call: CallState, asked: r.AnswerRequested, at: float) -> str:
    """Return why *call*, of the run of *fold*, takes no answer at the time *at*; an empty text if it takes one."""
    if call.answer is not None:
        return "nobody has answered in time" if call.answer.late else describe_answer(call.answer)
    if call.outcome is not None or not fold.batch_open:
        return "it has settled"
    if obstacle := _find_obstacle_around(root, fold):
        return obstacle
    if call.call.call_id in fold.cancel_requests:
        return "it was cancelled"
    if asked.expires_at is not None and at >= asked.expires_at:
        return f"its time, {asked.expires_at - asked.at:g} seconds, has passed"
    return ""


def _find_obstacle_around(root: RunFold, fold: RunFold) -> str:
    """Return why the run of *fold* won't continue although its own calls wait; an empty text if it will."""
    for depth, call_id in enumerate(fold.path):
        outer = root.at(fold.path[:depth])
        if outer is not None and outer.calls[call_id].outcome is not None:
            return f"the call of the agent around it, {call_id!r}, has settled"
        if outer is not None and call_id in outer.cancel_requests:
            return f"the call of the agent around it, {call_id!r}, was cancelled"
    return ""


def _locate_question(root: RunFold, call: Interruption | str) -> tuple[tuple[str, ...], str]:
    if isinstance(call, CallToAnswer):
        return call.path, call.call.call_id
    if isinstance(call, ApprovalRequest):
        raise StateError(f"call {call.call.call_id!r} waits for a verdict, not for an answer: approve or reject it")
    if not isinstance(call, str):
        raise UserTypeError(f"call: expected an interruption or a call id, got {call!r}")
    holders = [fold for fold in _walk_folds(root) if call in fold.calls and fold.calls[call].question is not None]
    waiting = [fold for fold in holders if fold.calls[call].answer is None and fold.calls[call].outcome is None]
    found = waiting or holders
    if len(found) > 1:
        raise StateError(f"call id {call!r} waits in {len(found)} runs of the tree: give the interruption itself")
    return (found[0].path if found else ()), call


_TEXT, _FLAG = NAMES.text(), NAMES.flag()
_PART = optional(_TEXT)
_PARTS_OF_VERDICTS = {"by": _TEXT, "message": _TEXT, "always": _FLAG}


REPLACE_HINT = "; with replace=True another verdict takes its place, until the call starts"


def describe_verdict(verdict: r.VerdictGiven) -> str:
    """Return how *verdict* decided, and who gave it, as far as it says."""
    text = "approved" if verdict.approved else "rejected"
    return text if verdict.by is None else f"{text} by {shorten(verdict.by, 80)!r}"


def _find_obstacle(
    root: RunFold, fold: RunFold, call: CallState, acted_on: Container[Place] = (), replace: bool = False
) -> str:
    """Return why *call*, of the run of *fold*, takes no verdict now; an empty text if it takes one."""
    given, call_id = fold.verdict(call), call.call.call_id
    said = "" if given is None else f"it was {describe_verdict(given)}"
    if given is not None and given.call_id != call_id:
        said += f" with call {given.call_id!r}, for all calls of the tool"
    if call.outcome is not None or not fold.batch_open:
        return f"{said}, and has settled" if said else "it has settled"
    if obstacle := _find_obstacle_around(root, fold):
        return obstacle
    if call.attempt:
        return f"{said}, and has started" if said else "it has started"
    if given is None:
        return ""
    if not replace:
        return f"{said}{REPLACE_HINT}"
    return f"{said}, and the run acts on it already" if (fold.path, call_id) in acted_on else ""


def _check_edited(
    text: str,
    call: ToolCall,
    agent: Agent[Any, Any] | None,
    limits: JsonLimits,
    converter: BaseConverter | None,
) -> str:
    """Return the arguments given with a verdict as the call's tool takes them: a custom tool its free text."""
    if call.kind == "approval":
        raise UserError(f"call {call.call_id!r} can't be given other arguments: the provider runs it with its own")
    tools = {tool.lookup_key: tool for tool in agent.functions} if agent is not None else {}
    tool = find_tool(tools, call.name, call.namespace)
    if tool is None:  # its source is resolved only within a run, where planning checks the arguments
        return text
    if tool.kind == "custom":
        text = tool.write_arguments(parse_object(text, limits, tool=tool.name, quoted=not tool.secret))
    fault = read_arguments(tool, text, limits, converter).fault
    if fault is not None:
        raise UserError(f"the arguments given for call {call.call_id!r} don't fit: {fault}")
    return text


def _locate_call(
    fold: RunFold, call: ApprovalRequest | ToolCall | str, open_requests: OpenRequests
) -> tuple[tuple[str, ...], str]:
    if isinstance(call, ApprovalRequest):
        return call.path, call.call.call_id
    if isinstance(call, ToolCall):
        call = call.call_id
    if not isinstance(call, str):
        raise UserTypeError(f"call: expected an interruption or a call id, got {call!r}")
    asked = {*_find_asking_runs(fold, call), *(path for path, call_id in open_requests if call_id == call)}
    found = sorted({path for path in asked if _waits_in(fold, path, call)} or asked)
    if len(found) > 1:
        raise StateError(f"call id {call!r} waits in {len(found)} runs of the tree: give the interruption itself")
    return (found[0] if found else ()), call


def _waits_in(root: RunFold, path: tuple[str, ...], call_id: str) -> bool:
    fold = root.at(path)
    call = fold.calls.get(call_id) if fold is not None else None
    return fold is not None and call is not None and not _find_obstacle(root, fold, call)


def _find_asking_runs(fold: RunFold, call_id: str) -> set[tuple[str, ...]]:
    """Return the paths of the runs in which a call of that id has an approval request and no outcome."""
    paths: set[tuple[str, ...]] = set()
    state = fold.calls.get(call_id)
    if state is not None and state.approval is not None and state.outcome is None:
        paths.add(fold.path)
    for call in fold.due_calls() if fold.batch_open and fold.nested else ():
        nested = fold.nested.get(call.call.call_id)
        if nested is not None:
            paths |= _find_asking_runs(nested, call_id)
    return paths


def as_text(arguments: str | Mapping[str, Any]) -> str:
    """Return edited arguments as JSON text.

    Raises:
        UserTypeError, UserValueError: if *arguments* are neither a mapping that has a JSON form nor text of a JSON
            object.
    """
    if isinstance(arguments, Mapping):
        import json

        try:
            return json.dumps(dict(arguments), ensure_ascii=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise UserTypeError(f"arguments: they have no JSON form: {error}") from None
    if not isinstance(arguments, str):
        raise UserTypeError(f"arguments: expected JSON text or a mapping, got {arguments!r}")
    try:
        # Not quoted in the error: the call may have secret arguments, and the caller knows the text anyway.
        parse_object(arguments, JsonLimits(), tool="approve", quoted=False)
    except ModelBehaviorError as error:
        fault = str(error).removeprefix(
            "Arguments of tool approve "
        )  # "approve" isn't a tool; the caller must not see it as one
        raise UserValueError(f"the arguments given don't fit: they {fault}") from None
    return arguments


def check_goes_on(fold: RunFold) -> None:
    """Check that another run segment may continue from *fold*.

    Raises:
        StateError: if the run is over; names the call whose failure ended it, if one did.
    """
    ended = fold.ended
    if fold.started is None:
        raise StateError("the log is of no run: it has no RunStarted")
    broken = fold.unreported_failure
    if broken is not None:
        raise StateError(
            f"run {fold.run_id} is over: call {broken.call_id!r} of tool {broken.tool!r} failed: {broken.error}"
        )
    if fold.unreported_error is not None:
        raise StateError(f"run {fold.run_id} is over: {fold.unreported_error}")
    if ended is None or ended.resumable:
        return
    if ended.status == "completed":
        raise StateError(f"run {fold.run_id} is over: it has completed")
    failure = fold.ending_failure
    if failure is not None:
        raise StateError(
            f"run {fold.run_id} is over: call {failure.call_id!r} of tool {failure.tool!r} failed: {failure.error}"
        )
    raise StateError(f"run {fold.run_id} is over: it failed with {ended.error}")


def check_agents(state: RunState) -> None:
    """Check that the graph has the agents that the run needs to resume.

    Raises:
        StateError: if one is missing; names it.
    """
    graph = AgentGraph(state.agent)
    for fold in _walk_folds(state._fold):
        if fold.started is not None and (fold.ended is None or fold.ended.resumable):
            graph.get(fold.agent)
        for key in sorted(fold.tool_users):
            if graph.find(key) is None:
                logger.warning("the state names an agent %r that the graph doesn't have; it is ignored", key)


def _walk_folds(fold: RunFold) -> Iterator[RunFold]:
    yield fold
    for nested in fold.nested.values():
        yield from _walk_folds(nested)


def check_graph(state: RunState, fold: RunFold, graph: AgentGraph) -> tuple[str, ...]:
    """Return the changes of the agents' graph since the latest one that the log of *state* tells, in words.

    Empty if an earlier version of the library has logged the same ones. *fold* is of *state*.

    Raises:
        StateError: if a pending call's tool has another schema than at the time of the call.
    """
    if state.graph_before is None:
        return ()
    last = next((record for record in reversed(state.records) if isinstance(record, r.GraphChanged)), None)
    before = state.graph_before if last is None or last.graph is None else last.graph
    now = graph.describe()
    found = changes(before, now)
    if found:
        _check_pending(fold, before, now)
    return () if last is not None and last.graph is None and last.changes == found else found


def _check_pending(fold: RunFold, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for call in fold.due_calls() if fold.batch_open else ():
        nested = fold.nested.get(call.call.call_id)
        if nested is not None:
            _check_pending(nested, before, now)
        name = qualify_name(call.call.name, call.call.namespace)
        for key in (name, f"deferred:{name}"):
            old = _find_schema(before, fold.agent, key)
            new = _find_schema(now, fold.agent, key)
            if old is not None and new is not None and old != new:
                raise StateError(
                    f"call {call.call.call_id!r} waits for tool {key!r} of agent {fold.agent!r}, whose schema has "
                    "changed since the call was made"
                )


def _find_schema(graph: Mapping[str, Any], agent: str, tool: str) -> Any:
    agents = graph.get("agents") or {}
    return ((agents.get(agent) or {}).get("tools") or {}).get(tool, {}).get("schema")


# -- events


_EVENT_ID = re.compile(r"(0|[1-9][0-9]{0,17})\.(0|[1-9][0-9]{0,17})", re.ASCII)


def parse_event_id(text: str) -> tuple[int, int]:
    """Return the numbers of an event's id, `RECORD.INDEX`; ids are ordered as these are.

    Raises:
        UserTypeError, UserValueError: if *text* isn't such an id.
    """
    if not isinstance(text, str):
        raise UserTypeError(f"event id: expected text such as '17.0', got {text!r}")
    found = _EVENT_ID.fullmatch(text)
    if found is None:
        raise UserValueError(f"event id: expected text such as '17.0', got {text[:60]!r}")
    return int(found[1]), int(found[2])


def _read_events(
    records: Iterable[r.Record], graph: AgentGraph, last: tuple[int, int] | None
) -> Iterator[tuple[str, Event]]:
    """Yield each event of a stored log with its id, in order; with *last*, those that follow the event of that id.

    An agent that *graph* lacks is shown as one without a definition, whose name is its key.
    """
    root = RunFold()

    def find_agent(path: tuple[str, ...]) -> Agent[Any, Any]:
        fold = root.at(path)
        assert fold is not None  # its record has been folded
        return graph.find(fold.agent) or Agent(fold.agent)

    for number, record in enumerate(records):
        record = root.apply(record)
        if last is not None and number < last[0]:
            continue
        for index, event in enumerate(events_of(record, root, find_agent)):
            if last is None or (number, index) > last:
                yield f"{number}.{index}", event
