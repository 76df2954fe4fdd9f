"""The window rule: when a window closes and who is in it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from worker.window import (
    BULK_HANDICAP_SECONDS,
    HUNG_SECONDS,
    MAX_PASSED_SECONDS,
    NO_WINDOW,
    Candidate,
    Load,
    WindowLimits,
    admit,
    gather,
    passable_since,
)

LIMITS = WindowLimits(max_wait_seconds=0.05, max_requests=4, max_tokens=1_000)


def small(arrived_at: float = 0.0, num_tokens: int = 10, *, bulk: bool = False, alone: bool = False) -> Candidate:
    return Candidate(arrived_at, num_tokens, is_bulk=bulk, runs_alone=alone)


def test_nothing_waits_so_nothing_closes() -> None:
    window = gather([], LIMITS)
    assert window.members == ()
    assert window.closes_at == math.inf


def test_window_closes_when_its_oldest_member_has_waited() -> None:
    window = gather([small(10.03), small(10.0)], LIMITS)
    assert set(window.members) == {0, 1}
    assert window.closes_at == 10.0 + LIMITS.max_wait_seconds


def test_window_closes_at_its_count() -> None:
    assert gather([small()] * 3, LIMITS).closes_at == LIMITS.max_wait_seconds
    full = gather([small(float(index)) for index in range(6)], LIMITS)
    assert full.members == (0, 1, 2, 3)
    assert full.closes_at == -math.inf


def test_window_closes_at_its_tokens() -> None:
    full = gather([small(0, 600), small(1, 400)], LIMITS)
    assert full.members == (0, 1)
    assert full.closes_at == -math.inf
    over = gather([small(0, 600), small(1, 401)], LIMITS)
    assert over.members == (0,)
    assert over.closes_at == -math.inf


def test_job_that_does_not_fit_is_not_overtaken_for_ever() -> None:
    window = gather([small(0, 600), small(1, 900), small(2, 10)], LIMITS)
    assert window.members == (0,), "the small job behind must not take the large one's place"


def test_job_above_the_whole_allowance_runs_by_itself() -> None:
    window = gather([small(0, 5_000), small(1)], LIMITS)
    assert window.members == (0,)
    assert window.closes_at == -math.inf


def test_interactive_enters_before_bulk() -> None:
    waiting = [small(float(index) / 10, bulk=True) for index in range(4)] + [small(1.0)]
    assert gather(waiting, LIMITS).members == (4, 0, 1, 2)


def test_bulk_is_overtaken_only_for_so_long() -> None:
    late = BULK_HANDICAP_SECONDS + 0.1
    waiting = [small(0.0, bulk=True)] + [small(late) for _ in range(4)]
    assert gather(waiting, LIMITS).members[0] == 0


def test_second_attempt_runs_alone_and_at_once() -> None:
    window = gather([small(0.0, alone=True), small(0.1), small(0.2)], LIMITS)
    assert window.members == (0,)
    assert window.closes_at == -math.inf


def test_second_attempt_keeps_its_place_while_others_go_first() -> None:
    waiting = [small(0.0), small(0.1, alone=True), small(0.2)]
    assert gather(waiting, LIMITS).members == (0, 2)
    assert gather([waiting[1], small(0.3)], LIMITS).members == (0,)


def test_running_requests_leave_room_for_the_rest_only() -> None:
    waiting = [small(float(index), 100) for index in range(4)]
    assert admit(waiting, LIMITS, Load(num_requests=2, num_tokens=200)) == (0, 1)
    assert admit(waiting, LIMITS, Load(num_requests=1, num_tokens=850)) == (0,)
    assert admit(waiting, LIMITS, Load(num_requests=4, num_tokens=400)) == ()


def test_nobody_joins_a_job_that_runs_alone() -> None:
    assert admit([small()], LIMITS, Load(1, 10, runs_alone=True)) == ()


def test_second_attempt_waits_for_an_empty_synthesizer_and_holds_others_back() -> None:
    waiting = [small(0.0, alone=True), small(0.1)]
    assert admit(waiting, LIMITS, Load(num_requests=1, num_tokens=10)) == ()
    assert admit(waiting, LIMITS, Load()) == (0,)


def test_second_attempt_waits_until_nothing_is_on_its_way_to_the_store_either() -> None:
    second, first = small(0.0, alone=True), small(0.1)
    assert gather([second, first], LIMITS, Load(num_unsettled=1)) == NO_WINDOW
    assert gather([second, first], LIMITS, Load()).members == (0,)
    assert gather([first], LIMITS, Load(num_unsettled=9)).members == (0,), "what is unsettled takes no room"
    assert admit([first], LIMITS, Load(num_unsettled=9)) == (0,)


def test_others_pass_a_second_attempt_while_an_upload_hangs_for_so_long() -> None:
    second, first = small(100.0, alone=True), small(100.1)

    def load_at(now: float) -> Load:
        return Load(num_unsettled=1, passable_since=passable_since([99.9], now))

    soon, late, too_late = 99.9 + HUNG_SECONDS, 100.2 + HUNG_SECONDS, 100.1 + MAX_PASSED_SECONDS
    assert gather([second, first], LIMITS, load_at(soon)) == NO_WINDOW, "it may come to its end any moment"
    assert gather([second, first], LIMITS, load_at(late)).members == (1,)
    assert gather([second, small(late, alone=True)], LIMITS, load_at(late)) == NO_WINDOW, "those wait for it still"
    assert gather([second, first], LIMITS, load_at(too_late)) == NO_WINDOW, "it must come to its turn some time"
    assert passable_since([], 1_000.0) == math.inf


def test_second_attempt_waits_until_nothing_is_finishing_either() -> None:
    second, first = small(0.0, alone=True), small(0.1)
    assert gather([second, first], LIMITS, Load(num_finishing=1)) == NO_WINDOW
    assert admit([second, first], LIMITS, Load(2, 20, num_finishing=1)) == ()
    assert gather([first], LIMITS, Load(runs_alone=True, num_finishing=1)) == NO_WINDOW, "it is alone to its end"


candidates = st.lists(
    st.builds(Candidate, st.floats(0, 100), st.integers(1, 2_000), is_bulk=st.booleans(), runs_alone=st.booleans()),
    max_size=12,
)
held_back = {
    "num_finishing": st.integers(0, 9),
    "num_unsettled": st.integers(0, 2),
    "passable_since": st.sampled_from([0.0, 50.0, math.inf]),
}
loads = st.builds(Load, st.integers(0, 5), st.integers(0, 1_500), **held_back)


@given(candidates, loads)
def test_limits_hold_for_any_queue(waiting: Sequence[Candidate], running: Load) -> None:
    members = admit(waiting, LIMITS, running)
    assert len(set(members)) == len(members)
    assert running.num_requests + len(members) <= max(LIMITS.max_requests, running.num_requests)
    if members and running.num_requests + len(members) > 1:
        assert running.num_tokens + sum(waiting[index].num_tokens for index in members) <= LIMITS.max_tokens
    if any(waiting[index].runs_alone for index in members):
        assert len(members) == 1
        assert running.is_clear


@given(candidates, loads)
def test_what_has_been_generated_takes_no_room(waiting: list[Candidate], load: Load) -> None:
    waiting = [replace(candidate, runs_alone=False) for candidate in waiting]
    assert gather(waiting, LIMITS, load) == gather(waiting, LIMITS, replace(load, num_finishing=0, num_unsettled=0))


@given(candidates)
def test_every_job_gets_its_turn(waiting: list[Candidate]) -> None:
    left = list(waiting)
    for _ in waiting:
        members = gather(left, LIMITS).members
        left = [candidate for index, candidate in enumerate(left) if index not in members]
    assert left == [], "an idle synthesizer must always take at least one job"
