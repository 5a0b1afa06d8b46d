"""The admission rule against a naive model of it, and the promises it makes."""

import math
from collections import Counter
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agentloop._core import admission as admit
from agentloop._core.admission import PATIENCE, Admission, Ticket
from agentloop.limits import Capacity, Limit, OrderedCapacity, Rate

# ---------------------------------------------------------------------------------------------- the model


@attrs.define(eq=False)
class _Limit:
    """A limit, naively: who holds it, or whose bodies have yet to begin and when the others' began."""

    tokens: int | None = None
    per: float | None = None
    ordered: bool = False
    held: int = 0
    starts: list[float] = attrs.field(factory=list)

    def free(self, now: float) -> float:
        if self.tokens is None:
            return math.inf
        if self.per is None:
            return self.tokens - self.held
        return self.tokens - self.held - sum(1 for start in self.starts if now < start + self.per)


@attrs.define(eq=False)
class _Wish:
    """One ticket of the model."""

    name: int
    limits: tuple[int, ...]
    passed: int = 0


@attrs.define
class Model:
    """The rule in the words of its description, looking at every ticket every time."""

    limits: list[_Limit]
    waiting: list[_Wish] = attrs.field(factory=list)

    def admit(self, now: float) -> list[int]:
        started: list[int] = []
        while (found := self._first(now)) is not None:
            wish = self.waiting.pop(found)
            for index in wish.limits:
                self.limits[index].held += 1
            for other in self.waiting[:found]:
                other.passed += bool(set(other.limits) & set(wish.limits))
            started.append(wish.name)
        return started

    def _first(self, now: float) -> int | None:
        """Return the place of the earliest that may start."""
        for place, wish in enumerate(self.waiting):
            if not self._lacks(wish, self.kept_for(self.waiting[:place], now), now):
                return place
        return None

    def _lacks(self, wish: _Wish, kept: Counter[int], now: float) -> set[int]:
        return {index for index in wish.limits if self.limits[index].free(now) <= kept[index]}

    def kept_for(self, wishes: list[_Wish], now: float) -> Counter[int]:
        """Return how many tokens of each limit are kept for *wishes*, the first of those that wait."""
        kept: Counter[int] = Counter()
        seen: set[tuple[int, ...]] = set()
        for wish in wishes:
            wanted = {index for index in wish.limits if self.limits[index].ordered}
            if wish.passed >= admit.PATIENCE and wish.limits not in seen:
                timed = {index for index in wish.limits if self.limits[index].per is not None}
                waits_for_time = timed & self._lacks(wish, kept, now)
                wanted |= timed if waits_for_time else set(wish.limits)
            seen.add(wish.limits)
            kept.update(wanted)
        return kept


# ---------------------------------------------------------------------------------------------- the machine


class AdmissionMachine(RuleBasedStateMachine):
    """Adds, admits, ends, withdraws, resizes and lets time pass, on the rule and its model alike."""

    @initialize(
        sizes=st.lists(st.integers(1, 4), min_size=3, max_size=3),
        rate=st.integers(1, 3),
        unlimited=st.booleans(),
    )
    def begin(self, sizes: list[int], rate: int, unlimited: bool) -> None:
        self.now = 100.0
        self.limits: list[Limit] = [
            Capacity(None if unlimited else sizes[0], "a"),
            Capacity(sizes[1], "b"),
            Capacity(sizes[2] * 20, "wide"),
            OrderedCapacity(1, "ordered"),
            Rate(rate, 10, "rate"),
            Rate(rate + 1, 4, "quick rate"),
        ]
        self.model = Model(
            [
                _Limit(None if unlimited else sizes[0]),
                _Limit(sizes[1]),
                _Limit(sizes[2] * 20),
                _Limit(1, ordered=True),
                _Limit(rate, per=10),
                _Limit(rate + 1, per=4),
            ]
        )
        self.rule = Admission()
        self.tickets: dict[int, Ticket] = {}
        self.running: list[int] = []
        self.admitted: list[int] = []
        """Those of `running` whose bodies haven't begun."""
        self.agree = True
        self.names = 0

    @rule(chosen=st.sets(st.integers(0, 5), max_size=4), count=st.sampled_from([1, 1, 2, 3, 6]))
    def add(self, chosen: set[int], count: int) -> None:
        for _ in range(count):
            name, self.names = self.names, self.names + 1
            ticket = Ticket(tuple(self.limits[index] for index in sorted(chosen)), name)
            self.tickets[name] = ticket
            self.rule.add(ticket)
            self.model.waiting.append(_Wish(name, tuple(sorted(chosen))))

    @rule(at_once=st.sampled_from([True, True, False]))
    def admit(self, at_once: bool = True) -> None:
        wanted = self.model.admit(self.now)
        started = [ticket.owner for ticket in self.rule.admit(self.now)]
        self.agree = started == wanted
        assert started == wanted
        self.running += started
        self.admitted += started
        if at_once:
            self.begin_bodies(started)
            if any(limit.per is not None for name in started for limit in self.list_limits(name)):
                self.admit()  # as a dispatcher does, since a rate has a time from now on

    def list_limits(self, name: int) -> list[_Limit]:
        return [self.model.limits[self.limits.index(limit)] for limit in self.tickets[name].limits]

    def begin_bodies(self, names: list[int]) -> None:
        for name in names:
            self.admitted.remove(name)
            for limit, naive in zip(self.tickets[name].limits, self.list_limits(name), strict=True):
                if naive.per is not None:
                    limit.begin(self.now)
                    naive.held -= 1
                    naive.starts.append(self.now)

    @precondition(lambda self: self.admitted)
    @rule(data=st.data())
    def begin_late(self, data: st.DataObject) -> None:
        """A journal, or a guardrail, took its time."""
        self.begin_bodies(data.draw(st.lists(st.sampled_from(self.admitted), unique=True)))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), every=st.booleans())
    def end(self, data: st.DataObject, every: bool) -> None:
        self.end_calls(list(self.running) if every else [data.draw(st.sampled_from(self.running))])

    def end_calls(self, names: list[int]) -> None:
        for name in names:
            self.running.remove(name)
            begun = name not in self.admitted
            for limit, naive in zip(self.tickets[name].limits, self.list_limits(name), strict=True):
                if naive.per is None or not begun:
                    limit.give()
                    naive.held -= 1
        self.admitted = [name for name in self.admitted if name in self.running]

    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        some = data.draw(st.sets(st.sampled_from(sorted(self.tickets)))) if self.tickets else set()
        self.rule.withdraw([self.tickets[name] for name in some])
        self.model.waiting = [wish for wish in self.model.waiting if wish.name not in some]

    @rule(tokens=st.none() | st.integers(1, 5), which=st.integers(0, 1))
    def resize(self, tokens: int | None, which: int) -> None:
        limit = self.limits[which]
        assert isinstance(limit, Capacity)
        limit.total_tokens = tokens
        self.model.limits[which].tokens = tokens

    @rule(seconds=st.sampled_from([0.5, 3.0, 10.0, 25.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def nothing_starts_before_the_next_room(self) -> None:
        """After an admission, time alone changes nothing before the moment that is said."""
        self.admit()
        at = self.rule.next_room()
        assert at > self.now
        just_before = math.nextafter(min(at, self.now + 1000), -math.inf)
        assert self.rule.admit(just_before) == []
        self.now = max(self.now, just_before)

    @invariant()
    def same_number_waits(self) -> None:
        if hasattr(self, "rule"):
            assert len(self.rule) == len(self.model.waiting)

    @invariant()
    def limits_hold(self) -> None:
        if not hasattr(self, "rule"):
            return
        for limit, naive in zip(self.limits, self.model.limits, strict=True):
            if isinstance(limit, Capacity):
                assert limit.statistics().tokens_in_use == naive.held
            for first, last in zip(naive.starts, naive.starts[naive.tokens or 0 :], strict=False):
                assert naive.per is None or last - first >= naive.per, "a window has more starts than it allows"

    def teardown(self) -> None:
        """No deadlock: when everyone who runs ends and time passes, everybody starts."""
        if not hasattr(self, "rule") or not self.agree:
            return
        for _ in range(3 * self.names + 10):
            self.admit()
            if not self.model.waiting:
                break
            if self.running:
                self.end_calls(list(self.running))
            else:
                at = self.rule.next_room()
                assert math.isfinite(at), "everyone has ended, and still somebody waits for a token"
                self.now = at
        assert not self.model.waiting


@pytest.mark.slow
class TestAdmission(AdmissionMachine.TestCase):  # type: ignore[misc,valid-type]
    """With a patience of three, so that few tickets are enough to use it up."""

    settings = settings(max_examples=120, stateful_step_count=30)

    def setUp(self) -> None:
        admit.PATIENCE = 3

    def tearDown(self) -> None:
        admit.PATIENCE = PATIENCE


# ---------------------------------------------------------------------------------------------- who must not starve


@pytest.mark.slow
@pytest.mark.scenario("RP-14")
@given(
    capacities=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    rates=st.lists(st.integers(1, 2), max_size=2),
    lasting=st.integers(1, 4),
    data=st.data(),
)
def test_a_ticket_starts_soon_whatever_later_ones_want(
    capacities: list[int], rates: list[int], lasting: int, data: st.DataObject
) -> None:
    """A ticket that was passed 32 times waits for no later ticket, of any subset of its limits.

    From then on it waits for two windows of each rate at most, and for one call of each capacity; so does each of the
    calls that came before it and wait too.
    """
    admission = BeginningAtOnce()
    window = 5
    limits: list[Limit] = [Capacity(tokens) for tokens in capacities]
    limits += [Rate(count, window) for count in rates]
    running: list[tuple[int, Ticket]] = []
    spent_at = None
    patient = Ticket(tuple(limits), "patient")
    earlier: list[Ticket] = []
    ahead = 0
    for now in range(500):
        for ended in [one for one in running if one[0] <= now]:
            running.remove(ended)
            for limit in ended[1].limits:
                if limit.freed_by_calls:
                    limit.give()
        if now == 1:
            admission.add(patient)
        for _ in range(4):
            wanted = data.draw(st.sets(st.sampled_from(limits), min_size=1)) if now < 3 else {limits[now % len(limits)]}
            ticket = Ticket(tuple(wanted))
            admission.add(ticket)
            if now == 0:
                earlier.append(ticket)
        started = admission.admit(now)
        running += [(now + lasting, one) for one in started]
        if patient in started:
            break
        if spent_at is None and patient.passed >= PATIENCE:
            spent_at, ahead = now, sum(one.waiting for one in earlier)
        each = 2 * window * len(rates) + lasting * (len(capacities) + 1)
        assert spent_at is None or now <= spent_at + each * (1 + ahead)
    else:
        raise AssertionError("it never started")


# ---------------------------------------------------------------------------------------------- by hand


class BeginningAtOnce(Admission):
    """An admission whose calls begin their bodies in the step in which they are admitted."""

    def admit(self, now: float) -> list[Ticket]:
        """Admit, begin, and look again: a rate has a time from then on."""
        admitted: list[Ticket] = []
        while started := super().admit(now):
            admitted += started
            for limit in [limit for ticket in started for limit in ticket.limits if not limit.freed_by_calls]:
                limit.begin(now)
        return admitted


def tickets(admission: Admission, *wishes: tuple[Any, ...]) -> list[Ticket]:
    """Add one ticket for each tuple of limits."""
    made = [Ticket(limits, index) for index, limits in enumerate(wishes)]
    for ticket in made:
        admission.add(ticket)
    return made


def test_a_ticket_without_limits_starts_at_once() -> None:
    """The ticket starts at once, and an empty queue starts no ticket."""
    admission = Admission()
    assert admission.admit(0) == []
    assert admission.next_room() == math.inf
    [ticket] = tickets(admission, ())
    assert admission.admit(0) == [ticket]
    assert len(admission) == 0


def test_all_limits_are_taken_in_one_step_or_none() -> None:
    """A ticket that lacks one of two limits holds neither."""
    admission = Admission()
    a, b = Capacity(1), Capacity(1)
    first, second, third = tickets(admission, (a,), (a, b), (b,))
    assert admission.admit(0) == [first, third]
    a.give()
    assert admission.admit(0) == []
    assert (a.statistics().tokens_in_use, b.statistics().tokens_in_use) == (0, 1)
    b.give()
    assert admission.admit(0) == [second]


def test_a_ticket_is_overtaken_thirty_two_times_and_then_reserves() -> None:
    """Thirty-two later tickets pass it, the thirty-third waits; when its limit is free it goes first."""
    admission = Admission()
    narrow, wide = Capacity(1, "narrow"), Capacity(1, "wide")
    [holder] = tickets(admission, (narrow,))
    assert admission.admit(0) == [holder]
    patient = Ticket((narrow, wide), "patient")
    admission.add(patient)
    passed = 0
    for _ in range(PATIENCE + 5):
        admission.add(Ticket((wide,), "quick"))
        for _ticket in admission.admit(0):
            passed += 1
            wide.give()
    assert passed == PATIENCE
    narrow.give()
    assert admission.admit(0)[0] is patient


def test_two_equal_tickets_that_were_overtaken_start_in_order() -> None:
    """Both were passed thirty-two times. Only the first one keeps a token; the second one follows it."""
    admission = Admission()
    narrow, wide = Capacity(1, "narrow"), Capacity(1, "wide")
    _, first, second = tickets(admission, (narrow,), (narrow, wide), (narrow, wide))
    assert len(admission.admit(0)) == 1
    for _ in range(PATIENCE):
        admission.add(Ticket((wide,), "quick"))
        assert [ticket.owner for ticket in admission.admit(0)] == ["quick"]
        wide.give()
    assert (first.passed, second.passed) == (PATIENCE, PATIENCE)
    late = Ticket((wide,), "late")
    admission.add(late)
    assert admission.admit(0) == []
    for expected in (first, second):
        narrow.give()
        assert admission.admit(0) == [expected]
        wide.give()
    assert admission.admit(0) == [late]


def test_an_overtaken_ticket_that_wants_an_ordered_limit_keeps_a_token_of_the_other() -> None:
    """An ordered limit is kept for whoever comes first anyway; the ticket that was overtaken also keeps the other."""
    admission = Admission()
    ordered, wide = OrderedCapacity(1), Capacity(1)
    _, patient = tickets(admission, (ordered,), (ordered, wide))
    assert len(admission.admit(0)) == 1
    for _ in range(PATIENCE):
        tickets(admission, (wide,))
        assert len(admission.admit(0)) == 1
        wide.give()
    [late] = tickets(admission, (wide,))
    assert admission.admit(0) == []
    ordered.give()
    assert admission.admit(0) == [patient]
    wide.give()
    assert admission.admit(0) == [late]


def test_a_withdrawn_ticket_behind_another_leaves_the_others_in_order() -> None:
    """The ticket in the middle goes; the one before it and the one behind it start as before."""
    admission = Admission()
    one = Capacity(1)
    _, first, middle, last, new = tickets(admission, (one,), (one,), (one,), (one,), (one,))
    admission.withdraw([new])  # nobody has looked at it yet
    assert len(admission.admit(0)) == 1
    admission.withdraw([middle])
    for expected in (first, last):
        one.give()
        assert admission.admit(0) == [expected]
    assert len(admission) == 0


def test_a_ticket_is_not_overtaken_more_often_in_one_admission() -> None:
    """A limit with room for forty lets forty pass, but for the one token kept for who was passed thirty-two times."""
    admission = Admission()
    narrow, wide = Capacity(1), Capacity(40)
    _, patient, *_ = tickets(admission, (narrow,), (narrow, wide), *[(wide,)] * 100)
    assert len(admission.admit(0)) == 1 + 39
    narrow.give()
    assert admission.admit(0) == [patient]
    assert wide.statistics().tokens_in_use == 40


def test_a_reservation_holds_for_its_own_limits_only() -> None:
    """A ticket that wants another limit passes by the waiting one."""
    admission = Admission()
    narrow, wide, other = Capacity(1), Capacity(1), Capacity(1)
    admission.add(Ticket((narrow,), "holder"))
    admission.add(Ticket((narrow, wide), "patient"))
    for _ in range(PATIENCE):
        admission.add(Ticket((wide,)))
        admission.admit(0)
        wide.give()
    admission.add(Ticket((wide,), "blocked"))
    admission.add(Ticket((other,), "free"))
    assert [ticket.owner for ticket in admission.admit(0)] == ["free"]


@pytest.mark.scenario("RP-14")
def test_a_ticket_that_waits_for_time_keeps_a_token_of_its_rate_alone() -> None:
    """The ticket was passed often, and still starts before the later ones when its time comes."""
    admission = BeginningAtOnce()
    rate, capacity = Rate(1, 10), Capacity(1)
    _, patient = tickets(admission, (rate,), (rate, capacity))
    assert len(admission.admit(0)) == 1
    for now in range(3 * PATIENCE):
        admission.add(Ticket((capacity,), "free"))
        assert [ticket.owner for ticket in admission.admit(now / PATIENCE)] == ["free"]
        capacity.give()
    late = [Ticket((capacity,)), Ticket((rate,)), Ticket((rate, capacity))]
    for ticket in late:
        admission.add(ticket)
    admission.admit(9)
    capacity.give()
    assert admission.admit(10) == [patient]


@pytest.mark.scenario("RP-14")
def test_a_spent_ticket_keeps_its_rate_once_time_has_come_and_lets_capacity_go_if_it_loses_it() -> None:
    """While only calls are in its way it keeps a token of each limit; if it loses the rate, it keeps the rate alone."""
    admission = BeginningAtOnce()
    rate, capacity, other = Rate(1, 10), Capacity(2), Capacity(1)
    holder, earlier = Ticket((other,)), Ticket((rate, other))
    holding = [Ticket((capacity,)), Ticket((capacity,))]
    patient = Ticket((rate, capacity))
    for ticket in (holder, earlier, *holding, patient):
        admission.add(ticket)
    assert admission.admit(0) == [holder, *holding]
    for _ in range(PATIENCE):
        patient.passed += 1
    admission._recheck(patient)
    later = Ticket((rate,))
    admission.add(later)
    assert admission.admit(1) == []
    other.give()
    assert admission.admit(1) == [earlier]
    capacity.give()
    free = Ticket((capacity,))
    admission.add(free)
    assert admission.admit(2) == [free]
    capacity.give()
    assert admission.admit(11) == [patient]


def test_a_ticket_says_what_it_waited_for() -> None:
    """A limit is named by its name, or by its kind where it has none."""
    admission = Admission()
    named, unnamed, free = Capacity(1, "db"), Rate(1, 10), Capacity(9, "free")
    first, second = tickets(admission, (named, unnamed), (free, named, unnamed))
    assert admission.admit(0) == [first]
    assert first.waited_for == ()
    assert second.waited_for == ("db", "Rate")


def test_the_next_room_is_when_all_rates_have_room() -> None:
    """A ticket's time is that of its latest rate, and the earliest ticket counts; a full capacity has no time."""
    admission = BeginningAtOnce()
    slow, fast, narrow = Rate(1, 10), Rate(1, 3), Capacity(1)
    _, second = tickets(admission, (slow, fast, narrow), (slow, fast))
    assert len(admission.admit(0)) == 1
    assert admission.next_room() == 10
    admission.add(Ticket((fast,)))
    assert admission.admit(0) == []
    assert admission.next_room() == 3
    assert len(admission.admit(3)) == 1
    admission.withdraw([second])
    tickets(admission, (slow, narrow))
    assert admission.admit(4) == []
    assert admission.next_room() == math.inf
    narrow.give()
    assert admission.admit(4) == []
    assert admission.next_room() == 10


def test_a_spent_ticket_that_is_withdrawn_gives_its_kept_token_to_the_next() -> None:
    """At once: nothing else may ever happen that would make anybody look."""
    admission = Admission()
    narrow, wide = Capacity(1), Capacity(1)
    (holder,) = tickets(admission, (narrow,))
    assert admission.admit(0) == [holder]
    (patient,) = tickets(admission, (narrow, wide))
    for _ in range(PATIENCE):
        tickets(admission, (wide,))
        assert len(admission.admit(0)) == 1
        wide.give()
    later = tickets(admission, (wide,))
    assert admission.admit(0) == []  # the last token is kept
    admission.withdraw([patient])
    assert admission.admit(0) == later


def test_withdrawing_twice_or_after_the_start_changes_nothing() -> None:
    """Only a waiting ticket can be withdrawn."""
    admission = Admission()
    one = Capacity(1)
    first, second, third = tickets(admission, (one,), (one,), (one,))
    admission.admit(0)
    admission.withdraw([first, second])
    admission.withdraw([second])
    assert len(admission) == 1
    one.give()
    assert admission.admit(0) == [third]
    admission.withdraw([first, second, third])
    assert len(admission) == 0


def test_what_an_admission_of_an_earlier_loop_left_at_a_limit_disturbs_nobody() -> None:
    """The old admission forgets its tickets late, when another admission has the limit already."""
    gone, here = Admission(), Admission()
    capacity = Capacity(1)
    _, left = tickets(gone, (capacity,), (capacity,))
    gone.admit(0)
    capacity.give()
    first, second = tickets(here, (capacity,), (capacity,))
    assert here.admit(0) == [first]
    gone.withdraw([left])
    capacity.give()
    assert here.admit(0) == [second]


@pytest.mark.parametrize("count", [1, 10])
def test_an_ordered_limit_is_strictly_first_come_first_served(count: int) -> None:
    """A later ticket doesn't pass one that waits for another limit beside it."""
    admission = Admission()
    ordered, narrow = OrderedCapacity(1), Capacity(1)
    holder, first, *rest = tickets(admission, (narrow,), (ordered, narrow), *[(ordered,)] * count)
    assert admission.admit(0) == [holder]
    narrow.give()
    order = []
    for _ in range(count + 1):
        [ticket] = admission.admit(0)
        order.append(ticket)
        for limit in ticket.limits:
            limit.give()
    assert order == [first, *rest]


def test_the_limit_protocol_has_no_numbers_of_its_own() -> None:
    """A kind of limit says what room is; by itself none ever comes."""
    limit = Limit()
    for method in (limit.free, limit.room, limit.take):
        with pytest.raises(NotImplementedError):
            method(0)
    with pytest.raises(NotImplementedError):
        limit.give()
    assert limit.next_room(0) == math.inf


# ---------------------------------------------------------------------------------------------- amounts


class _Tank(Limit):
    """A weighed limit: a ticket takes its weight of what is in it."""

    weighed = True
    freed_by_calls = False
    name = "tank"

    def __init__(self, size: int) -> None:
        self.left = size

    def free(self, now: float) -> float:
        """Return what is left."""
        return self.left

    def amount(self, weight: int) -> int:
        """Return the weight itself."""
        return weight

    def take_amount(self, amount: int) -> None:
        """Take it."""
        self.left -= amount

    def fill(self, amount: int) -> None:
        """Put *amount* back."""
        self.left += amount
        self.report_room()


def _admit(admission: Admission, *tickets: Ticket) -> list[Ticket]:
    for ticket in tickets:
        admission.add(ticket)
    return admission.admit(0.0)


def test_a_ticket_takes_its_amount_of_a_weighed_limit() -> None:
    """One that is too large waits until there is enough; a smaller one with other limits passes it."""
    admission, tank, other = Admission(), _Tank(10), Capacity(5)
    large, small = Ticket((tank,), weight=12), Ticket((tank, other), weight=4)
    assert _admit(admission, large, small) == [small]
    assert (tank.left, large.waited_for) == (6, ("tank",))
    tank.fill(5)
    assert admission.admit(1.0) == []
    tank.fill(1)
    assert admission.admit(2.0) == [large]
    assert tank.left == 0


def test_an_amount_is_kept_for_a_ticket_that_was_passed_often() -> None:
    """Else it would starve: the small ones would take each drop. What is beyond its amount they may take."""
    admission, tank, other = Admission(), _Tank(40), Capacity(None)
    large = Ticket((tank,), weight=41)
    assert _admit(admission, large) == []
    small = [Ticket((tank, other), weight=1) for _ in range(PATIENCE + 8)]
    started = _admit(admission, *small)
    assert len(started) == PATIENCE
    assert tank.left == 40 - PATIENCE
    tank.fill(PATIENCE + 3)  # there are 43 now: 41 for the large one, and 2 for others
    assert admission.admit(1.0) == [large, *small[PATIENCE : PATIENCE + 2]]
    assert tank.left == 0


def test_tickets_of_one_limit_have_their_amounts_kept_together() -> None:
    """Two that were passed often: the later one has only what the earlier one leaves."""
    admission, tank, gate, other = Admission(), _Tank(PATIENCE), Capacity(1), Capacity(None)
    gate.take(0.0)
    first, second = Ticket((tank, gate), weight=20), Ticket((tank,), weight=50)
    _admit(admission, first, second)
    small = [Ticket((tank, other), weight=1) for _ in range(PATIENCE + 1)]
    assert len(_admit(admission, *small)) == PATIENCE
    tank.fill(60)
    assert admission.admit(1.0) == []  # 60 are there, and 70 are kept
    gate.give()
    assert admission.admit(2.0) == [first]
    tank.fill(20)
    assert admission.admit(3.0) == [second, small[-1]]


def test_a_line_is_read_once_however_often_its_limit_gets_room() -> None:
    """Several may give a token back before the next admission."""
    admission, tank = Admission(), _Tank(0)
    waits = Ticket((tank,), weight=1)
    assert _admit(admission, waits) == []
    for _ in range(2):
        tank.line.mark()
    assert admission.marked == {tank.line: None}
    tank.fill(1)
    assert admission.admit(1.0) == [waits]
