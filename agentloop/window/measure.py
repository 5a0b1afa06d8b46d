"""Estimates of tokens: for items that no model has counted yet.

The provider's own count is the authority. It comes with each answer, so an estimate is only for what was added since:
mostly the outputs of one turn. It is taken a little too high rather than too low.

Decisions: bytes, not a tokenizer. Each provider has its own tokenizer, of which some aren't public, and each is a
dependency of megabytes. English has four to five bytes a token, JSON and code about three, and scripts beyond Latin
about three bytes a token in UTF-8, too.
"""

import base64
import binascii
from collections.abc import Iterable, Sequence

import msgspec

from agentloop._common.json_bytes import encode_shown
from agentloop._common.values import Value
from agentloop.items import (
    AssistantMessage,
    Audio,
    File,
    HandoffCall,
    HandoffOutput,
    Image,
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
from agentloop.model_events import ModelResponse

PROSE, DENSE, SEALED = 4.0, 3.0, 5.0
"""Bytes a token: of messages, of arguments and outputs, and of reasoning that only its provider can read."""
ITEM_TOKENS = 6
"""The cost of each item beside its content: its role, its id, the marks around it."""
IMAGE_TOKENS = 1_600
"""An image whose size isn't known: the most that one costs where the provider scales it down."""
_LOW_DETAIL_TOKENS = 85
_PIXELS_A_TOKEN = 750
_PNG = b"\x89PNG\r\n\x1a\n"
FILE_TOKENS = 3_000
"""A file that isn't here: about two pages of a document."""
_FILE_BYTES_A_TOKEN = 25.0
"""Of a document: a page has about 50 KB and costs about 2,000 tokens, as text and as an image."""
_AUDIO_BYTES_A_TOKEN = 1_600.0
"""Of compressed sound: 16 KB a second, which costs about ten tokens."""


def estimate_tokens(items: Iterable[Item] | Item) -> int:
    """Return about how many tokens *items* have, by their bytes; more rather than fewer. Never waits.

    Example:
        from agentloop.items import UserMessage
        from agentloop.window import estimate_tokens

        print(estimate_tokens(UserMessage("What is the weather in Paris?")))  # 14
    """
    if isinstance(items, msgspec.Struct):
        return _of_item(items)
    return sum(map(_of_item, items))


class Counted(Value, frozen=True):
    """The tokens of a request with the first *length* items of a history, as they were counted last."""

    tokens: int
    length: int


def find_count(history: Sequence[Item], responses: Sequence[ModelResponse], kept: int = 0) -> Counted | None:
    """Return what the provider counted for *history* with the last of *responses*; None if it told nothing of it.

    The first *kept* items were put there since, so that no response before counts. The output of the last response is
    counted with it: it is sent with the next request.
    """
    for response in reversed(responses):
        usage = response.usage
        if usage is None or not usage.input_tokens:
            continue
        made = set(map(id, response.items))
        for length in range(len(history), kept, -1):
            if id(history[length - 1]) in made:
                return Counted(usage.input_tokens + usage.output_tokens, length)
        break
    return None


def text_tokens(text: str | bytes, rate: float = DENSE) -> int:
    """Return about how many tokens *text* has, at *rate* bytes a token."""
    size = len(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    return -int(-size // rate)


def _of_item(item: Item) -> int:
    match item:
        case ToolCall() | HandoffCall():
            return ITEM_TOKENS + text_tokens(item.name) + text_tokens(item.arguments)
        case ToolOutput(output=str() as text):
            return ITEM_TOKENS + text_tokens(text)
        case ToolOutput(output=tuple() as parts):
            return ITEM_TOKENS + sum([_of_part(part, DENSE) for part in parts])
        case HandoffOutput(output=text):
            return ITEM_TOKENS + text_tokens(text)
        case Reasoning():
            words = sum(text_tokens(text, PROSE) for text in (*item.summary, *item.content))
            return ITEM_TOKENS + max(words, text_tokens(item.encrypted or "", SEALED))
        case SystemMessage() | UserMessage() | AssistantMessage():
            return ITEM_TOKENS + sum([_of_part(part, PROSE) for part in item.content])
        case _:
            return ITEM_TOKENS + text_tokens(encode_shown(item, repr))


def _of_part(part: Part, rate: float) -> int:
    match part:
        case Text(text=text) | Refusal(refusal=text):
            return text_tokens(text, rate)
        case Image():
            return _of_image(part)
        case File(data=None) | Audio(data=None):
            return FILE_TOKENS
        case File(data=data, media_type=kind):
            size = len(data or "") * 3 / 4
            plain = (kind or "").startswith("text/")
            return int(size / (DENSE if plain else _FILE_BYTES_A_TOKEN)) + 1
        case Audio(data=data):
            return int(len(data or "") * 3 / 4 / _AUDIO_BYTES_A_TOKEN) + 1


def _of_image(image: Image) -> int:
    """Return the tokens of an image: by its pixels where a PNG's head tells them, at most what any image costs."""
    if image.detail == "low":
        return _LOW_DETAIL_TOKENS
    if image.data is None:
        return IMAGE_TOKENS
    try:
        head = base64.b64decode(image.data[:32])
    except (binascii.Error, ValueError):
        return IMAGE_TOKENS
    if not head.startswith(_PNG) or len(head) < 24:
        return IMAGE_TOKENS
    width, height = int.from_bytes(head[16:20]), int.from_bytes(head[20:24])
    return min(width * height // _PIXELS_A_TOKEN + 1, IMAGE_TOKENS)
