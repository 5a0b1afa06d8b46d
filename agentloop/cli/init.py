"""`agentloop init`: writes a first agent with one tool, and its test, which passes as it is written."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import click

from agentloop._common.terminal_text import exact
from agentloop.cli import errors
from agentloop.cli.help_text import examples

_AGENT = '''\
"""A first agent: it answers with the help of one tool.

    agentloop run agent.py:agent "{question}"
"""

from typing import Literal

from agentloop import Agent, tool


@tool(
    examples=[
        ("How many words has 'a bird in the hand'?", {{"text": "a bird in the hand", "unit": "words"}}),
        ("Count the letters of 'cat'", {{"text": "cat", "unit": "letters"}}),
    ]
)
def count(text: str, unit: Literal["words", "letters"]) -> str:
    """Count the words or letters of a text.

    Args:
        text: The text.
        unit: Whether words or letters are counted.
    """
    number = len(text.split()) if unit == "words" else sum(char.isalpha() for char in text)
    return f"{{text!r}} has {{number}} {{unit}}."


agent = Agent(
    "counter",
    model={model},  # or openai:NAME, anthropic:NAME, openai-chat:NAME …
    instructions="You answer questions about texts. Count with the tool, never by yourself.",
    tools=[count],
    tool_use_behavior="stop_on_first_tool",  # what the tool says is the answer; leave it out to let the model answer
)
'''

_TEST = '''\
"""Tests of the agent. They need no model: one runs the tool alone, the other plays the model's part by a script."""

import pytest

from agent import agent, count
from agentloop import Runner
from agentloop.testing import call


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    """Run each async test on both event loops."""
    if request.param == "trio":
        pytest.importorskip("trio")
    return request.param


def test_letters_and_words_are_counted():
    assert count("a bird in the hand", "words") == "'a bird in the hand' has 5 words."
    assert count("to be?", "letters") == "'to be?' has 4 letters."


@pytest.mark.anyio
async def test_the_tool_s_output_is_the_answer(anyio_backend, scripted_model):
    model = scripted_model(call("count", {"text": "to be or not to be", "unit": "words"}))
    result = await Runner.run(agent.clone(model=model), "How many words has 'to be or not to be'?")
    assert result.final_output == "'to be or not to be' has 6 words."
    assert [settled.outcome.status for settled in result.calls] == ["succeeded"]
'''

_QUESTION = "How many words has 'to be or not to be'?"


@click.command(
    short_help="Write a first agent and its test.",
    epilog=examples("agentloop init", "agentloop init my-agent --model openai:gpt-5-mini"),
)
@click.argument("folder", default=".", type=click.Path(file_okay=False, path_type=Path))
@click.option("--model", metavar="STRING", default="local:", show_default=True, help="Model string of the agent.")
def init(folder: Path, model: str) -> None:
    """Write a first agent and its test to FOLDER, the current one unless given.

    The files are agent.py and test_agent.py. If one of them is there already, nothing is written.

    Exit codes: 0 both are written, 1 the disk refuses, 2 wrong use, or a file is there already.
    """
    agent, test = folder / "agent.py", folder / "test_agent.py"
    texts = {agent: _AGENT.format(question=_QUESTION, model=json.dumps(model)), test: _TEST}
    if there := [path for path in texts if path.exists() or path.is_symlink()]:
        click.echo(
            f"Error: {' and '.join(exact(str(path)) for path in there)}: there already; nothing was written.", err=True
        )
        sys.exit(errors.USAGE)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            with path.open("x", encoding="utf-8") as file:  # never over a file that was made meanwhile
                file.write(text)
            click.echo(f"Wrote {exact(str(path))}")
    except OSError as error:
        click.echo(errors.words_for_file(folder, error), err=True, nl=False)
        sys.exit(errors.FAILED)
    click.echo(f'Next:\n  agentloop run {shlex.quote(f"{agent}:agent")} "{_QUESTION}"')
    click.echo(f"  python -m pytest {shlex.quote(str(folder))}")  # `pytest` may be one of another environment
