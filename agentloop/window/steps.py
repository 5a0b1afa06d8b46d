"""The steps that make a history shorter, and what they are shown. Pure: a step never waits and changes no item.

Each step keeps calls with their outputs, reasoning with the item behind it, the first and the latest user message, and
what is pinned. It takes the oldest first and stops when the target is met: so the beginning of the history, which a
provider's cache holds, changes as seldom as it can.
"""

from collections.abc import Awaitable, Callable, Sequence
from math import ceil
from typing import Any, Protocol, Self, TypeAlias, runtime_checkable

import attrs

from agentloop._common.checks import FIELDS, is_a, optional
from agentloop._common.masking import MASK, mask_arguments
from agentloop._common.values import ByFields, Value
from agentloop.abc import Model
from agentloop.items import (
    AssistantMessage,
    HandoffCall,
    HandoffOutput,
    Item,
    Part,
    Reasoning,
    Refusal,
    SystemMessage,
    Text,
    ToolCall,
    ToolOutput,
    UserMessage,
)
from agentloop.window.measure import estimate_tokens
from agentloop.window.turns import SUMMARY_HEAD, find_kept, is_turn, split_turns

_WORTH = 0.1
"""The part of the window that older turns must have to be summarized."""
CLEARED = "[The output of"
"""How a placeholder begins."""
INSTRUCTIONS = (
    "You summarize a conversation between a user, an assistant and the assistant's tools, so that the assistant can "
    "continue from your summary alone. Keep what the user wants, what was decided, found out and done, with names, "
    "ids, numbers and paths word for word, and what is still to do. Leave out what has no use any more. Write plain "
    "text, no greeting."
)


class ContextView(Value, frozen=True, kw_only=True, eq=False):
    """A history that is too long, as a step sees it.

    Attributes:
        items: The history.
        window: The tokens that the model's window holds.
        target: The tokens that the history is to have at most.
        task: The user message that the run is about, if it isn't the first or the latest: it stays.
        base: The tokens of the request that aren't items: instructions and tools.
        scale: What an estimate of items has to be multiplied by to fit the model's own count.

    Example:
        from agentloop.items import UserMessage
        from agentloop.window import ContextView

        view = ContextView.of([UserMessage("hello")], window=1_000)
        print(view.tokens <= view.target)  # True
    """

    items: tuple[Item, ...]
    window: int
    target: int
    task: Item | None = None
    base: float = 0.0
    scale: float = 1.0

    @classmethod
    def of(cls, items: Sequence[Item], *, window: int, target: int | None = None) -> Self:
        """Return the view of *items* for a model with *window* tokens; *target* is half of it if it isn't given."""
        return cls(items=tuple(items), window=window, target=window // 2 if target is None else target)

    def measure(self, items: Sequence[Item]) -> int:
        """Return the tokens of a request with *items* in place of the history."""
        return max(0, ceil(self.base + self.scale * estimate_tokens(items)))

    @property
    def kept(self) -> frozenset[int]:
        """The identities (`id`) of the items that no step may leave out."""
        return find_kept(self.items, self.task)

    @property
    def tokens(self) -> int:
        """The tokens of a request with the history."""
        return self.measure(self.items)


@runtime_checkable
class ContextStep(Protocol):
    """A step that needs no model. `ClearToolOutputs` and `DropOldest` are such ones."""

    def shorten(self, view: ContextView) -> Sequence[Item]:
        """Return the history of *view*, shorter if the step can make it so."""
        ...


StepFunction: TypeAlias = Callable[[ContextView], Sequence[Item] | Awaitable[Sequence[Item]]]


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ClearToolOutputs(ByFields):
    """Puts a placeholder in place of long outputs of old calls, the oldest first. It names call, tool and size.

    Attributes:
        keep_last: The number of the latest outputs that stay as they are.
        min_chars: Outputs with fewer characters stay, too. Images and files count as long.

    Example:
        from agentloop.items import ToolCall, ToolOutput, UserMessage
        from agentloop.window import ClearToolOutputs, ContextView

        items = [UserMessage("Read it."), ToolCall("1", "read"), ToolOutput("1", "x" * 9_000)]
        shorter = ClearToolOutputs(keep_last=0).shorten(ContextView.of(items, window=1_000))
        print(shorter[-1].output)  # [The output of call 1 of tool read was cleared: 9,000 characters.]
    """

    keep_last: int = attrs.field(default=3, validator=FIELDS.count(0))
    min_chars: int = attrs.field(default=2_000, validator=FIELDS.count(0))

    def shorten(self, view: ContextView) -> tuple[Item, ...]:
        """Return the history with as many outputs cleared as the target needs. All other items stay the same."""
        names = {item.call_id: item.name for item in view.items if isinstance(item, ToolCall)}
        outputs = [at for at, item in enumerate(view.items) if isinstance(item, ToolOutput)]
        items, tokens = list(view.items), float(view.tokens)
        for at in outputs[: len(outputs) - self.keep_last]:
            if tokens <= view.target:
                break
            old: Any = items[at]
            if count_chars(old) >= self.min_chars and not is_cleared(old):
                items[at] = clear_output(old, names.get(old.call_id))
                tokens -= view.scale * (estimate_tokens(old) - estimate_tokens(items[at]))
        return tuple(items)


def clear_output(output: ToolOutput, name: str | None) -> ToolOutput:
    """Return the placeholder of *output*, of a call of the tool *name*. It shows nothing of a secret output."""
    of = f" of tool {name}" if name is not None else ""
    parts = "" if isinstance(output.output, str) else _name_parts(output.output)
    size = "" if output.secret else f": {count_chars(output):,} characters{parts}"
    return output.replace(output=f"{CLEARED} call {output.call_id}{of} was cleared{size}.]", secret=False)


def is_cleared(output: ToolOutput) -> bool:
    """Tell whether *output* is a placeholder already."""
    return isinstance(output.output, str) and is_cleared_text(output.output)


def is_cleared_text(text: str) -> bool:
    """Tell whether *text* is that of a placeholder."""
    return text.startswith(CLEARED) and text.endswith(".]")


def count_chars(output: ToolOutput) -> int:
    """Return the characters of an output: of images and files those of the data or of the address."""
    if isinstance(output.output, str):
        return len(output.output)
    return sum(len(_text_of(part)) for part in output.output)


def _text_of(part: Part) -> str:
    if isinstance(part, Text):
        return part.text
    if isinstance(part, Refusal):
        return part.refusal
    return part.data or part.url or part.file_id or ""


def _name_parts(parts: Sequence[Part]) -> str:
    kinds = [type(part).__name__.lower() for part in parts if not isinstance(part, Text)]
    return f" with {', '.join(dict.fromkeys(kinds))}" if kinds else ""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class DropOldest(ByFields):
    """Leaves out the oldest turns, as many as it takes.

    Attributes:
        keep_turns: The number of the latest turns that stay: answers of the model with the outputs to them.

    Example:
        from agentloop.items import AssistantMessage, UserMessage
        from agentloop.window import ContextView, DropOldest

        items = [UserMessage("one"), AssistantMessage("first " * 400), UserMessage("two"), AssistantMessage("second")]
        kept = DropOldest(keep_turns=1).shorten(ContextView.of(items, window=200))
        print([item.text for item in kept])  # ['one', 'two', 'second']
    """

    keep_turns: int = attrs.field(default=4, validator=FIELDS.count(0))

    def shorten(self, view: ContextView) -> tuple[Item, ...]:
        """Return the history without its oldest turns and messages, but with all that no step leaves out."""
        old, recent = cut_at_turn(view.items, self.keep_turns)
        kept = view.kept
        tokens, parts = float(view.tokens), list(old)
        for index, part in enumerate(parts):
            if tokens <= view.target:
                break
            parts[index] = tuple([item for item in part if id(item) in kept])
            tokens -= view.scale * (estimate_tokens(part) - estimate_tokens(parts[index]))
        return tuple([item for part in (*parts, recent) for item in part])


def cut_at_turn(items: Sequence[Item], keep_turns: int) -> tuple[list[tuple[Item, ...]], tuple[Item, ...]]:
    """Return the parts of *items* before the latest *keep_turns* turns, and the items from there on.

    A user message comes before the turns that answer it, so it is among the older ones; the latest is kept anyway.
    """
    parts = split_turns(items) if items else []
    turns = [at for at, part in enumerate(parts) if is_turn(part)]
    older = len(turns) - keep_turns
    cut = (*turns, turns[-1] + 1)[older] if older > 0 else 0
    return parts[:cut], tuple([item for part in parts[cut:] for item in part])


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Summarize(ByFields):
    """Puts one message in place of the older turns: a summary that a model makes of them.

    The request is a run nested in the run: it has its own path and records, and it counts in usage, cost and limits. It
    is made once the older turns have a tenth of the window. It is shown neither what is secret nor the reasoning, and
    the agent's guardrails don't judge it. If it fails, the next step of the policy is tried.

    Attributes:
        model: The model that summarizes, or its name; the agent's own if it isn't given.
        keep_turns: The number of the latest turns that stay as they are.
        instructions: The instructions of the model that summarizes, in place of the library's.

    Example:
        from agentloop import Agent, ContextPolicy, Runner
        from agentloop.testing import ScriptedModel, say
        from agentloop.window import Summarize

        policy = ContextPolicy(window=100, steps=[Summarize(model=ScriptedModel([say("They talked.")]), keep_turns=1)])
        agent = Agent("a", model=ScriptedModel([say("hi")]), context=policy)
        print(Runner.run_sync(agent, "hello").final_output)  # hi
    """

    model: str | Model | None = attrs.field(
        default=None, validator=optional(FIELDS.needs("expected a Model or its name", is_a(str, Model)))
    )
    keep_turns: int = attrs.field(default=4, validator=FIELDS.count(0))
    instructions: str = attrs.field(default=INSTRUCTIONS, validator=FIELDS.words())

    def find_older(self, view: ContextView) -> tuple[Item, ...]:
        """Return the items that the summary takes the place of; none if they are less than a tenth of the window.

        A summary of little frees less than its request costs.
        """
        old, _ = cut_at_turn(view.items, self.keep_turns)
        kept = view.kept
        older = [item for part in old for item in part if id(item) not in kept]
        return tuple(older) if view.scale * estimate_tokens(older) >= _WORTH * view.window else ()

    def replace_older(self, view: ContextView, summary: str) -> tuple[Item, ...]:
        """Return the history with *summary* in place of its older items, at the place of the first of them."""
        old, recent = cut_at_turn(view.items, self.keep_turns)
        kept = view.kept
        items: list[Item] = []
        made: Item | None = UserMessage(SUMMARY_HEAD + summary)
        for item in [item for part in old for item in part]:
            if id(item) in kept:
                items.append(item)
            elif made is not None:
                items.append(made)
                made = None
        return (*items, *recent)


Step: TypeAlias = ContextStep | Summarize | StepFunction


def name_step(step: Step) -> str:
    """Return the name of *step* in records and errors: its class, or the name of the function."""
    return type(step).__name__ if isinstance(step, ContextStep | Summarize) else getattr(step, "__name__", "step")


# ------------------------------------------------------------------------------------ what a summarizer reads


def format_transcript(items: Sequence[Item], most: int) -> str:
    """Return *items* as text for the model that summarizes them, of about *most* characters at the most.

    Without secrets: a secret value is masked. Without reasoning. Where it is too long, each item is cut to its share.
    """
    texts = [text for item in items if (text := _describe(item))]
    share = max(200, most // max(1, len(texts)))
    spare = sum(share - len(text) for text in texts if len(text) < share)
    longer = sum(len(text) > share for text in texts)
    share += spare // longer if longer and spare > 0 else 0
    return "\n\n".join([_cut(text, share) for text in texts])


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} […{len(text) - 2 * half:,} characters left out…] {text[-half:]}"


def _describe(item: Item) -> str:
    match item:
        case UserMessage() | SystemMessage() | AssistantMessage():
            who = type(item).__name__.removesuffix("Message").lower()
            return f"{who}: {MASK if item.secret else _words(item.content)}"
        case ToolCall():
            return f"assistant calls {item.name} ({item.call_id}): {mask_arguments(item.arguments, item.secret)}"
        case HandoffCall():
            return f"assistant calls {item.name} ({item.call_id}): {item.arguments}"
        case ToolOutput(output=output):
            words = MASK if item.secret else output if isinstance(output, str) else _words(output)
            return f"output ({item.call_id}): {words}"
        case HandoffOutput():
            return f"output ({item.call_id}): {item.output}"
        case Reasoning():
            return ""
        case _:
            return f"[{type(item).__name__}]"


def _words(parts: Sequence[Part]) -> str:
    return " ".join(
        [_text_of(part) if isinstance(part, Text | Refusal) else f"[{type(part).__name__}]" for part in parts]
    )
