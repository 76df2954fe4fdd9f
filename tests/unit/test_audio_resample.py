"""The resampler against properties of the filter and against its formula written out as a convolution."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from omnivoice.audio.resample import resample

DOWN = [(24_000, 16_000), (44_100, 24_000), (48_000, 24_000)]
UP = [(16_000, 24_000), (8_000, 24_000), (22_050, 24_000), (24_000, 44_100)]
RATES = [*DOWN, *UP]


def slow_resample(waveform: NDArray[np.float32], from_rate: int, to_rate: int) -> NDArray[np.float64]:
    """Sum over every input sample for every output sample: the windowed sinc as it is defined."""
    base = min(from_rate, to_rate) * 0.99
    num_out = math.ceil(len(waveform) * to_rate / from_rate)
    seconds = np.arange(len(waveform)) / from_rate
    found = np.zeros(num_out)
    for n in range(num_out):
        t = (seconds - n / to_rate) * base
        near = np.abs(t) < 6
        weights = np.sinc(t[near]) * np.cos(t[near] * np.pi / 12) ** 2
        found[n] = (weights * waveform[near]).sum() * base / from_rate
    return found


@pytest.mark.parametrize(("from_rate", "to_rate"), [*RATES, (11_025, 8_000), (44_101, 24_000)])
def test_agrees_with_its_slow_twin(from_rate: int, to_rate: int) -> None:
    waveform = np.random.default_rng(1).standard_normal(1_501).astype(np.float32)
    found, expected = resample(waveform, from_rate, to_rate), slow_resample(waveform, from_rate, to_rate)
    assert found.dtype == np.float32
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() < 2e-6


@pytest.mark.parametrize(("from_rate", "to_rate"), RATES)
def test_a_tone_stays_that_tone(from_rate: int, to_rate: int) -> None:
    found = resample(np.sin(2 * np.pi * 440 * np.arange(from_rate) / from_rate), from_rate, to_rate)
    expected = np.sin(2 * np.pi * 440 * np.arange(to_rate) / to_rate)
    inner = slice(to_rate // 50, -to_rate // 50)
    assert np.abs(found[inner] - expected[inner]).max() < 5e-3


def test_what_the_lower_rate_cannot_hold_is_removed() -> None:
    tone = np.sin(2 * np.pi * 11_000 * np.arange(24_000) / 24_000)
    assert np.abs(resample(tone, 24_000, 16_000)[200:-200]).max() < 5e-3


def test_blocks_leave_no_seam() -> None:
    waveform = np.random.default_rng(2).standard_normal(150_000).astype(np.float32)
    whole, tail = resample(waveform, 24_000, 48_000), resample(waveform[60_000:], 24_000, 48_000)
    assert np.abs(whole[120_100:] - tail[100:]).max() < 1e-5


def test_channels_are_independent() -> None:
    waveform = np.random.default_rng(3).standard_normal((3, 4_000)).astype(np.float32)
    found = resample(waveform, 44_100, 24_000)
    assert all(np.array_equal(found[c], resample(waveform[c], 44_100, 24_000)) for c in range(3))


@pytest.mark.parametrize("shape", [(0,), (2, 0)])
def test_nothing_stays_nothing(shape: tuple[int, ...]) -> None:
    assert resample(np.zeros(shape, np.float32), 44_100, 24_000).shape == shape


@pytest.mark.parametrize(("from_rate", "to_rate"), [(0, 24_000), (24_000, -1)])
def test_rates_must_be_positive(from_rate: int, to_rate: int) -> None:
    with pytest.raises(ValueError, match="positive"):
        resample(np.zeros(10, np.float32), from_rate, to_rate)
