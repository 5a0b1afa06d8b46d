"""A chat at the terminal whose conversation outlives the program: streamed answers, and a session in a SQLite file.

    python examples/chat.py                              # the scripted model, which needs no key
    python examples/chat.py --model openai:gpt-5.5       # or local:
    printf 'I am Ada.\\nWho am I?\\n' | python examples/chat.py --file talk.db

Each turn is saved in one transaction. Ctrl-C ends the program in the middle of an answer; started again with the same
file, the chat continues with everything that was said in full.
"""

import argparse
import re
import sys
from collections.abc import Callable

import anyio
import anyio.to_thread

from agentloop import Agent, RunConfig, Runner, tool
from agentloop.events import CallStarted, TextDelta
from agentloop.items import ToolOutput, UserMessage
from agentloop.model_events import ModelRequest
from agentloop.sessions import SQLiteSession
from agentloop.testing import FunctionModel, call, say


@tool
def length_of(text: str) -> str:
    """Count the letters of a text.

    Args:
        text: The text.
    """
    return f"{text!r} has {sum(character.isalpha() for character in text)} letters."


def answer(request: ModelRequest) -> object:
    """Play the model, which looks up in the conversation what it was told."""
    last = request.items[-1]
    if isinstance(last, ToolOutput):
        return say(str(last.output))
    said = [item.text for item in request.items if isinstance(item, UserMessage)]
    if word := re.match(r"How long is (\w+)\?", said[-1]):
        return [call("length_of", {"text": word[1]})]
    names = [name[1] for text in said if (name := re.match(r"I am (\w+)", text))]
    if said[-1] == "Who am I?":
        return say(f"You are {names[-1]}." if names else "You haven't said it.")
    return say(f"Hello {names[-1]}." if names else "Tell me more.")


agent = Agent("friend", instructions="Be brief and kind.", model=FunctionModel(answer), tools=[length_of])


async def answer_one(session: SQLiteSession, text: str, config: RunConfig) -> None:
    """Show the answer to *text* as it comes. What it says is in the session when this returns."""
    async with Runner.run_streamed(agent, text, session=session, run_config=config) as stream:
        async for event in stream:
            match event:
                case TextDelta(text=piece):
                    print(piece, end="", flush=True)
                case CallStarted(call=started):
                    print(f"({started.name}) ", end="", flush=True)
    print()


async def chat(file: str, name: str, config: RunConfig, read: Callable[[], str]) -> None:
    """Answer what *read* gives until it is empty or raises EOFError; *read* is called in a thread."""
    async with SQLiteSession(file, name) as session:
        known = len(await session.get_items())
        print(f"{known} messages from before")
        while True:
            try:
                text = await anyio.to_thread.run_sync(read, abandon_on_cancel=True)
            except EOFError:
                break
            if not text.strip():
                break
            await answer_one(session, text, config)


def read_line() -> str:
    """Ask for a line where standard input is a terminal, and read one otherwise."""
    return input("> " if sys.stdin.isatty() else "")


def main() -> None:
    """Read the options and chat until the end of the input."""
    parser = argparse.ArgumentParser(description="Chat with an agent.")
    parser.add_argument("--model", help="a model string in place of the scripted model")
    parser.add_argument("--file", default="chat.db", help="the file of the conversations")
    parser.add_argument("--name", default="me", help="the conversation's name in the file")
    given = parser.parse_args()
    anyio.run(chat, given.file, given.name, RunConfig(model=given.model), read_line, backend="trio")


if __name__ == "__main__":
    main()
