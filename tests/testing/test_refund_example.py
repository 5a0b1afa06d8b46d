"""The how-to's example: a race planted in an application is found, made small and repeated, by public names alone."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings

import agentloop
from agentloop import testing as t

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "testing.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
APPLICATION, TEST = BLOCKS[:2]
FIX = next(block for block in BLOCKS if "capacity=money" in block).partition("test_a_customer")[0]
PROPERTY = next(block for block in BLOCKS if block.startswith("@t.worlds("))
IN_PYTEST = next(block for block in BLOCKS if "no_orphans" in block)


@pytest.fixture
def shop() -> dict[str, Any]:
    """Return the names that the page's application and its test define."""
    names: dict[str, Any] = {"__name__": "shop"}
    for number, block in enumerate((APPLICATION, TEST)):
        exec(compile(block, f"{PAGE}:{number}", "exec"), names)
    return names


def failure_of(shop: dict[str, Any], **options: Any) -> t.ExplorationFailure:
    """Return what the page's test finds, or a search with further options."""
    if not options:
        with pytest.raises(t.ExplorationFailure) as found:
            shop["test_a_customer_gets_the_money_back_once"]()
    else:
        calls = [
            t.call("look_up"),
            t.call("voucher", {"amount": 60}),
            t.call("look_up"),
            t.call("refund", {"amount": 50}),
            t.call("refund", {"amount": 1}),
        ]
        script = [[t.call("look_up")], calls, [t.call("look_up")], t.say("Done.")]
        with pytest.raises(t.ExplorationFailure) as found:
            t.explore(shop["agent"], script, shop["given_back_once"], context=shop["Order"], **options)
    return found.value


def sizes(failure: t.ExplorationFailure) -> list[int]:
    """Return how many calls each turn of the smallest script makes."""
    script = failure.run.world.script
    assert script is not None
    return [len(step) for step in script if isinstance(step, list | tuple)]


def test_the_race_is_found_and_made_small_to_two_calls(shop: dict[str, Any]) -> None:
    """The test of the page finds it without a change."""
    failure = failure_of(shop)
    assert sizes(failure) == [2]
    assert failure.run.tape == ()
    assert failure.run.context.given_back == 160
    assert sorted(body.tool for body in failure.run.bodies) == ["refund", "voucher"]
    assert isinstance(failure.__cause__, AssertionError)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("order", ["gate", "passes", "steps"])
def test_on_either_backend_and_in_any_order(shop: dict[str, Any], backend: Any, order: Any) -> None:
    """The failure is found in a longer script too, where the two calls are in separate turns."""
    failure = failure_of(shop, backends=[backend], order=order)
    assert sizes(failure) == [2]
    assert failure.run.backend == backend


def test_the_printed_line_repeats_it(shop: dict[str, Any]) -> None:
    """The line gives the same log, by names that the page has."""
    failure = failure_of(shop)
    line = str(failure).splitlines()[-1].strip()
    names = {**shop, "explore": t.explore, "call": t.call, "say": t.say}
    with pytest.raises(t.ExplorationFailure) as again:
        eval(line, names)
    assert again.value.run.records == failure.run.records


def test_the_test_has_less_than_fifteen_lines_and_public_names_only() -> None:
    """Every name it imports is in `__all__`; nothing private is touched."""
    assert len([line for line in TEST.splitlines() if line.strip() and "import" not in line]) < 15
    tree = ast.parse(TEST)
    imported = [alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names]
    used = [node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    own = {"context", "given_back"}
    assert set(imported) <= {*t.__all__, "testing"}
    assert set(used) - own <= {*t.__all__, *agentloop.__all__}


@pytest.mark.parametrize("max_schedules", [None, 400])
def test_the_fixed_application_passes(shop: dict[str, Any], max_schedules: Any) -> None:
    """The page's test stays, and it finds no failure any more."""
    exec(FIX, shop)
    shop["test_a_customer_gets_the_money_back_once"]()
    script = [[t.call("refund", {"amount": 80}), t.call("voucher", {"amount": 80})], t.say("Done.")]
    found = t.explore(
        shop["agent"], script, shop["given_back_once"], context=shop["Order"], max_schedules=max_schedules
    )
    assert found.complete


def test_serial_within_a_turn_is_enough_too(shop: dict[str, Any]) -> None:
    """The change in the page's table passes as well."""
    exec(FIX.replace("capacity=money", 'serial="money"'), shop)
    shop["test_a_customer_gets_the_money_back_once"]()


@pytest.fixture
def not_made_small() -> Iterator[None]:
    """Properties that fail show what they found first; to make it small takes a while."""
    before = settings.get_current_profile_name()
    settings.register_profile("found", settings(), phases=[Phase.generate], derandomize=True, database=None)
    settings.load_profile("found")
    yield
    settings.load_profile(before)


@pytest.mark.slow
@pytest.mark.usefixtures("not_made_small")
@pytest.mark.scenario("RP-25")
@pytest.mark.parametrize("bug", ["the race", "the largest amount", None])
def test_the_pages_property_can_fail(shop: dict[str, Any], bug: str | None) -> None:
    """The property finds the race that the page mends, and a bug planted at the largest amount; else it passes."""
    if bug == "the largest amount":
        exec(FIX.replace("if amount > await", "if 100 > amount > await"), shop)
    elif bug is None:
        exec(FIX, shop)
    if bug is None:
        exec(PROPERTY, shop)
        return
    assert "max_examples=20" in PROPERTY
    with pytest.raises(AssertionError) as found:
        exec(PROPERTY.replace("max_examples=20", "max_examples=300"), shop)
    assert type(found.value) is AssertionError  # the page's own, no broken invariant
    assert "no world ran" not in str(found.value)


@pytest.mark.slow
def test_the_pages_fixtures_work_in_pytest(pytester: pytest.Pytester) -> None:
    """The page's test of a slow bank, and the failing one with a budget, run in a session of their own."""
    pytester.makepyfile(test_shop="\n".join([APPLICATION, TEST, IN_PYTEST]))
    plugin = "agentloop.testing.plugin"
    loaded = any(getattr(one, "__name__", "") == plugin for one in pytester._request.config.pluginmanager.get_plugins())
    result = pytester.runpytest_inprocess(
        "-p", "no:cacheprovider", *([] if loaded else ["-p", plugin]), "--agentloop-schedules", "20"
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*gave back 160 of 100*", "*see it again:*"])
