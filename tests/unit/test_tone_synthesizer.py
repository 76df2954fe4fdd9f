"""The tone synthesizer's own interface: what it says of its requests is true."""

from __future__ import annotations

import threading

import pytest

from omnivoice.errors import RequestAborted
from omnivoice.request import SynthesisRequest
from worker.synthesizers import TONE_STEPS, ToneSynthesizer

SECONDS = 10.0


def tone(finishing_seconds: float) -> ToneSynthesizer:
    synthesizer = ToneSynthesizer(finishing_seconds=finishing_seconds)
    for name in ("one", "two"):
        synthesizer.add_request(name, SynthesisRequest(name, duration=1.0))
    return synthesizer


@pytest.mark.parametrize("finishing_seconds", [0.0, 0.02])
def test_loop_over_what_is_unfinished_brings_every_result(finishing_seconds: float) -> None:
    synthesizer = tone(finishing_seconds)
    generated: list[str] = []
    results = {}
    num_steps = 0
    while synthesizer.num_unfinished:
        results.update(synthesizer.step())
        generated += synthesizer.take_generated()
        num_steps += 1
    assert set(results) == {"one", "two"}
    assert generated == (["one", "two"] if finishing_seconds else []), "without a delay they end in their last step"
    assert TONE_STEPS <= num_steps <= TONE_STEPS + 2, "it waits for results and does not spin"
    for result in results.values():
        assert result.waveform is not None
        assert len(result.waveform) == 24_000
        assert result.batch_size == 2
        assert result.timings.decoded_ms >= finishing_seconds * 1_000


def test_callback_tells_of_results_and_a_step_waits_for_none() -> None:
    synthesizer = tone(0.05)
    told = threading.Event()
    synthesizer.notify_finished(told.set)
    for _ in range(TONE_STEPS):
        synthesizer.step()
    synthesizer.abort("two")
    [(name, aborted)] = synthesizer.step()
    assert name == "two"
    assert isinstance(aborted.error, RequestAborted)
    assert told.wait(SECONDS)
    results = []
    while not results:  # the first to be told may have been the aborted one
        assert told.wait(SECONDS)
        told.clear()
        results = synthesizer.step()
    assert [name for name, _ in results] == ["one"]
    assert synthesizer.num_unfinished == 0
