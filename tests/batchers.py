"""A batcher under test, with entries of its own: no ledger, no store."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from omnivoice.request import SynthesisResult
from worker.batcher import Batcher
from worker.entry import Entry, Outcome, Synthesized
from worker.jobs.ledger import Claim
from worker.jobs.models import JobRequest, Queue
from worker.jobs.names import new_job_id
from worker.synthesizers import ToneSynthesizer
from worker.window import Candidate, WindowLimits

SECONDS = 10.0
tokens = itertools.count(1)


def grant_all(claims: Sequence[Claim]) -> list[bool]:
    return [True] * len(claims)


def make_batcher(
    synthesizer: ToneSynthesizer,
    start: Callable[[list[Claim]], list[bool]] = grant_all,
    on_broken: Callable[[str], None] = lambda reason: None,
    *,
    max_wait_seconds: float = 0.1,
    step_mode: bool = False,
) -> Batcher:
    limits = WindowLimits(max_wait_seconds, max_requests=4, max_tokens=100_000)
    batcher = Batcher(synthesizer, limits, start, on_broken, joins_between_steps=step_mode)
    batcher.run()
    return batcher


def entry(text: str, *, attempts: int = 0) -> Entry:
    request = JobRequest.parse({"text": text, "duration": 1.0})
    claim = Claim(new_job_id(), next(tokens), attempts, request, None, 1.0, 0, Queue.INTERACTIVE)
    candidate = Candidate(time.monotonic(), 100, runs_alone=claim.must_run_alone)
    return Entry(claim, request.to_synthesis_request(), candidate)


def audio_of(outcome: object) -> SynthesisResult:
    assert isinstance(outcome, Synthesized)
    assert outcome.result.waveform is not None, outcome.result.error
    return outcome.result


def run(batcher: Batcher, entry: Entry) -> Future[Outcome]:
    """Submit, and settle as soon as there is an outcome."""
    future = batcher.submit(entry)
    future.add_done_callback(lambda _: batcher.settle(entry))
    return future
