"""`agentloop run` with many requests."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from agentloop.cli.streams import MAX_LINE

Invoke = Callable[..., Result]
AgentOf = Callable[[str], str]


def test_answers_come_in_the_order_of_the_requests(invoke: Invoke, agent: AgentOf, backend: str) -> None:
    """The first run ends only after the last has been asked, and its answer is still printed first."""
    result = invoke("run", agent("crossing"), "--backend", backend, input="first\nsecond\nlast\n")
    assert result.exit_code == 0
    assert result.stdout == "first\nsecond\nlast\n"
    assert result.stderr == ""


@pytest.mark.parametrize(("options", "cap"), [((), 4), (("--concurrency", "7"), 7), (("--concurrency", "1"), 1)])
def test_as_many_run_at_once_as_the_cap_allows(
    invoke: Invoke, agent: AgentOf, backend: str, options: tuple[str, ...], cap: int
) -> None:
    """Each run waits until the cap is reached, and tells how many there were at most."""
    result = invoke("run", agent("meeting"), "--backend", backend, *options, input=f"{cap}\n" * 20)
    assert result.exit_code == 0
    assert {int(line) for line in result.stdout.split()} == {cap}
    assert len(result.stdout.split()) == 20


@pytest.mark.slow
def test_many_requests_lose_none(invoke: Invoke, agent: AgentOf) -> None:
    """A thousand requests, more than are read ahead, are all answered."""
    result = invoke("run", agent("echo"), input="".join(f"{n}\n" for n in range(1_000)))
    assert result.stdout == "".join(f"[{n}]\n" for n in range(1_000))


def test_a_failing_line_is_reported_in_its_place_and_the_others_are_answered(
    invoke: Invoke, agent: AgentOf, backend: str
) -> None:
    """The exit code says that a line failed."""
    result = invoke("run", agent("echo"), "--backend", backend, input="one\nbad two\nthree\n")
    assert result.exit_code == 1
    assert result.stdout == "[one]\nError: can't answer 'bad two': api_key=[redacted]\n[three]\n"
    assert result.stderr == (
        "line 2: Error: ValueError: can't answer 'bad two': api_key=[redacted]\n1 of 3 requests failed.\n"
    )


def test_json_gives_one_result_a_line_with_its_request(invoke: Invoke, agent: AgentOf, tmp_path: Path) -> None:
    """Line numbers are the file's own: blank lines are counted but give no result."""
    file = tmp_path / "requests.txt"
    file.write_text("one\n\n   \nbad two\nthree")
    result = invoke("run", agent("echo"), "--input", str(file), "--json")
    assert result.exit_code == 1
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(line["line"], line["request"], line["status"], line["final_output"]) for line in lines] == [
        (1, "one", "completed", "[one]"),
        (4, "bad two", "failed", None),
        (5, "three", "completed", "[three]"),
    ]
    assert lines[1]["error"]["type"] == "ValueError"


@pytest.mark.parametrize("options", [(), ("-",), ("--input", "-")])
def test_standard_input_is_read_where_no_request_is_given(
    invoke: Invoke, agent: AgentOf, options: tuple[str, ...]
) -> None:
    """The input is read without a word, also when it is named `-`."""
    assert invoke("run", agent("echo"), *options, input="one\r\ntwo\r\n").stdout == "[one]\n[two]\n"


def test_empty_input_is_no_error(invoke: Invoke, agent: AgentOf) -> None:
    """An input of blank lines gives no answer and no error."""
    result = invoke("run", agent("echo"), input="\n\n")
    assert (result.exit_code, result.output) == (0, "")


def test_undecodable_and_too_long_lines_fail_alone(invoke: Invoke, agent: AgentOf) -> None:
    """The lines are named by their numbers, and no line around them is lost."""
    given = b"one\n\xff two\n" + b"x" * (MAX_LINE + 1) + b"\n" + b"y" * (3 * MAX_LINE) + b"\nfive\n"
    result = invoke("run", agent("echo"), input=given)
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "[one]",
        "Error: line 2 isn't UTF-8 text: byte 1 (0xff)",
        "Error: line 3 is longer than 1,000,000 bytes",
        "Error: line 4 is longer than 1,000,000 bytes",
        "[five]",
    ]
    assert "3 of 5 requests failed." in result.stderr


def test_a_missing_model_is_told_of_once_before_a_line_is_read(invoke: Invoke, agent: AgentOf) -> None:
    """The error is shown once, not for every line."""
    result = invoke("run", agent("nowhere"), input="one\ntwo\n")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.count("Error:") == 1
