"""The next window is generated while the last one is finished, and what is finishing is not lost sight of."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from batchers import SECONDS, audio_of, entry, grant_all, make_batcher, run
from servers import wait_until

from omnivoice.errors import RequestAborted
from omnivoice.request import SynthesisRequest, SynthesisResult
from worker.batcher import Batcher
from worker.entry import HandedBack, Synthesized
from worker.jobs.ledger import Claim
from worker.synthesizers import ToneSynthesizer, tone_hertz

both_modes = pytest.mark.parametrize("step_mode", [False, True])


class HeldSynthesizer(ToneSynthesizer):
    """Finishes a request once its text is released; a step fails in which a request runs whose text holds "boom"."""

    def __init__(self) -> None:
        super().__init__(finishing_seconds=SECONDS)
        self.finishing: dict[str, threading.Event] = defaultdict(threading.Event)
        self.released: dict[str, threading.Event] = defaultdict(threading.Event)
        self.num_steps = 0
        self.tell: Callable[[], None] | None = None
        self.tell_progress: Callable[[], None] | None = None

    def notify_finished(
        self, callback: Callable[[], None] | None, on_progress: Callable[[], None] | None = None
    ) -> None:
        super().notify_finished(callback, on_progress)
        self.tell, self.tell_progress = callback, on_progress

    def hold(self, request: SynthesisRequest) -> None:
        self.finishing[request.text].set()
        self.released[request.text].wait(SECONDS)

    def wait_finishing(self, *texts: str) -> None:
        """Until these are generated, each of them."""
        for text in texts:
            assert self.finishing[text].wait(SECONDS), text

    def step(self) -> list[tuple[str, SynthesisResult]]:
        self.num_steps += 1
        if any("boom" in tone.request.text and not tone.is_aborted for tone in self._running.values()):
            raise RuntimeError("the device is on fire")
        return super().step()


class Starts:
    """The ledger's part: grants every start, and knows their order."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, claims: Sequence[Claim]) -> list[bool]:
        self.texts.extend(claim.request.text for claim in claims)
        return grant_all(claims)


@pytest.fixture
def held() -> Iterator[HeldSynthesizer]:
    synthesizer = HeldSynthesizer()
    yield synthesizer
    for release in synthesizer.released.values():
        release.set()


def let_it_look(batcher: Batcher) -> None:
    """The first call is made after the step that ran, the second after the batcher has looked at who waits."""
    for _ in range(2):
        batcher.call(lambda _: None).result(SECONDS)


@both_modes
def test_next_window_is_generated_while_the_last_is_finished(held: HeldSynthesizer, step_mode: bool) -> None:
    batcher = make_batcher(held, max_wait_seconds=0.0, step_mode=step_mode)
    first = batcher.submit(entry("first"))
    held.wait_finishing("first")
    let_it_look(batcher)
    since = batcher.busy_since
    second = batcher.submit(entry("second"))
    held.wait_finishing("second")
    assert not first.done()
    assert batcher.busy_since == since, "the watchdog must see the one that is finished first, too"
    held.released["second"].set()
    assert audio_of(second.result(SECONDS)).timings.decoded_ms > 0
    assert not first.done()
    held.released["first"].set()
    outcomes = [first.result(SECONDS), second.result(SECONDS)]
    assert [outcome.batch_size for outcome in outcomes if isinstance(outcome, Synthesized)] == [1, 1]


def test_each_part_that_is_finished_is_seen_by_the_watchdog(held: HeldSynthesizer) -> None:
    batcher = make_batcher(held, max_wait_seconds=0.0)
    outcome = batcher.submit(entry("long"))
    held.wait_finishing("long")
    let_it_look(batcher)
    since = batcher.busy_since
    assert since is not None
    assert held.tell_progress is not None
    held.tell_progress()
    moved = batcher.busy_since
    assert moved is not None
    assert moved > since
    held.released["long"].set()
    audio_of(outcome.result(SECONDS))


def test_what_is_finishing_takes_no_room_in_the_window(held: HeldSynthesizer) -> None:
    batcher = make_batcher(held, max_wait_seconds=60.0)  # windows close when they are full, with four
    texts = [f"{number}" for number in range(12)]
    futures = [run(batcher, entry(text)) for text in texts]
    held.wait_finishing(*texts)
    for text in texts:
        held.released[text].set()
    outcomes = [future.result(SECONDS) for future in futures]
    assert [outcome.batch_size for outcome in outcomes if isinstance(outcome, Synthesized)] == [4] * 12


def test_it_waits_for_results_without_stepping(held: HeldSynthesizer) -> None:
    batcher = make_batcher(held, max_wait_seconds=0.0)
    futures = [run(batcher, entry(text)) for text in ("first", "second")]
    held.wait_finishing("first", "second")
    before = batcher.call(lambda _: held.num_steps).result(SECONDS)
    let_it_look(batcher)
    assert batcher.call(lambda _: held.num_steps).result(SECONDS) == before
    held.released["first"].set()
    audio_of(futures[0].result(SECONDS))
    assert batcher.call(lambda _: held.num_steps).result(SECONDS) == before + 1, "one to collect it"
    assert not futures[1].done()
    held.released["second"].set()
    audio_of(futures[1].result(SECONDS))


@both_modes
def test_what_runs_alone_waits_for_what_is_finishing(held: HeldSynthesizer, step_mode: bool) -> None:
    """A deadly job would take the finished codes along: it would be its mates' fault that they were fast."""
    starts = Starts()
    batcher = make_batcher(held, starts, max_wait_seconds=0.0, step_mode=step_mode)
    finishing = run(batcher, entry("finishing"))
    held.wait_finishing("finishing")
    futures = [run(batcher, entry("deadly", attempts=1)), run(batcher, entry("late"))]
    let_it_look(batcher)
    assert starts.texts == ["finishing"]
    call = batcher.call(lambda given: (given.num_unfinished, finishing.done()), runs_alone=True)
    held.released["finishing"].set()
    assert call.result(SECONDS) == (0, True)
    audio_of(finishing.result(SECONDS))
    for text, future in zip(("deadly", "late"), futures, strict=True):
        held.released[text].set()
        audio_of(future.result(SECONDS))
    assert starts.texts == ["finishing", "deadly", "late"]


@both_modes
def test_nobody_starts_while_a_job_that_runs_alone_is_finishing(held: HeldSynthesizer, step_mode: bool) -> None:
    starts = Starts()
    batcher = make_batcher(held, starts, max_wait_seconds=0.0, step_mode=step_mode)
    deadly = batcher.submit(entry("deadly", attempts=1))
    held.wait_finishing("deadly")
    late = batcher.submit(entry("late"))
    call = batcher.call(lambda given: given.num_unfinished)
    num_steps = held.num_steps
    assert held.tell is not None
    held.tell()  # for nothing: but the batcher looks at who waits before it steps
    wait_until(lambda: held.num_steps > num_steps, what="a step")
    assert starts.texts == ["deadly"]
    assert not call.done()
    held.released["deadly"].set()
    audio_of(deadly.result(SECONDS))
    assert call.result(SECONDS) == 0
    held.released["late"].set()
    audio_of(late.result(SECONDS))


def test_abort_of_a_finishing_request_ends_it_and_no_other(held: HeldSynthesizer) -> None:
    batcher = make_batcher(held)
    aborted, mate = entry("aborted"), entry("mate")
    futures = [run(batcher, item) for item in (aborted, mate)]
    held.wait_finishing("aborted", "mate")
    let_it_look(batcher)
    batcher.abort(aborted.claim)
    outcome = futures[0].result(SECONDS)
    assert isinstance(outcome, Synthesized)
    assert isinstance(outcome.result.error, RequestAborted)
    held.released["aborted"].set()  # its result comes after all, and nobody wants it
    let_it_look(batcher)
    assert not futures[1].done()
    held.released["mate"].set()
    audio_of(futures[1].result(SECONDS))
    wait_until(lambda: batcher.is_idle, what="an empty synthesizer")


def test_drain_waits_for_what_is_finishing(held: HeldSynthesizer) -> None:
    batcher = make_batcher(held, max_wait_seconds=0.0)
    finishing = batcher.submit(entry("finishing"))
    held.wait_finishing("finishing")
    let_it_look(batcher)
    batcher.drain()
    assert isinstance(batcher.submit(entry("too late")).result(0), HandedBack)
    assert not finishing.done()
    assert not batcher.is_idle
    assert batcher.busy_since is not None
    held.released["finishing"].set()
    audio_of(finishing.result(SECONDS))
    wait_until(lambda: batcher.is_idle, what="the end of the drain")


def test_surrender_hands_back_what_is_finishing(held: HeldSynthesizer) -> None:
    batcher = make_batcher(held, max_wait_seconds=0.0)
    finishing = batcher.submit(entry("finishing"))
    held.wait_finishing("finishing")
    let_it_look(batcher)
    batcher.surrender("time is up")
    assert finishing.result(0) == HandedBack("time is up")
    wait_until(lambda: batcher.is_idle and held.num_unfinished == 0, what="an empty synthesizer")


def test_failed_step_sends_back_what_is_finishing_too(held: HeldSynthesizer) -> None:
    """The synthesizer is emptied after it, so that none may be left in there that nobody waits for."""
    reasons: list[str] = []
    batcher = make_batcher(held, on_broken=reasons.append, max_wait_seconds=0.0)
    finishing = run(batcher, entry("finishing"))
    held.wait_finishing("finishing")
    futures = [finishing, run(batcher, entry("boom"))]
    for future in futures:
        outcome = future.result(SECONDS)
        assert isinstance(outcome, HandedBack)
        assert outcome.counts_attempt, "or the second attempt would not run alone"
    assert batcher.call(lambda given: given.num_unfinished, runs_alone=True).result(SECONDS) == 0
    held.released["finishing"].set()
    audio_of(run(batcher, entry("finishing", attempts=1)).result(SECONDS))
    assert reasons == []


@both_modes
def test_every_result_comes_out_under_a_crowd(step_mode: bool) -> None:
    """Of jobs that enter, are generated, finished and aborted at the same time none is lost, mixed up or forgotten."""
    batcher = make_batcher(ToneSynthesizer(0.008, finishing_seconds=0.003), max_wait_seconds=0.002, step_mode=step_mode)

    def one(number: int) -> bool:
        item = entry(f"Sentence {number}.", attempts=number % 20 == 10)
        future = run(batcher, item)
        if number % 7 == 3:
            batcher.abort(item.claim)
        outcome = future.result(SECONDS)
        if not isinstance(outcome, Synthesized) or outcome.result.error is not None:
            return False
        spectrum = np.abs(np.fft.rfft(audio_of(outcome).waveform))
        assert len(spectrum) == 12_001, "a second, so that its bins are Hertz"
        assert np.argmax(spectrum) == tone_hertz(item.request.text)
        assert 1 <= outcome.batch_size <= 4
        return True

    with ThreadPoolExecutor(12) as callers:
        has_audio = list(callers.map(one, range(120)))
    assert [number for number, heard in enumerate(has_audio) if not heard and number % 7 != 3] == []
    wait_until(lambda: batcher.is_idle, what="an empty synthesizer")
    assert batcher.call(lambda given: given.num_unfinished, runs_alone=True).result(SECONDS) == 0
