"""What leaves the engine is finite, never clipped, at the level that the voice asks for."""

from __future__ import annotations

import numpy as np
import pytest

from omnivoice import GenerationFailed, SamplingParams, VoicePrompt
from omnivoice.finishing import finish

RAW = SamplingParams(postprocess_output=False, pad_duration=0.0, fade_duration=0.0)


def tone(peak: float, seconds: float = 1.0) -> np.ndarray:
    time = np.arange(int(24_000 * seconds)) / 24_000
    return (peak * np.sin(2 * np.pi * 220 * time)).astype(np.float32)


def voice(rms: float | None) -> VoicePrompt:
    return VoicePrompt(np.zeros((8, 25), dtype=np.int64), "A line.", rms)


@pytest.mark.parametrize("peak", [0.01, 0.9, 1.7, 40.0])
def test_without_a_voice_the_peak_is_a_half(peak: float) -> None:
    found = finish([tone(peak)], SamplingParams(), None)
    assert np.abs(found).max() == pytest.approx(0.5, abs=1e-3)


def test_a_quiet_voice_gets_its_level_back() -> None:
    found = finish([tone(0.5)], RAW, voice(0.05))
    np.testing.assert_allclose(found, tone(0.25), atol=1e-6)


@pytest.mark.parametrize("rms", [0.1, 0.3, None])
def test_other_voices_leave_the_level(rms: float | None) -> None:
    np.testing.assert_allclose(finish([tone(0.5)], RAW, voice(rms)), tone(0.5), atol=1e-6)


def test_a_quiet_voice_over_one_is_scaled_to_one() -> None:
    found = finish([tone(30.0)], RAW, voice(0.05))  # at its level it would peak at 15
    np.testing.assert_allclose(found, tone(1.0), atol=1e-5)


def test_chunks_are_left_as_they_were() -> None:
    chunks = [tone(1.7), tone(0.4)]
    copies = [chunk.copy() for chunk in chunks]
    finish(chunks, SamplingParams(), None)
    finish(chunks[:1], SamplingParams(), voice(0.05))
    assert all(np.array_equal(chunk, copy) for chunk, copy in zip(chunks, copies, strict=True))


@pytest.mark.parametrize("params", [RAW, SamplingParams()])
def test_a_peak_over_one_is_scaled_with_its_shape_kept(params: SamplingParams) -> None:
    found = finish([tone(1.7)], params, voice(0.2))
    assert np.abs(found).max() == pytest.approx(1.0, abs=1e-3)
    loud = np.abs(found) > 0.999
    assert loud.mean() < 0.05  # a clipped sine of this peak would sit at full scale for more than half of the time


@pytest.mark.parametrize("sample", [np.nan, np.inf, -np.inf])
def test_audio_that_is_not_finite_fails(sample: float) -> None:
    spoilt = tone(0.5)
    spoilt[100] = sample
    with pytest.raises(GenerationFailed, match="finite"):
        finish([spoilt], SamplingParams(), None)


@pytest.mark.parametrize("waveform", [np.zeros(24_000, np.float32), tone(5e-5), np.zeros(0, np.float32)])
def test_silent_audio_fails(waveform: np.ndarray) -> None:
    with pytest.raises(GenerationFailed, match="silent"):
        finish([waveform], SamplingParams(), None)
