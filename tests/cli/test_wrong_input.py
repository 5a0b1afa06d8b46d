"""Wrong input of every command: one clear error that names what is wrong and where, and a documented exit code."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
from click.testing import CliRunner, Result

from agentloop.cli.app import app

Invoke = Callable[..., Result]
AGENTS = Path(__file__).with_name("agents.py")
USAGE, FAILED = 2, 1


@attrs.frozen
class Wrong:
    """A command line, with `{here}` for the test's folder; what its error has to name; its exit code."""

    command: str
    named: tuple[str, ...]
    code: int = USAGE


CASES = [
    Wrong("run agents.py hi", ("'agents.py'", "module:agent or file.py:agent")),
    Wrong("run agents.py hi", ("Did you mean agents.py:",)),
    Wrong("run broken.py hi", ("'broken.py'", "SyntaxError")),
    Wrong("run empty.py hi", ("file.py:agent. There is no agent in it.",)),
    Wrong("run agents.py:echo how many words", ("put it in quotes, 'how many words'",)),
    Wrong("run absent.py:agent hi", ("'absent.py:agent'", "no file 'absent.py'")),
    Wrong("run absent_module:agent hi", ("no module 'absent_module'",)),
    Wrong("run agents.py:absent hi", ("'agents.py' has no attribute 'absent'", "doubler")),
    Wrong("run agents.py:number hi", ("'number' is of type int, not an Agent",)),
    Wrong("run broken.py:agent hi", ("'broken.py'", "SyntaxError")),
    Wrong("run agents.py:echo hi --model gpt-5", ("'gpt-5'", "did you mean 'openai-chat:gpt-5'?")),
    Wrong("run agents.py:echo hi --model opnai-chat:x", ("'opnai-chat:x'", "Did you mean 'openai-chat:'?")),
    Wrong("run agents.py:echo hi --model openai-chat:", ("model 'openai-chat:'", "expected the model's name")),
    Wrong("run agents.py:echo hi --model local:absent", ("model 'local:absent'", "smollm2-135m")),
    Wrong("run agents.py:echo hi --model http://", ("model 'http://'", "expected an http or https URL")),
    Wrong("run agents.py:keyless hi", ("no API key", "OPENAI_API_KEY")),
    Wrong("run agents.py:echo hi --journal file", ("{here}/file", "can't be made a folder")),
    Wrong("run agents.py:echo hi --journal other", ("{here}/other", "'thesis.tex'")),
    Wrong("run agents.py:echo --input absent", ("'--input'", "'absent'", "No such file")),
    Wrong("chat absent.py:agent", ("'absent.py:agent'", "no file 'absent.py'")),
    Wrong("chat agents.py:keyless", ("no API key", "OPENAI_API_KEY")),
    Wrong("serve absent.py:agent", ("'absent.py:agent'", "no file 'absent.py'")),
    Wrong("serve agents.py:echo --http 8000 --backend trio", ("--http needs --backend asyncio",)),
    Wrong("sandbox prune absent", ("absent",)),
    Wrong("skills check absent", ("absent",)),
    Wrong("init file", ("'file'", "is a file")),
    Wrong("models mistral", ("unexpected extra argument (mistral)",)),
    Wrong("graph absent.py:agent", ("'absent.py:agent'", "no file 'absent.py'")),
    Wrong("graph agents.py:echo --svg absent/a.svg", ("absent/a.svg", "No such file"), FAILED),
    Wrong("resume absent", ("{here}/absent", "no job is there")),
    Wrong("resume file", ("{here}/file", "no job is there")),
    Wrong("resume garbled", ("{here}/garbled", "job.json")),
    Wrong("resume web", ("{here}/web", "no job is there")),
    Wrong("resume changed", ("{here}/changed", "began elsewhere", "resume changed --target")),
    Wrong("resume changed --target agents.py:echo", ("{here}/changed", "its TARGET is", "not agents.py:echo")),
    Wrong("resume changed --target agents.py:doubler", ("{here}/changed/run.journal", "line 2 was changed"), FAILED),
    Wrong("resume folder --target agents.py:doubler", ("{here}/folder/run.journal", "Is a directory"), FAILED),
    Wrong("pending absent", ("{here}/absent", "no job is there")),
    Wrong("pending file", ("{here}/file", "nothing whole is in it")),
    Wrong("approve job/run.journal call_9", ("{here}/job/run.journal", "is over: it has completed")),
    Wrong("resume job/run.journal", ("{here}/job/run.journal", "expected a folder of `agentloop run --journal`")),
    Wrong("pending garbled", ("{here}/garbled", "job.json")),
    Wrong("pending changed", ("{here}/changed/run.journal", "line 2 was changed"), FAILED),
    Wrong("pending nonsense", ("{here}/nonsense/run.journal", "line 1 is no line of a journal"), FAILED),
    Wrong("pending folder", ("{here}/folder/run.journal", "Is a directory"), FAILED),
    Wrong("runs absent", ("absent: there is no such folder",)),
    Wrong("runs file", ("file: expected a folder of journals, got a file",)),
    Wrong("runs changed", ("changed/run.journal", "line 2 was changed"), FAILED),
    Wrong("runs job cancel run", ("cancel is for a database",)),
    Wrong("runs job stop", ("'stop' is not one of 'list'",)),
    Wrong("runs job --status open", ("'--status'", "'open'")),
    Wrong("runs job --older-than 3", ("'--older-than'", "expected a number with s, m, h or d", "'3'")),
    Wrong("runs postgresql://x/y cancel", ("cancel needs the RUNs",)),
    Wrong("runs postgresql://x/y delete", ("delete needs the RUNs, or --older-than AGE",)),
    Wrong("runs postgresql://x/y delete a --older-than 3d", ("delete RUN takes no --older-than",)),
    Wrong("runs postgresql://x/y delete --older-than 3d --limit 1", ("delete takes no --limit",)),
    Wrong("runs postgresql://x/y migrate a", ("migrate takes no RUN",)),
    Wrong("trace absent", ("there is no absent",)),
    Wrong("trace other", ("{here}/other", "there is no journal")),
    Wrong("trace web", ("{here}/web", "there is no job; name one of its journals: a.journal, b.journal")),
    Wrong("trace changed", ("{here}/changed/run.journal", "line 2 was changed"), FAILED),
    Wrong("trace job --run x", ("--run is for a SQLite file",)),
    Wrong("lab absent --agent agents.py:echo", ("there is no 'absent'",)),
    Wrong("lab other --agent agents.py:echo", ("'other' holds no journal", ".journal or .jsonl")),
    Wrong("lab job --agent absent.py:agent", ("'absent.py:agent'", "no file 'absent.py'")),
    Wrong("lab job --agent agents.py:echo --where color=red", ("--where", "status=…", "'color=red'")),
    Wrong("upgrade-check absent --agent agents.py:echo", ("there is no 'absent'",)),
    Wrong("upgrade-check other --agent agents.py:echo", ("'other' holds no journal", ".journal or .jsonl")),
    Wrong("upgrade-check job", ("Missing option '--agent'",)),
    Wrong("upgrade-check job --agent absent.py:agent", ("'absent.py:agent'", "no file 'absent.py'")),
    Wrong("upgrade-check job --agent agents.py:echo --run x", ("--run: 'job' holds no run 'x'",)),
    Wrong("upgrade-check job --agent agents.py:echo --config agents.py:echo", ("--config", "expected a RunConfig")),
    Wrong("upgrade-check job --agent agents.py:echo --verdict yes", ("'--verdict'", "'yes' is not one of")),
    Wrong("enter absent c1 --agent agents.py:doubler", ("there is no 'absent'",)),
    Wrong("enter job c1 --agent agents.py:echo", ("a run of agent 'doubler'", "not of 'echo'")),
    Wrong("enter job c9 --agent agents.py:doubler", ("call:c9", "no such call")),
    Wrong("fork absent --agent agents.py:echo --at 1", ("there is no 'absent'",)),
    Wrong("fork job --agent agents.py:doubler", ("at: expected the number of a record", "turn=")),
    Wrong("fork job --agent agents.py:doubler --at 99", ("at: expected the number of a record, from 1 to", "got 99")),
    Wrong("fork job --agent agents.py:doubler --at 1 --set output=1", ("--set", "call:ID.output=JSON", "'output=1'")),
    Wrong("fork job --agent agents.py:doubler --at 1 --set call:c3.output=sold", ("--set", "isn't JSON", "quotes")),
    Wrong("fork job --agent agents.py:doubler --at 1 --set call:c3.output=1", ("call:c3", "no such call")),
    Wrong("fork job --agent agents.py:doubler --at 1 --drop c3", ("--drop", "call:ID", "'c3'")),
    Wrong("fork job --agent agents.py:doubler --at 1 --branch colour=red", ("--branch", "model=", "'colour=red'")),
    Wrong("fork job --agent agents.py:doubler --at 1 --branch seed=x", ("--branch", "a number", "'x'")),
    Wrong("fork job --agent agents.py:doubler --at 1 --branch name='", ("--branch", "No closing quotation")),
    Wrong("fork job --agent agents.py:doubler --at 1 --branch instructions=absent", ("--branch", "'absent'")),
    Wrong("lab job --agent agents.py:echo --against absent", ("absent", "No such file")),
    Wrong("show absent --at 1", ("there is no absent",)),
    Wrong("show other --at 1", ("{here}/other", "there is no journal")),
    Wrong("show job --at 999", ("expected from 1 to", "got 999")),
    Wrong("show job --at x", ("'--at'", "'x'")),
    Wrong("diff job", ("Missing argument 'B'",)),
    Wrong("diff absent job", ("there is no absent",)),
    Wrong("diff job other", ("{here}/other", "there is no journal")),
    Wrong("answer job call_1", ("Give VALUE, or --error TEXT",), 2),
    Wrong("answer job call_1 x --error y", ("Give VALUE, or --error TEXT",), 2),
    Wrong("answer absent call_1 x", ("{here}/absent", "no job is there")),
    Wrong("answer job call_9 x", ("{here}/job", "is over", "those that wait: none")),
    *(
        wrong
        for given in ("pending {0}", "approve {0} call_1", "reject {0} call_1", "answer {0} call_1 x")
        for wrong in (
            Wrong(given.format("postgresql://x/y"), ("a database needs --run",)),
            Wrong(given.format("job") + " --run r", ("--run and --key-file are for a database",)),
            Wrong(given.format("job") + " --key-file file", ("--run and --key-file are for a database",)),
            Wrong(given.format("job") + " --run r --key-file absent", ("'--key-file'", "'absent'", "No such file")),
        )
    ),
    *(
        wrong
        for verdict in ("approve", "reject")
        for wrong in (
            Wrong(f"{verdict} absent call_1", ("{here}/absent", "no job is there")),
            Wrong(f"{verdict} job call_9", ("{here}/job", "is over", "those that wait: none")),
            Wrong(f"{verdict} job 3:call_9", ("{here}/job", "'3:call_9'", "those that do: none")),
            Wrong(f"{verdict} nonsense call_1", ("{here}/nonsense/run.journal", "line 1"), FAILED),
        )
    ),
    Wrong("approve job call_1 --arguments {{bad", ("the arguments given don't fit: they aren't valid JSON",)),
    Wrong("approve job call_1 --arguments []", ("the arguments given don't fit: they must be a JSON object",)),
]
NOT_FOR_USERS = re.compile(r"Traceback|\[Errno|Errno \d|tool approve|object at 0x")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with agents, a job, and jobs that were damaged since; the tests only read it."""
    here = tmp_path_factory.mktemp("wrong")
    shutil.copy(AGENTS, here)
    (here / "broken.py").write_text("agent = [\n")
    (here / "empty.py").touch()
    (here / "file").touch()
    (here / "web").mkdir()
    for name in ("a.journal", "b.journal"):
        (here / "web" / name).touch()
    (here / "other").mkdir()
    (here / "other" / "thesis.tex").touch()
    made = CliRunner().invoke(app, ["run", str(here / "agents.py:doubler"), "hi", "--journal", str(here / "job")])
    assert made.exit_code == 0, made.stderr
    for name in ("garbled", "changed", "nonsense", "folder"):
        shutil.copytree(here / "job", here / name)
    (here / "garbled" / "job.json").write_text("{")
    lines = (here / "job" / "run.journal").read_bytes().split(b"\n")
    changed = [lines[0], lines[1].replace(b"hi", b"ho"), *lines[2:]]
    assert changed != lines
    (here / "changed" / "run.journal").write_bytes(b"\n".join(changed))
    (here / "nonsense" / "run.journal").write_text("nonsense\n")
    (here / "folder" / "run.journal").unlink()
    (here / "folder" / "run.journal").mkdir()
    return here


@pytest.mark.parametrize("wrong", CASES, ids=lambda wrong: wrong.command)
def test_wrong_input_is_named_with_its_place(
    invoke: Invoke, prepared: Path, monkeypatch: pytest.MonkeyPatch, wrong: Wrong
) -> None:
    """Nothing is printed on the output, the last words are one error, and nothing of the implementation shows."""
    monkeypatch.chdir(prepared)
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    result = invoke(*wrong.command.replace("{{", "{").split(), input="")
    assert (result.exit_code, result.stdout) == (wrong.code, ""), result.stderr
    assert isinstance(result.exception, SystemExit), result.exception
    assert len(re.findall(r"^Error: ", result.stderr, re.MULTILINE)) == 1, result.stderr
    for words in wrong.named:
        assert words.replace("{here}", str(prepared)).replace("{{", "{") in result.stderr
    assert not NOT_FOR_USERS.search(result.stderr), result.stderr


def test_every_command_is_given_wrong_input() -> None:
    """A new command needs rows of its own; `model` has its tests with the model's."""
    assert {wrong.command.split()[0] for wrong in CASES} == set(app.commands) - {"model"}


def test_exit_codes_of_wrong_input_are_documented() -> None:
    """The table of the page has every exit code."""
    page = Path(__file__).parents[2] / "docs" / "how-to" / "command-line.md"
    codes = set(re.findall(r"^\| (\d+) \|", page.read_text(encoding="utf-8"), re.MULTILINE))
    assert {str(wrong.code) for wrong in CASES} <= codes
