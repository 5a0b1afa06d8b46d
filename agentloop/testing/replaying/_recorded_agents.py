"""The agents of a replay: copies without the application's code that the engine calls directly (`lab._copies`).

These are models, hooks and the functions that price a call or a request. Limits are copied, so that other runs hold
nothing of them.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from decimal import Decimal
from typing import Any

import attrs

from agentloop import records as r
from agentloop._common.error_text import summary_parts
from agentloop.abc import Model, ModelProvider
from agentloop.agents import Agent, implicit_settings
from agentloop.agents._sourced_tools import ASKED, SourcedTools
from agentloop.config import RunConfig
from agentloop.config.hooks import AgentHooks, RunHooks
from agentloop.exceptions import UserError
from agentloop.guardrails import BlockedOutputArgs, tool_input_guardrail, tool_output_guardrail
from agentloop.items import ToolCall, ToolOutput
from agentloop.lab._copies import AgentCopies, ClosedSession
from agentloop.limits import Capacity, Rate
from agentloop.model_events import ModelEvent, ModelFeature, ModelRequest
from agentloop.settings import ModelSettings
from agentloop.testing.replaying._comparison import SLACK
from agentloop.testing.replaying._effects import ReplayEffects
from agentloop.testing.replaying._recorded import Call, Path, RecordedSegment, shows_admission
from agentloop.testing.scripted import ALL_FEATURES
from agentloop.tools import AgentCall, ExternalBody, FunctionTool, PythonBody, RawBody, ToolSearch
from agentloop.usage import RequestUsage


class ClosedModel(Model):
    """A placeholder for *model*, or for one that isn't known. A replay makes no request to it."""

    def __init__(self, model: object = None) -> None:
        self._settings = implicit_settings(model)
        searches: frozenset[ModelFeature] = frozenset({"tool_search"})
        self._features = searches | (model.features if isinstance(model, Model) else ALL_FEATURES)

    @property
    def default_settings(self) -> ModelSettings:
        """The settings of the replaced model."""
        return self._settings

    @property
    def features(self) -> frozenset[ModelFeature]:
        """The features of the replaced model; of one that isn't known every feature, as the log may hold any.

        With a search for tools always: the log says which search was used, and the copies of tools repeat that.
        """
        return self._features

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]:
        """Raise UserError."""
        raise UserError("a replay asks no model")


class ClosedModels(ModelProvider):
    """A provider of placeholders."""

    def get_model(self, name: str) -> Model:
        """Return a placeholder, for any *name*."""
        return ClosedModel()


class HooksOfAgents(AgentHooks):
    """Hooks of every copied agent: they wait for records, since the recorded hooks may have taken time."""

    def __init__(self, effects: ReplayEffects) -> None:
        self._effects = effects

    async def _wait(self, ctx: Any) -> None:
        await self._effects.run_hook(ctx._run.path)

    async def on_start(self, ctx: Any, agent: Any) -> None:
        """Wait for the run's next record."""
        await self._wait(ctx)

    async def on_end(self, ctx: Any, agent: Any, output: Any) -> None:
        """Wait for the run's next record."""
        await self._wait(ctx)

    async def on_handoff_out(self, ctx: Any, agent: Any, to_agent: Any) -> None:
        """Wait for the run's next record."""
        await self._wait(ctx)

    async def on_handoff_in(self, ctx: Any, agent: Any, from_agent: Any) -> None:
        """Wait for the run's next record."""
        await self._wait(ctx)

    async def on_llm_start(self, ctx: Any, agent: Any, system: Any, input: Any) -> None:
        """Wait for the run's next record."""
        await self._wait(ctx)

    async def on_llm_end(self, ctx: Any, agent: Any, response: Any) -> None:
        """Wait for the run's next record."""
        await self._wait(ctx)

    async def on_tool_start(self, ctx: Any, agent: Any, tool: Any) -> None:
        """Raise the recorded error of a start hook, if there is one."""
        await self._effects.start_hook(ctx._run.path, ctx.tool_call_id)

    async def on_tool_end(self, ctx: Any, agent: Any, tool: Any, outcome: Any) -> None:
        """Wait for the call's next record."""
        await self._effects.end_hook(ctx._run.path, ctx.tool_call_id)


class HooksOfRuns(RunHooks):
    """Hooks of a run: `on_run_end` waits for its last record, because the recorded hook may have been slow."""

    def __init__(self, effects: ReplayEffects) -> None:
        self._effects = effects

    async def on_run_end(self, ctx: Any, outcome: Any) -> None:
        """Wait for the run's last record, and raise the recorded error of the hook, if there is one."""
        await self._effects.run_end_hook(ctx._run.path, outcome)


_CALLED = frozenset(
    {"is_enabled", "needs_approval", "timeout_error_function", "failure_error_function", "custom_data_extractor"}
)
"""Options whose description only says that there is a function: the log has what it answered."""


_GUARDRAILS: Mapping[str, Any] = {
    "tool_input_guardrails": tool_input_guardrail,
    "tool_output_guardrails": tool_output_guardrail,
}


def _refuse_body(*_: Any, **__: Any) -> Any:
    raise UserError("a replay runs no body")


class _Unread:
    """The structured input of an agent tool whose secrets the log doesn't have: any arguments fit it."""

    def using(self, _: object) -> _Unread:
        return self

    def parse(self, _: str, __: object) -> None:
        return None


class RecordedAgents(AgentCopies):
    """Copies of agents, one for each given agent, for a replay through *effects*.

    Owned by one attempt of a replay. Copies of limits are shared between the copies as the originals are.
    """

    def __init__(self, effects: ReplayEffects) -> None:
        super().__init__()
        self._effects = effects
        self._limits: dict[int, Any] = {}
        self.hooks = HooksOfAgents(effects)
        self._sourced: dict[tuple[Path, str], SourcedTools] = {}
        self._described_limits: dict[tuple[Any, ...], Capacity | Rate] = {}
        self._charged: r.ModelResponded | None = None
        effects.restore_tools = self._restore_tools

    def copy_model(self, given: Agent[Any, Any]) -> str | Model | None:
        """Return a placeholder.

        The name of a model stays: it tells agents of one name apart, and the configuration's provider opens it. An
        agent without a model gets one, because the configuration of the run may have given it one.
        """
        return given.model if isinstance(given.model, str) else ClosedModel(given.model)

    def config(self, given: RunConfig) -> RunConfig:
        """Return a copy of *given* for a replay: with these effects and recorded prices, without instruments."""
        model = given.model if isinstance(given.model, str) or given.model is None else ClosedModel(given.model)
        blocked = given.output_guardrail_blocked_message
        if given.tool_execution.pre_approval_tool_input_guardrails:
            self._effects.asked_before_admission = True
        return attrs.evolve(
            given,
            model=model,
            model_provider=ClosedModels(),
            effects=self._effects,
            instruments=(),
            model_limits=(),  # the log has the waits
            tracing=attrs.evolve(given.tracing, disabled=True),
            sandbox=None,  # the driver says in which segments there is one
            price=None if given.price is None else self._find_recorded_cost,
            hosted_price=None if given.hosted_price is None else self._find_recorded_cost,
            output_guardrail_blocked_message=self._find_blocked_text if callable(blocked) else blocked,
        )

    def copy_tool(self, tool: FunctionTool) -> FunctionTool:
        """Return a copy that runs no body, with recorded costs."""
        body: Any = tool.body
        recorded = self._effects.recorded
        is_hidden = tool.name in recorded.hidden  # the digests in place of its secrets needn't fit the schema
        if isinstance(body, ExternalBody):
            body = body.replace(check=None) if is_hidden else body
        elif isinstance(body, AgentCall) and (not is_hidden or tool.name in recorded.entered):
            body = self._copy_agent_call(body, is_hidden)
        elif is_hidden:
            body = RawBody(_refuse_body)
        elif isinstance(body, ToolSearch):
            body = body.replace(fn=_refuse_body, native=not recorded.shows(tool.name))
        elif isinstance(body, PythonBody):
            body = body.replace(fn=_refuse_body)
        else:
            body = RawBody(_refuse_body)
        return attrs.evolve(
            tool,
            body=body,
            on_invoke_tool=_refuse_body,
            capacity=tuple(self._copy_limit(limit, tool.name) for limit in tool.capacity),
            cost=None if tool.cost is None else self._make_cost(tool.name),
        )

    def _copy_agent_call(self, body: AgentCall, is_hidden: bool) -> AgentCall:
        if is_hidden:  # the nested run begins with the input that the log has
            unread: Any = _Unread()
            body = attrs.evolve(body, typed=unread, input_builder=_refuse_body)
        return attrs.evolve(
            body,
            agent=self.copy_agent(body.agent),
            run_config=None if body.run_config is None else self.config(body.run_config),
            session=None if body.session is None else ClosedSession(),
            hooks=None if body.hooks is None else HooksOfRuns(self._effects),
            on_stream=None,
        )

    # -- tools from sources

    def _restore_tools(self, path: Path, place: str, described: list[dict[str, Any]] | None) -> SourcedTools:
        """Return placeholders for the tools of a source: they decide as the recorded ones."""
        earlier = self._sourced.get((path, place))
        if described is None and earlier is not None:
            return earlier
        index = self._effects.find(r.RunEnded, path)
        error = "" if index is None else str(getattr(self._effects.records[index], "error", None))
        tools = tuple([self._find_given(path, one, error) or self._make_tool(one) for one in described or ()])
        told = re.search("source '(.*?)' has a tool named", error)  # where each of its tools has the name of an own one
        name = next((one["source"] for one in described or () if "source" in one), told[1] if told else "")
        made = self._sourced[path, place] = SourcedTools(tools, described or [], name)
        return made

    def _find_given(self, path: Path, described: Mapping[str, Any], error: str) -> FunctionTool | None:
        """Return the agent's own tool, or the one of another source, that has this name: the source gave that very one.

        None if there is none, or if the log tells that the tool was another one: its run failed with *error* for that,
        or the application was asked whether it is enabled.
        """
        name = ".".join(filter(None, (described.get("namespace"), described["name"])))
        if f"has a tool named {name!r}" in error or f"have a tool named {name!r}" in error or "is_enabled" in described:
            return None
        if "source" not in described:
            return next(
                (one for one in self._effects.live_run(path).agent.functions if one.qualified_name == name), None
            )
        others = (made for (of, _), made in self._sourced.items() if of == path)
        pairs = (pair for made in others for pair in zip(made.described, made.tools, strict=True))
        return next((tool for one, tool in pairs if one == described), None)

    def _make_tool(self, described: Mapping[str, Any]) -> FunctionTool:
        name = described["name"]
        options: dict[str, Any] = {
            option: _refuse_body if value == ASKED and option in _CALLED else value
            for option, value in described.items()
            if option not in ("digest", "source")
        }
        for option, make in _GUARDRAILS.items():
            options[option] = [make(_refuse_body, name=guard) for guard in described.get(option, ())]
        options["capacity"] = [self._restore_limit(one, name) for one in described.get("capacity", ())]
        if "cost" in described:
            options["cost"] = self._make_cost(name)
        body, returns = RawBody(_refuse_body, self._make_check(name)), options.pop("returns", None)
        if returns is not None:
            body = ExternalBody(body.fn, body.check, returns=returns)
        return FunctionTool(body=body, on_invoke_tool=_refuse_body, **options)

    def _restore_limit(self, described: list[Any], tool: str) -> Capacity | Rate:
        """Return the limit of this kind, name and size of *tool*: tools that shared one share it again."""
        key = tuple(described)
        found = self._described_limits.get(key)
        if found is None:
            kind, name, *size = described
            found = Rate(size[0], size[1], name) if kind == "rate" else Capacity(size[0], name)
            self._described_limits[key] = found
        self._effects.limited[found].add(tool)
        return found

    def forget_rates(self, entry: RecordedSegment) -> None:
        """Forget the starts that a rate has counted before *entry*, if another process ran that segment.

        A resume in the same process has the same rates; in another process they begin anew, and then *entry* may have
        more starts than the rates would have left it.
        """
        records, tools = self._effects.whole.records, self._effects.whole.tools
        for rate, names in self._effects.limited.items():
            if not isinstance(rate, Rate):
                continue
            starts: deque[float] = deque(maxlen=rate.count)
            counted: set[Call] = set()
            for index, record in enumerate(records[: entry.stop]):
                call: Any = (record.path, getattr(record, "call_id", None))
                asked_before = self._effects.asked_before_admission
                if tools.get(call) not in names or not shows_admission(record, asked_before=asked_before):
                    continue
                if call in counted and getattr(record, "attempt", 1) == 1:
                    continue
                full = len(starts) == rate.count and record.at - starts[0] < rate.per - SLACK
                if full and index >= entry.start:
                    rate._starts.clear()
                if not isinstance(record, r.CallSettled):
                    counted.add(call)
                    starts.append(record.at)

    def _copy_limit(self, given: Capacity | Rate, tool: str) -> Capacity | Rate:
        """Return the copy of a limit of *tool*: of the same size, and used by no other run."""
        found: Any = self._limits.get(id(given))
        if found is None:
            if isinstance(given, Rate):
                found = Rate(given.count, given.per, given.name)
            else:
                found = Capacity(given.total_tokens, given.name)
            self._limits[id(given)] = found
        self._effects.limited[found].add(tool)
        return found  # type: ignore[no-any-return]

    # -- recorded costs

    def _find_recorded_cost(self, name: str, priced: Any) -> Decimal:
        """Return the recorded cost of a whole answer for the part of it that is priced first, and 0 for the others."""
        wanted = self._effects.due
        if isinstance(priced, RequestUsage) and not isinstance(wanted, r.ModelResponded):
            return self._find_worst_cost(wanted)
        if not isinstance(wanted, r.ModelResponded) or wanted is self._charged:
            return Decimal(0)
        self._charged = wanted
        return Decimal(wanted.cost or 0)

    def _find_blocked_text(self, args: BlockedOutputArgs) -> str | None:
        """Return the recorded text in place of the output that is being judged; None if a crash has cut it off."""
        effects = self._effects
        left = effects.records[effects.cursor : effects.entry.stop]  # the first of them is a verdict on this output
        for one in left:
            if isinstance(one, r.HistoryReplaced) and (one.path, one.reason) == (left[0].path, "output_withheld"):
                first = one.items[0]  # the first output that was replaced
                return first.output if isinstance(first, ToolOutput) and isinstance(first.output, str) else None
        return None

    def _find_worst_cost(self, wanted: r.Record | None) -> Decimal:
        """Return the worst cost of a request that isn't made yet: one that is refused where the log says so."""
        if isinstance(wanted, r.HistoryReplaced) and wanted.reason == "usage_limits":
            return Decimal("1e1000")
        if not isinstance(wanted, r.RunEnded | r.SessionSaved | r.CleanupCut):
            return Decimal(0)
        effects = self._effects
        ends = (one for one in effects.records[effects.cursor : effects.entry.stop] if isinstance(one, r.RunEnded))
        found = re.search(r"cost \S+ and at most (\S+) more", next((one.error or "" for one in ends), ""))
        return Decimal(found[1]) if found is not None else Decimal(0)

    def _make_cost(self, tool: str) -> Any:
        """Return a cost function with the recorded costs of the calls of *tool*.

        A cost function gets only the arguments of a call, so they select the record.
        """

        def cost(arguments: Mapping[str, Any]) -> Decimal:
            effects = self._effects
            left = effects.records[effects.cursor : effects.entry.stop]
            starts = [one for one in left if isinstance(one, r.CallStarted) and one.tool == tool and one.attempt == 1]
            for started in starts:
                if _parse_json(started.arguments) == arguments:
                    return Decimal(started.cost or 0)
            own = (one for one in left if isinstance(one, r.GuardrailSettled | r.CallSettled))
            first = next((one for one in own if self._is_call(one, tool, arguments)), None)
            if first is not None and not (isinstance(first, r.CallSettled) and first.outcome.status == "skipped"):
                return Decimal(0)  # there was room for it, or it never came to be asked
            return Decimal("1e1000")  # the call didn't start: if a budget was the reason, its cost was too high

        return cost

    def _is_call(self, record: r.GuardrailSettled | r.CallSettled, tool: str, arguments: Mapping[str, Any]) -> bool:
        """Tell whether *record* is of a call of *tool* with these *arguments*."""
        run = None if self._effects.log is None else self._effects.log.state.at(record.path)
        state = None if run is None or record.call_id is None else run.calls.get(record.call_id)
        return state is not None and state.call.name == tool and _parse_json(state.call.arguments) == arguments

    def _make_check(self, tool: str) -> Any:
        """Return a check that finds the arguments of *tool* wrong which the log says were: it has no schema."""

        def check(arguments: Mapping[str, Any]) -> str | None:
            recorded = self._effects.recorded
            for record in recorded.records:
                if not isinstance(record, r.ModelResponded):
                    continue
                for item in record.response.items:
                    if isinstance(item, ToolCall) and item.name == tool and _parse_json(item.arguments) == arguments:
                        settled = self._effects.settled(record.path, item.call_id)
                        if settled is not None and settled.outcome.started_at is None:
                            return _find_fault(settled.error or "", tool)
            return None

        return check


def _find_fault(error: str, tool: str) -> str | None:
    """Return what was wrong with a call's arguments, if *error*, the summary of the call's, says so."""
    kind, message = summary_parts(error)
    said = f"Arguments of tool {tool} don't fit: "
    return message.removeprefix(said) if kind == "ModelBehaviorError" and message.startswith(said) else None


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
