"""The preparation of a turn: resolves an agent's definitions once, against the run's context, into one `TurnView`.

Calls the application's callables (instructions, `is_enabled`); does not request the model or append to the log itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import msgspec

from agentloop._common.checks import is_texts
from agentloop._common.digests import digestible
from agentloop._common.naming import takes
from agentloop._concurrency.backend import checkpoint_if_cancelled
from agentloop._core.call_identity import find_called_tool
from agentloop._core.turn_view import TurnView, find_prepared, keep_prepared
from agentloop._engine.runtime.live_run import LiveRun
from agentloop.abc import Model
from agentloop.agents import settings_for
from agentloop.context import Callback
from agentloop.exceptions import ModelTimeoutError, ModelTransportError, StateError, UserError, UserTypeError
from agentloop.handoffs import Handoff, target_of
from agentloop.model_events import ModelFeature
from agentloop.settings import ModelSettings, Prompt
from agentloop.tools import AgentCall, FunctionTool, HostedTool, PythonBody, ToolSearch

if TYPE_CHECKING:
    from agentloop._core.run_fold import RunFold
    from agentloop.agents import Agent
    from agentloop.agents._graph import AgentGraph
    from agentloop.agents._sourced_tools import SourcedTools
    from agentloop.config import RunConfig

DeclaredT = TypeVar("DeclaredT", FunctionTool, Handoff)


async def prepare_turn(run: LiveRun, *, answered: bool = False) -> TurnView:
    """Return the view of *run*'s next turn: instructions, enabled tools, settings, model.

    With *answered*, the view of the turn that the model has answered already, in an earlier run segment.

    Raises:
        ToolSourceError: a source of tools failed.
        UserError: for colliding tool names (by policy), a missing model, a model that lacks what the turn needs,
            instructions that aren't text, types that the run's converter doesn't know.
        Exception: the error of an application's callable.
    """
    sourced: list[SourcedTools] = []
    if run.agent.toolsets or run.settings.config.toolsets:
        from agentloop._engine.toolsets import ask_toolsets

        sourced = await ask_toolsets(run)
    parts = _list_parts(run, sourced)
    view = find_prepared(run.agent, parts) or await _resolve_definitions(run, parts, sourced)
    if run.state.closing and (run.state.turn == run.state.closing if answered else run.state.is_closing):
        view = _without_tools(view)
    if view.model is None:
        view = msgspec.structs.replace(view, model=await _open_model(run, run.agent))
    if not view.shown:
        view = await _decide_anew(run, view)
    if not answered and (view.hosted or view.prompt is not None or run.state.kept_by_provider):
        _check_features(run, view)
    return view


def _without_tools(view: TurnView) -> TurnView:
    """Return *view* with nothing to call, for the turn that a limit has left for the final output."""
    settings = attrs.evolve(view.settings, tool_choice=None)
    return TurnView(
        agent=view.agent,
        model=view.model,
        tools=(),
        by_key={},
        disabled=view.disabled,
        settings=settings,
        output=view.output,
        tool_use_behavior=view.tool_use_behavior,
    )


async def _decide_anew(run: LiveRun, view: TurnView) -> TurnView:
    """Return *view* with what each turn decides for itself: tools found, tool choice, instructions, prompt."""
    given, prompt, settings = _find_instructions(run), run.agent.prompt, view.settings
    if view.searches:
        view = _limit_to_found(run, view)
    if settings.tool_choice is not None and _has_obeyed(run, view):
        settings = attrs.evolve(settings, tool_choice=None)
    if callable(prompt):
        prompt = await _call_prompt(run, prompt)
    if callable(given):
        given = await _call_instructions(run, given)
    system, parts = (given, ()) if given is None or isinstance(given, str) else ("\n\n".join(given), tuple(given))
    view = msgspec.structs.replace(view, settings=settings, prompt=prompt, system=system, instructions=parts)
    return msgspec.structs.replace(view, shown=_format_shown(view))


def _find_instructions(run: LiveRun) -> Any:
    """Return the instructions of the agent at work, with those of the run's bundles."""
    own, bundles = run.agent.instructions, run.settings.config.bundles
    if not bundles:
        return own
    from agentloop.config._bundling import merge_instructions

    return merge_instructions(bundles, own)


def _list_parts(run: LiveRun, sourced: Sequence[SourcedTools]) -> tuple[object, ...]:
    """Return the objects of which the definitions of the agent at work are made: while they stay, those do."""
    agent, config = run.agent, run.settings.config
    parts = (
        config.model,
        config.model_settings,
        config.tool_execution.name_collision_policy,
        config.converter,
        agent.model,
        agent.model_settings,
        agent.output_type,
        agent.tool_use_behavior,
        agent.instructions,
        agent.prompt,
        agent.name,
        config.context or agent.context,
        *config.bundles,
        *agent.tools,
    )
    if sourced:
        parts = (*parts, *(part for each in sourced for part in (_FROM_SOURCE, each.source, *each.tools)))
    if agent.handoffs:
        targets = [target_of(entry).agent for entry in agent.handoffs]
        return (*parts, *agent.handoffs, *(part for one in targets for part in (one.name, one.handoff_description)))
    return parts


_FROM_SOURCE = object()
"""Marks, in the parts of definitions, the name and tools of a source: a tool is shown otherwise as one of those."""


async def _resolve_definitions(run: LiveRun, parts: tuple[object, ...], sourced: Sequence[SourcedTools]) -> TurnView:
    """Return the definitions of the agent at work, with the tools of its sources. They are kept, as made of *parts*.

    Not kept where the application is asked about a tool or handoff, and where it is warned about a name: every turn
    does so anew. What else a turn decides for itself is left out, and `shown` with it.
    """
    await run.checkpoint()  # the application isn't asked any more in a run that has been cancelled
    agent = run.agent
    declared = _list_declared(run, sourced)
    targets = [target_of(entry) for entry in agent.handoffs]
    enabled = await filter_enabled(run, declared)
    _check_sources(run, sourced, enabled)
    handoffs = tuple(await filter_enabled(run, targets))
    by_key = _index_tools(run, enabled, handoffs)
    tools = tuple([tool for tool in enabled if by_key.get(tool.lookup_key) is tool])
    for body in [tool.body for tool in tools if isinstance(tool.body, PythonBody)]:
        body.schema.check_converter(run.settings.config.converter)
    on = set(enabled)
    made = _make_view(
        run,
        tools,
        handoffs,
        by_key=by_key,
        disabled={tool.lookup_key: tool for tool in declared if tool not in on},
        sourced=_digest_sourced(sourced, by_key),
    )
    if len(tools) == len(declared) and all(map(_is_fixed, declared)) and all(map(_is_fixed, targets)):
        keep_prepared(agent, parts, made)
    return made


def _make_view(run: LiveRun, tools: tuple[FunctionTool, ...], handoffs: tuple[Handoff, ...], **by_key: Any) -> TurnView:
    """Return the view of the agent at work with the enabled *tools* and *handoffs*, and with the maps *by_key*."""
    agent, config = run.agent, run.settings.config
    given, prompt, output = _find_instructions(run), agent.prompt, agent._typed_output()
    model = _find_model(agent, config)
    made = TurnView(
        agent=agent.name,
        model=model if getattr(type(model), "is_open", None) is _ALWAYS_OPEN else None,
        tools=tools,
        hosted=tuple([tool for tool in agent.tools if isinstance(tool, HostedTool)]),
        settings=_resolve_settings(run),
        handoffs=handoffs,
        output=None if output is None else output.using(config.converter),
        tool_use_behavior=agent.tool_use_behavior,
        tool_names=tuple([tool.qualified_name for tool in tools]),
        handoff_names=tuple([handoff.name for handoff in handoffs]),
        searches=tuple([tool for tool in tools if isinstance(tool.body, ToolSearch)]),
        **by_key,
    )
    if made.settings.tool_choice is not None or made.searches or callable(prompt) or not isinstance(given, _TEXT):
        return made
    made = msgspec.structs.replace(made, system=given, prompt=prompt)
    return msgspec.structs.replace(made, shown=_format_shown(made))


_TEXT = (str, type(None))


def _resolve_settings(run: LiveRun) -> ModelSettings:
    """Return the model settings of the agent at work, with those of the run's configuration over them."""
    agent, config = run.agent, run.settings.config
    own = agent.model_settings if config.model is None else settings_for(agent, config.model)
    return own.resolve(config.model_settings)


def _digest_sourced(sourced: Sequence[SourcedTools], by_key: Mapping[str, FunctionTool]) -> dict[str, str]:
    """Return the digests of those of *by_key* that came from a source, by the same keys."""
    digests: dict[FunctionTool, str] = {}
    for each in sourced:
        digests.update(each.digests())
    return {key: digests[tool] for key, tool in by_key.items() if tool in digests}


def _has_obeyed(run: LiveRun, view: TurnView) -> bool:
    """Tell whether the tool choice is done with: the agent at work has called the tool, or the search that it names."""
    if not run.agent.reset_tool_choice:
        return False
    if run.agent_key in run.state.tool_users:
        return True
    return run.agent_key in run.state.found_tools and view.settings.tool_choice in [tool.name for tool in view.searches]


def _limit_to_found(run: LiveRun, made: TurnView) -> TurnView:
    """Return *made* for one turn of an agent that searches for tools: without those that no search has found yet.

    Where the model's provider searches, its codec shows the deferred tools as such, and no search of ours.

    Raises:
        UserError: a deferred tool has the name of another tool or of a handoff, and the policy is "raise".
    """
    from agentloop.agents._tool_search import choose_shown

    if "tool_search" in made.model.features and all(map(_is_native_search, made.searches)):
        tools = tuple([tool for tool in made.tools if tool not in made.searches])
        return _show_tools(made, tools, searchable=(), offered=())
    chosen = made.settings.tool_choice
    found = run.state.found_tools.get(run.agent_key, ())
    shown = choose_shown(_drop_shadowed(run, made), (*found, chosen) if isinstance(chosen, str) else found)
    return _show_tools(made, shown.tools, searchable=shown.deferred, offered=shown.offered())


def _is_native_search(tool: FunctionTool) -> bool:
    return isinstance(tool.body, ToolSearch) and tool.body.native


def _drop_shadowed(run: LiveRun, made: TurnView) -> list[FunctionTool]:
    """Return the tools of *made* without the deferred tools that share a name with another tool or with a handoff.

    Raises:
        UserError: there is one, and the policy is "raise".
    """
    taken = {tool.qualified_name for tool in made.tools if not tool.defer_loading} | set(made.handoff_names)
    shadowed = [tool for tool in made.tools if tool.defer_loading and tool.qualified_name in taken]
    for tool in shadowed:
        text = f"agent {run.agent.name!r} has a deferred tool and another named {tool.qualified_name!r}"
        _report_collision(run, tool.lookup_key, text, "the other is used")
    return [tool for tool in made.tools if tool not in shadowed]


def _report_collision(run: LiveRun, key: str, text: str, used: str) -> None:
    """Warn of *text*, two definitions of one name, and of which is *used*.

    Raises:
        UserError: the policy is "raise".
    """
    if run.settings.config.tool_execution.name_collision_policy == "raise":
        raise UserError(text)
    run.tree.warn_once(key, f"{text}; {used}")


def _show_tools(
    made: TurnView,
    tools: tuple[FunctionTool, ...],
    *,
    searchable: tuple[FunctionTool, ...],
    offered: tuple[FunctionTool, ...],
) -> TurnView:
    by_key = {tool.lookup_key: tool for tool in tools}
    return msgspec.structs.replace(
        made,
        tools=tools,
        by_key=by_key,
        tool_names=tuple([tool.qualified_name for tool in tools]),
        sourced={key: digest for key, digest in made.sourced.items() if key in by_key},
        searchable=searchable,
        offered=offered,
    )


def _is_fixed(one: FunctionTool | Handoff) -> bool:
    return one.is_enabled is True


def _format_shown(made: TurnView) -> bytes:
    """Return the end of a JSON array, whose first members are the items and the instructions.

    What isn't given isn't in it, so that a request's digest stays the same when a release adds a setting.
    """
    tools: list[Any] = [[tool.name, tool.namespace, tool.description, tool.params_json_schema] for tool in made.tools]
    if made.sourced:  # of these the log has digests, which a replay shows as they are
        for index, tool in enumerate(made.tools):
            if (digest := made.sourced.get(tool.lookup_key)) is not None:
                tools[index] = [tool.name, tool.namespace, digest]
    shown: list[Any] = [
        tools,
        [[handoff.name, handoff.description, handoff.params_json_schema] for handoff in made.handoffs],
        made.output.schema if made.output is not None else None,
        {name: value for name in _SHOWN if (value := getattr(made.settings, name)) is not None},
    ]
    if made.hosted or made.prompt is not None:
        shown += [made.hosted, made.prompt]
    return digestible(shown)[1:]


_SHOWN = tuple(field.name for field in attrs.fields(ModelSettings) if field.name != "retry")


async def _call_instructions(run: LiveRun, instructions: Callback) -> Any:
    """Return the result of the application's callable: text, texts or None."""
    text = await _call_definition(run, "instructions", instructions)
    if text is not None and not isinstance(text, str) and not is_texts(text):
        raise UserTypeError(f"Agent.instructions of {run.agent.name!r} must return text, not {text!r}")
    return text


async def _call_prompt(run: LiveRun, prompt: Callback) -> Prompt | None:
    """Return the result of the application's callable: a stored prompt, or None."""
    made = await _call_definition(run, "prompt", prompt, _format_prompt)
    if made is not None and not isinstance(made, Prompt):
        raise UserTypeError(f"Agent.prompt of {run.agent.name!r} must return Prompt(…) or None, not {made!r}")
    return made


async def _call_definition(
    run: LiveRun, field: str, given: Callback, to_plain: Callable[[Any], Any] | None = None
) -> Any:
    """Call *given*, the value of the agent's *field*, with context and agent, and return its result."""
    await checkpoint_if_cancelled()  # as above
    if not takes(given, 2):
        raise UserTypeError(f"Agent.{field} of {run.agent.name!r}: expected a callable of (ctx, agent)")
    return await run.ask(field, str(run.state.turn), given, run.context, run.agent, to_plain=to_plain)


def _format_prompt(prompt: Any) -> Any:
    return [prompt.id, prompt.version, dict(prompt.variables)] if isinstance(prompt, Prompt) else None


async def filter_enabled(run: LiveRun, tools: list[DeclaredT]) -> list[DeclaredT]:
    """Return those of *tools* that are enabled, in order. All that are decided by a callable are asked at once."""
    if all(map(_is_fixed, tools)):
        return tools
    from agentloop._concurrency.beside import beside  # most runs have fixed tools

    async def is_enabled(tool: FunctionTool | Handoff) -> Any:
        name, decide = tool.lookup_key if isinstance(tool, FunctionTool) else tool.name, tool.is_enabled
        assert callable(decide)
        return await run.ask("is_enabled", f"{run.state.turn}:{name}", decide, run.context, run.agent)

    asked = [tool for tool in tools if callable(tool.is_enabled)]
    answers = await beside([partial(is_enabled, tool) for tool in asked], "agentloop is_enabled")
    given = dict(zip(asked, answers, strict=True))
    return [tool for tool in tools if given.get(tool, tool.is_enabled)]


def _list_declared(run: LiveRun, sourced: Sequence[SourcedTools]) -> list[FunctionTool]:
    """Return the agent's own tools and those of its sources, without each that has the name of one of its own.

    A source never replaces a tool of the agent, not even one that is disabled or deferred: what the model calls by that
    name, and what a person approves, is what the application has written. What is left out is warned of.

    Raises:
        UserError: there is such a tool, and the policy is "raise".
    """
    own = {tool.qualified_name: tool for tool in run.agent.functions}
    declared = dict.fromkeys(run.agent.functions)  # two sources may give one tool, which is shown once
    if (policy := run.settings.config.context or run.agent.context) is not None and policy.recall:
        from agentloop.window.recall import recall_output

        declared[recall_output] = None
    for each in sourced:
        for tool in each.tools:
            if tool in declared:
                continue
            if (name := tool.qualified_name) in own:
                text = f"source {each.source!r} has a tool named {name!r}, as agent {run.agent.name!r} has: {_ADVICE}"
                _report_collision(run, f"{each.source}:{name}", text, "the source's tool is left out")
            else:
                declared[tool] = None
    return list(declared)


_ADVICE = "give the source a prefix or a namespace, or leave its tool out by a filter"


def _check_sources(run: LiveRun, sourced: Sequence[SourcedTools], enabled: Sequence[FunctionTool]) -> None:
    """Check that no two sources have different enabled tools of one name: neither may take the calls of the other.

    Raises:
        UserError: two have.
    """
    on = set(enabled)
    found: dict[str, tuple[FunctionTool, SourcedTools]] = {}
    for each in sourced:
        for tool in each.tools:
            first, holder = found.setdefault(tool.qualified_name, (tool, each)) if tool in on else (tool, each)
            if first is not tool and holder is not each:
                raise UserError(
                    f"agent {run.agent.name!r}: the sources {holder.source!r} and {each.source!r} both have a tool "
                    f"named {tool.qualified_name!r}: give one of them a prefix or a namespace, or leave a tool out by "
                    "a filter"
                )


def _index_tools(run: LiveRun, tools: list[FunctionTool], handoffs: Sequence[Handoff]) -> dict[str, FunctionTool]:
    """Return *tools* by key. Of two with one name the last is used, and a handoff in place of a bare tool.

    Raises:
        UserError: two have one name, and the policy is "raise".
    """
    by_key: dict[str, FunctionTool] = {}
    for tool in tools:
        if (earlier := by_key.setdefault(tool.lookup_key, tool)) is not tool:
            name = f"agent {run.agent.name!r} has two enabled tools named {tool.qualified_name!r}"
            _report_collision(run, tool.lookup_key, f"{name}: {earlier!r}, {tool!r}", "the last is used")
            by_key[tool.lookup_key] = tool
    for name in sorted({handoff.name for handoff in handoffs} & by_key.keys()):
        text = f"agent {run.agent.name!r} has a tool and a handoff named {name!r}"
        _report_collision(run, name, text, "the handoff is used")
        del by_key[name]
    return by_key


_ALWAYS_OPEN = vars(Model)["is_open"]
"""The protocol's own property, which a model inherits that is always open: it needn't be asked in each turn."""


def _find_model(agent: Agent[Any, Any], config: RunConfig) -> Any:
    """Return what the model of *agent* is given as."""
    return agent.model if config.model is None else config.model


async def _open_model(run: LiveRun, agent: Agent[Any, Any]) -> Any:
    """Return the model of *agent*, opened.

    Raises:
        UserError: it has none, or one that can't be opened with what is given here.
        ModelTransportError, ModelTimeoutError: it can't be reached.
    """
    given = _find_model(agent, run.settings.config)
    # `isinstance` with a protocol is slow; a class that inherits from it is found in the MRO.
    if Model in type(given).__mro__ and given.is_open:
        return given
    if given is None:
        raise UserError(
            f"agent {agent.name!r} has no model: give it one, Agent(NAME, model=…), a Model or a model "
            "string such as 'openai-chat:NAME' or 'local:'; or give RunConfig.model"
        )
    try:
        return await run.tree.resolve_model(run, given)
    except (ModelTransportError, ModelTimeoutError, UserError) as error:
        run.stopped_by = error  # the run isn't over: it continues where the model can be opened
        raise


def _check_features(run: LiveRun, view: TurnView) -> None:
    """Check that the model of *view* has what the turn needs of it.

    Raises:
        UserError: it hasn't; a model that leaves that part out of the request would answer to something else.
    """
    needs: dict[ModelFeature, str] = {}
    if run.state.kept_by_provider:
        needs["conversations"] = "conversations that the provider keeps (conversation=)"
    if view.hosted:
        needs["hosted_tools"] = f"hosted tools ({', '.join(sorted({tool.kind for tool in view.hosted}))})"
    if view.prompt is not None:
        needs["prompts"] = f"stored prompts ({view.prompt.id})"
    lacking = [text for name, text in needs.items() if name not in view.model.features]
    if lacking:
        raise UserError(
            f"agent {run.agent.name!r}: its model {view.model!r} doesn't know {', '.join(lacking)}. A model says what "
            "it knows in Model.features"
        )


async def check_models(run: LiveRun) -> None:
    """Open the models that a resumed run and its nested runs continue with, before anything of the segment is recorded.

    Raises:
        StateError: one can't be opened here, for example without its API key. A worker that can continues the run.
    """
    for agent in _list_agents(run.state, run.agent, run.tree.graph):
        try:
            await _open_model(run, agent)
        except UserError as error:
            raise StateError(f"run {run.state.run_id} can't continue here: {error}") from error
        except (ModelTransportError, ModelTimeoutError):
            run.stopped_by = None  # it may be reached when its turn comes


def _list_agents(fold: RunFold, agent: Agent[Any, Any], graph: AgentGraph) -> Iterator[Agent[Any, Any]]:
    """Yield the agent at work of the run of *fold*, and those of the nested runs that continue with its configuration.

    One with its own configuration may have another provider, which its own segment asks.
    """
    yield agent
    tools = {tool.lookup_key: tool for tool in (agent.functions if fold.nested else ())}
    for call in fold.due_calls() if fold.nested and fold.batch_open else ():
        nested, tool = fold.nested.get(call.call.call_id), find_called_tool(tools, call.call)
        if nested is None or nested.started is None or nested.paused or tool is None:
            continue
        if isinstance(tool.body, AgentCall) and tool.body.run_config is None:
            yield from _list_agents(nested, graph.get(nested.agent), graph)
