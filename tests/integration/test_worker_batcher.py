"""The batcher's loop with synthesizers that behave, refuse, fail, and never recover."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest
from batchers import SECONDS, audio_of, entry, grant_all, make_batcher, run
from servers import wait_until

from omnivoice.errors import GenerationFailed, InvalidRequest, RequestAborted
from omnivoice.request import SynthesisRequest, SynthesisResult
from worker.batcher import MAX_FAILURES, Batcher
from worker.calls import CallHandedBack, CallRefused, SynthesizerFailed
from worker.entry import Entry, HandedBack, NotStarted, Rejected, Synthesized
from worker.jobs.errors import QueueUnavailable
from worker.jobs.ledger import Claim
from worker.synthesizers import ToneSynthesizer, tone_hertz


class FragileSynthesizer(ToneSynthesizer):
    """Fails every step in which a request whose text holds "boom" runs; recovers when it is aborted, or never."""

    def __init__(self, window_seconds: float = 0.0, *, recovers: bool = True) -> None:
        super().__init__(window_seconds)
        self._booms: set[str] = set()
        self._recovers = recovers
        self.threads: set[int] = set()

    def add_request(self, request_id: str, request: SynthesisRequest) -> None:
        super().add_request(request_id, request)
        if "boom" in request.text:
            self._booms.add(request_id)

    def step(self) -> list[tuple[str, SynthesisResult]]:
        self.threads.add(threading.get_ident())
        if self._booms:
            raise RuntimeError("the device is on fire")
        return super().step()

    def abort(self, request_id: str) -> None:
        super().abort(request_id)
        if self._recovers:
            self._booms.discard(request_id)


def test_failed_step_sends_a_batch_back_and_the_loop_lives_on() -> None:
    batcher = make_batcher(FragileSynthesizer())
    futures = [batcher.submit(entry(text)) for text in ("one", "boom", "three")]
    outcomes = [future.result(SECONDS) for future in futures]
    for outcome in outcomes:
        assert isinstance(outcome, HandedBack)
        assert outcome.counts_attempt, "or the second attempt would not run alone"
    audio_of(batcher.submit(entry("one", attempts=1)).result(SECONDS))
    audio_of(batcher.submit(entry("four")).result(SECONDS))


def test_failed_step_of_one_request_is_its_own_fault() -> None:
    batcher = make_batcher(FragileSynthesizer())
    outcome = batcher.submit(entry("boom", attempts=1)).result(SECONDS)
    assert isinstance(outcome, Rejected)
    assert isinstance(outcome.error, GenerationFailed)
    assert "on fire" in str(outcome.error)
    audio_of(batcher.submit(entry("next")).result(SECONDS))


def test_second_attempt_runs_alone() -> None:
    batcher = make_batcher(ToneSynthesizer(0.05), max_wait_seconds=0.3)
    futures = [run(batcher, entry(f"{index}", attempts=index % 2)) for index in range(4)]
    sizes = [audio_of(future.result(SECONDS)).batch_size for future in futures]
    assert sizes == [2, 1, 2, 1]


def test_synthesizer_that_does_not_recover_is_reported_and_everything_is_handed_back() -> None:
    reasons: list[str] = []
    batcher = make_batcher(FragileSynthesizer(recovers=False), on_broken=reasons.append)
    assert isinstance(batcher.submit(entry("boom")).result(SECONDS), Rejected)
    wait_until(lambda: reasons, what="the report")
    assert isinstance(batcher.submit(entry("too late")).result(SECONDS), HandedBack)
    assert reasons == ["the device is on fire"]


def test_request_that_is_not_accepted_leaves_its_mates_alone() -> None:
    batcher = make_batcher(ToneSynthesizer())
    bad = entry("bad")
    bad = Entry(bad.claim, SynthesisRequest("bad", language="klingonese"), bad.candidate)
    futures = [batcher.submit(item) for item in (entry("one"), bad, entry("three"))]
    first, refused, third = [future.result(SECONDS) for future in futures]
    assert isinstance(refused, Rejected)
    assert isinstance(refused.error, InvalidRequest)
    assert [audio_of(outcome).batch_size for outcome in (first, third)] == [2, 2]


def test_ledger_says_who_starts() -> None:
    def refuse_second(claims: Sequence[Claim]) -> list[bool]:
        return [claim.request.text != "second" for claim in claims]

    batcher = make_batcher(ToneSynthesizer(), refuse_second)
    first, second = [batcher.submit(entry(text)) for text in ("first", "second")]
    audio_of(first.result(SECONDS))
    assert isinstance(second.result(SECONDS), NotStarted)


def test_window_is_handed_back_when_the_ledger_cannot_be_reached() -> None:
    answers = iter([False, True])

    def start(claims: Sequence[Claim]) -> list[bool]:
        if not next(answers):
            raise QueueUnavailable("Redis is gone")
        return grant_all(claims)

    batcher = make_batcher(ToneSynthesizer(), start)
    outcome = batcher.submit(entry("unlucky")).result(SECONDS)
    assert isinstance(outcome, HandedBack)
    assert not outcome.counts_attempt
    audio_of(batcher.submit(entry("lucky")).result(SECONDS))


@pytest.mark.parametrize("step_mode", [False, True])
def test_late_job_joins_between_steps_in_step_mode_alone(step_mode: bool) -> None:
    batcher = make_batcher(ToneSynthesizer(0.8), max_wait_seconds=0.0, step_mode=step_mode)
    early = batcher.submit(entry("early"))
    wait_until(lambda: batcher.busy_since is not None, what="the first window")
    late = batcher.submit(entry("late"))
    outcomes = [early.result(SECONDS), late.result(SECONDS)]
    assert [outcome.batch_size for outcome in outcomes if isinstance(outcome, Synthesized)] == (
        [2, 2] if step_mode else [1, 1]
    )


def test_calls_run_on_the_batchers_thread_between_steps() -> None:
    synthesizer = FragileSynthesizer(0.8)
    batcher = make_batcher(synthesizer, max_wait_seconds=0.0)
    running = batcher.submit(entry("running"))
    wait_until(lambda: synthesizer.threads, what="a step")
    thread = batcher.call(lambda _: threading.get_ident()).result(SECONDS)
    assert not running.done(), "a call waits for a step, not for a whole window"
    assert {thread} == synthesizer.threads
    with pytest.raises(InvalidRequest):
        batcher.call(lambda given: given.add_request("x", SynthesisRequest(""))).result(SECONDS)
    audio_of(running.result(SECONDS))


@pytest.mark.parametrize("step_mode", [False, True])
def test_call_that_runs_alone_waits_for_what_runs_and_lets_nobody_join(step_mode: bool) -> None:
    synthesizer = FragileSynthesizer(0.4)
    batcher = make_batcher(synthesizer, max_wait_seconds=0.0, step_mode=step_mode)
    running = run(batcher, entry("running"))
    wait_until(lambda: synthesizer.threads, what="a step")
    call = batcher.call(lambda given: given.num_unfinished, runs_alone=True)
    late = batcher.submit(entry("late"))
    assert call.result(SECONDS) == 0
    assert running.done()
    assert not late.done()
    assert audio_of(late.result(SECONDS)).batch_size == 1


@pytest.mark.parametrize("step_mode", [False, True])
def test_what_runs_alone_waits_for_results_on_their_way_to_the_store(step_mode: bool) -> None:
    started: list[str] = []

    def start(claims: Sequence[Claim]) -> list[bool]:
        started.extend(claim.id for claim in claims)
        return grant_all(claims)

    batcher = make_batcher(ToneSynthesizer(), start, max_wait_seconds=0.0, step_mode=step_mode)
    ended, alone, late = entry("ended"), entry("alone", attempts=1), entry("late")
    audio_of(batcher.submit(ended).result(SECONDS))
    outcomes = [run(batcher, waiting) for waiting in (alone, late)]
    for _ in range(2):  # the second call is made after the batcher has looked at who waits
        batcher.call(lambda _: None).result(SECONDS)
    assert started == [ended.claim.id]
    call = batcher.call(lambda _: len(started), runs_alone=True)
    batcher.settle(ended)
    assert call.result(SECONDS) == 1, "it came first to the point where nothing ran"
    for outcome in outcomes:
        audio_of(outcome.result(SECONDS))
    assert started == [ended.claim.id, alone.claim.id, late.claim.id]


@pytest.mark.parametrize("step_mode", [False, True])
def test_others_go_before_what_runs_alone_while_an_upload_hangs(step_mode: bool) -> None:
    batcher = make_batcher(ToneSynthesizer(), max_wait_seconds=0.0, step_mode=step_mode)
    hung, alone, late = entry("hung"), entry("alone", attempts=1), entry("late")
    audio_of(batcher.submit(hung).result(SECONDS))
    second = run(batcher, alone)
    call = batcher.call(lambda given: given.num_unfinished, runs_alone=True)
    audio_of(run(batcher, late).result(SECONDS))
    assert batcher.call(lambda _: "made").result(SECONDS) == "made"
    assert not second.done(), "its death would take the audio along"
    assert not call.done()
    batcher.settle(hung)
    assert audio_of(second.result(SECONDS)).batch_size == 1
    assert call.result(SECONDS) == 0


def test_drain_hands_back_who_waits_for_results_on_their_way() -> None:
    batcher = make_batcher(ToneSynthesizer(), max_wait_seconds=0.0)
    audio_of(batcher.submit(entry("ended")).result(SECONDS))
    alone = batcher.submit(entry("alone", attempts=1))
    batcher.drain()
    assert isinstance(alone.result(SECONDS), HandedBack)


def test_call_is_started_when_its_turn_comes_and_may_be_refused() -> None:
    synthesizer = FragileSynthesizer(0.4)
    batcher = make_batcher(synthesizer, max_wait_seconds=0.0)
    running = run(batcher, entry("running"))
    wait_until(lambda: synthesizer.threads, what="a step")
    call = batcher.call(lambda _: "made", runs_alone=True, start=running.done)
    assert call.result(SECONDS) == "made", "asked to start only once it could be made"
    with pytest.raises(CallRefused):
        batcher.call(lambda _: None, start=lambda: False).result(SECONDS)

    def unreachable() -> bool:
        raise QueueUnavailable("no Redis")

    for _ in range(MAX_FAILURES + 1):
        with pytest.raises(QueueUnavailable):
            batcher.call(lambda _: None, start=unreachable).result(SECONDS)
    audio_of(run(batcher, entry("next")).result(SECONDS))  # the synthesizer is not to blame


def test_calls_that_fail_in_a_row_mean_a_broken_synthesizer() -> None:
    reasons: list[str] = []
    batcher = make_batcher(ToneSynthesizer(), on_broken=reasons.append)

    def fail(_: object) -> None:
        raise RuntimeError("the device is lost")

    for _ in range(MAX_FAILURES):
        assert reasons == []
        with pytest.raises(SynthesizerFailed, match="the device is lost"):
            batcher.call(fail).result(SECONDS)
    wait_until(lambda: reasons == ["the device is lost"], what="the report")
    with pytest.raises(CallHandedBack):
        batcher.call(fail).result(SECONDS)
    assert reasons == ["the device is lost"], "told once"


def test_abort_of_waiting_and_running_jobs() -> None:
    batcher = make_batcher(ToneSynthesizer(4.0), max_wait_seconds=0.0)
    running, waiting = entry("running"), entry("waiting")
    batcher.submit(running)
    wait_until(lambda: batcher.busy_since is not None, what="the window")
    batcher.submit(waiting)
    batcher.abort(waiting.claim)
    assert isinstance(waiting.future.result(0), NotStarted)
    wait_until(lambda: batcher.abort(running.claim) or running.future.done(), 2, "the end at the next step")
    outcome = running.future.result()
    assert isinstance(outcome, Synthesized)
    assert isinstance(outcome.result.error, RequestAborted)


def test_surrender_does_not_need_the_thread_that_hangs() -> None:
    batcher = make_batcher(ToneSynthesizer(600.0), max_wait_seconds=0.0)
    futures = [batcher.submit(entry("hangs"))]
    wait_until(lambda: batcher.busy_since is not None, what="the hang")
    futures.append(batcher.submit(entry("waits")))
    batcher.surrender("time is up")
    assert [future.result(0) for future in futures] == [HandedBack("time is up")] * 2
    assert isinstance(batcher.submit(entry("comes too late")).result(0), HandedBack)


@pytest.mark.parametrize("end", [Batcher.drain, lambda batcher: batcher.surrender("time is up")])
def test_calls_are_handed_back_when_the_worker_ends(end: Callable[[Batcher], None]) -> None:
    """Also one that waits to be alone, for as long as what runs hangs."""
    batcher = make_batcher(ToneSynthesizer(600.0), max_wait_seconds=0.0)
    batcher.submit(entry("hangs"))
    wait_until(lambda: batcher.busy_since is not None, what="the hang")
    call = batcher.call(lambda _: None, runs_alone=True)
    end(batcher)
    for handed_back in (call, batcher.call(lambda _: None)):
        with pytest.raises(CallHandedBack):
            handed_back.result(0)


def test_tones_of_different_texts_differ() -> None:
    assert len({tone_hertz(f"sentence {index}") for index in range(20)}) == 20
