"""Silence, fades, joints and trimming: against the reference package's numbers and against a plain slow twin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from golden_cases import cases, relative_error, tensors, tolerance
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from omnivoice.audio.postprocess import cross_fade, fade_and_pad, peak_of, remove_silence, scale_to_full, trim_long
from omnivoice.audio.silence import BLOCK_FRAMES, frame_rms, silent_ranges, window_rms
from omnivoice.errors import GenerationFailed

RATE = 24_000


def assert_golden(found: NDArray[Any], name: str) -> None:
    expected = tensors()[name]
    assert found.dtype == np.float32
    assert found.shape == expected.shape
    assert relative_error(found, expected) <= tolerance(expected)


def noise(seconds: float, level_dbfs: float, seed: int = 0) -> NDArray[np.float32]:
    samples = np.random.default_rng(seed).standard_normal(int(seconds * RATE))
    return (np.clip(samples, -3, 3) * 10 ** (level_dbfs / 20)).astype(np.float32)


def quiet(seconds: float) -> NDArray[np.float32]:
    return np.zeros(int(seconds * RATE), np.float32)


@pytest.mark.parametrize("case", cases("remove_silence"), ids=lambda case: case["result"])
def test_remove_silence(case: dict[str, Any]) -> None:
    arguments = (RATE, case["mid_ms"], case["lead_ms"], case["trail_ms"])
    waveform = tensors()[case["waveform"]]
    assert_golden(remove_silence(waveform, *arguments), case["result"])
    assert np.array_equal(remove_silence(waveform[0], *arguments), tensors()[case["result"]][0])


@pytest.mark.parametrize("case", cases("fade_and_pad"), ids=lambda case: case["result"])
def test_fade_and_pad(case: dict[str, Any]) -> None:
    assert_golden(fade_and_pad(tensors()[case["waveform"]], RATE, case["pad"], case["fade"]), case["result"])


@pytest.mark.parametrize("case", cases("cross_fade"), ids=lambda case: case["result"])
def test_cross_fade(case: dict[str, Any]) -> None:
    assert_golden(cross_fade([tensors()[name] for name in case["chunks"]], RATE), case["result"])


@pytest.mark.parametrize("case", cases("trim_long"), ids=lambda case: case["result"])
def test_trim_long(case: dict[str, Any]) -> None:
    assert_golden(trim_long(tensors()[case["waveform"]], RATE), case["result"])


def slow_silent_ranges(samples: NDArray[np.float32], min_ms: int, threshold_dbfs: float) -> list[tuple[int, int]]:
    """pydub's search, window by window in whole numbers."""
    total_ms = round(1000 * samples.shape[1] / RATE)
    limit = 10 ** (threshold_dbfs / 20) * 32_768
    last = total_ms - min_ms
    starts = sorted({*range(0, last + 1, 10), last}) if last >= 0 else []
    ranges: list[tuple[int, int]] = []
    for start in starts:
        window = samples[:, start * 24 : (start + min_ms) * 24].astype(np.int64)
        if int((int((window**2).sum()) / max(1, window.size)) ** 0.5) > limit:
            continue
        if ranges and start <= ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], start + min_ms)
        else:
            ranges.append((start, start + min_ms))
    return ranges


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(1, 700), st.sampled_from([None, -20, -45, -50, -55])), min_size=1, max_size=8),
    st.integers(1, 2),
    st.sampled_from([100, 200, 205, 500]),
)
def test_silence_search_agrees_with_its_slow_twin(
    parts: list[tuple[int, int | None]], num_channels: int, min_ms: int
) -> None:
    waveform = [
        quiet(ms / 1000) if level is None else noise(ms / 1000, level, seed) for seed, (ms, level) in enumerate(parts)
    ]
    samples = np.trunc(np.tile(np.concatenate(waveform), (num_channels, 1)) * 32_768)
    samples[0] = np.trunc(samples[0] * 0.9)
    assert silent_ranges(samples, RATE, min_ms, -50.0) == slow_silent_ranges(samples, min_ms, -50.0)


@pytest.mark.parametrize("num_channels", [1, 2])
@pytest.mark.parametrize("min_ms", [100, 500])
def test_search_in_whole_steps_agrees_too(min_ms: int, num_channels: int) -> None:
    parts = [noise(0.03 * (seed % 9) + 0.11, level, seed) for seed, level in enumerate([-20, -55, -45, -52, -20] * 6)]
    waveform = np.concatenate((*parts, quiet(0.7), noise(0.4, -50), noise(0.6, -30)))
    samples = np.trunc(np.tile(waveform[: len(waveform) // 240 * 240], (num_channels, 1)) * 32_768)
    found = silent_ranges(samples, RATE, min_ms, -50.0)
    assert len(samples[0]) > BLOCK_FRAMES * 240
    assert found
    assert found == slow_silent_ranges(samples, min_ms, -50.0)


@given(st.integers(1, 700), st.integers(1, 60), st.sampled_from([8_000, 22_050, 24_000, 44_100]))
def test_frames_are_windows(total_ms: int, num_frames: int, rate: int) -> None:
    edges = np.append(np.arange(0, total_ms, 10), total_ms)
    num_frames = min(num_frames, len(edges) - 1)
    samples = np.random.default_rng(total_ms).integers(-32_768, 32_768, (2, total_ms * rate // 1000)).astype(np.float32)
    found = frame_rms(samples, edges, rate, num_frames)
    assert np.array_equal(found, window_rms(samples, edges[:-num_frames], edges[num_frames:], rate))


@pytest.mark.parametrize(("pause", "left"), [(0.3, 0.3), (0.9, 0.9), (1.5, 1.0), (4.0, 1.0)])
def test_only_pauses_over_twice_the_limit_shorten(pause: float, left: float) -> None:
    waveform = np.concatenate((noise(1.2, -20), quiet(pause), noise(1.2, -20)))
    found = remove_silence(waveform, RATE, 500, 100, 100)
    # The search goes in steps of 10 ms.
    assert len(found) / RATE == pytest.approx(2.4 + left, abs=0.021)


def test_edges_keep_lead_and_trail() -> None:
    waveform = np.concatenate((quiet(0.8), noise(2.0, -20), quiet(0.9)))
    assert len(remove_silence(waveform, RATE, 500, 100, 200)) == 2_300 * 24


@pytest.mark.parametrize("click_at", [0.5, 2.5, 4.9])
def test_quiet_speech_beside_a_click_is_kept(click_at: float) -> None:
    waveform = noise(5.0, -56)
    waveform[int(click_at * RATE) : int(click_at * RATE) + 40] = 0.9
    assert len(remove_silence(waveform, RATE, 200, 100, 200)) == len(waveform)


def test_room_noise_around_loud_speech_is_dropped() -> None:
    waveform = np.concatenate((noise(4.0, -60, 1), noise(1.5, -20), noise(4.0, -60, 2)))
    assert len(remove_silence(waveform, RATE, 500, 100, 100)) / RATE == pytest.approx(1.7, abs=0.021)


@pytest.mark.parametrize(("seconds", "left"), [(0.0, 0.0), (0.0001, 0.0), (0.3, 0.1), (0.5, 0.0), (3.0, 0.0)])
def test_silence_leaves_nothing(seconds: float, left: float) -> None:
    # Shorter than a pause, silence is only an edge.
    assert remove_silence(quiet(seconds), RATE, 500, 100, 100).shape == (int(left * RATE),)


def test_a_peak_over_one_is_scaled_not_clipped() -> None:
    waveform = np.sin(np.arange(2 * RATE) * 0.05).astype(np.float32) * 1.7
    found = remove_silence(waveform, RATE, 500, 100, 100)
    assert np.abs(found).max() <= 1.0
    assert relative_error(found, waveform / np.abs(waveform).max()) < 1e-4


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_no_numbers_raise(bad: float) -> None:
    waveform = noise(1.5, -20)
    waveform[700] = bad
    with pytest.raises(GenerationFailed, match="finite"):
        remove_silence(waveform, RATE, 500, 100, 100)
    with pytest.raises(GenerationFailed, match="finite"):
        scale_to_full(waveform)


def test_the_peak_is_the_largest_magnitude() -> None:
    assert peak_of(np.array([[0.25, -3.0], [1.0, 0.5]], np.float32)) == 3.0
    assert peak_of(np.zeros((2, 0), np.float32)) == 0.0
    assert np.isnan(peak_of(np.array([np.inf, 0.0, np.nan], np.float32)))


def test_a_gain_comes_before_the_fades() -> None:
    waveform = noise(1.0, -20)
    assert np.array_equal(
        fade_and_pad(waveform, RATE, 0.2, 0.1, 0.3), fade_and_pad(waveform * np.float32(0.3), RATE, 0.2, 0.1)
    )


@pytest.mark.parametrize("num_samples", [0, 1, 4, 5, 100, 10_000])
def test_fades_end_in_silence_and_leave_the_input_alone(num_samples: int) -> None:
    waveform = np.ones(num_samples, np.float32)
    found = fade_and_pad(waveform, RATE, 0.1, 0.1)
    assert (waveform == 1).all()
    assert len(found) == (num_samples + 4_800 if num_samples else 0)
    if num_samples > 1:
        assert found[2_400] == found[-2_401] == 0


@given(st.lists(st.integers(0, 5_000), min_size=1, max_size=5), st.booleans())
def test_joined_length(lengths: list[int], channels: bool) -> None:
    chunks = [np.ones((2, n) if channels else n, np.float32) for n in lengths]
    joined = cross_fade(chunks, RATE)
    assert joined.shape[-1] == sum(lengths) + 2_400 * (len(lengths) - 1)
    assert joined.ndim == (2 if channels else 1)
    assert all((chunk == 1).all() for chunk in chunks)


def test_nothing_cannot_be_joined() -> None:
    with pytest.raises(ValueError, match="nothing to join"):
        cross_fade([], RATE)


@pytest.mark.parametrize(
    ("parts", "seconds"),
    [
        ([noise(19.9, -20)], 19.9),
        ([noise(25.0, -20)], 15.0),
        ([noise(2.0, -20), quiet(0.5), noise(20.0, -20)], 15.0),
        ([noise(8.0, -20), quiet(0.5), noise(6.0, -20), quiet(1.5), noise(20.0, -20)], 8.5),
        ([quiet(25.0)], 25.0),
    ],
    ids=["short", "no-pause", "pause-too-early", "at-a-pause", "silence"],
)
def test_long_clips_are_cut_at_a_pause(parts: list[NDArray[np.float32]], seconds: float) -> None:
    assert len(trim_long(np.concatenate(parts), RATE)) / RATE == pytest.approx(seconds, abs=0.021)
