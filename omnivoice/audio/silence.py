"""Where a waveform is silent: pydub's rules (16-bit samples, whole milliseconds, RMS of sliding windows), vectorised.

The model's reference pipeline cuts silence with pydub, and voice prompts depend on its rounding: windows and positions
are whole milliseconds, an RMS is a whole number, and a threshold is compared with that.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

FULL_SCALE = 32_768
SEEK_MS = 10
"""Step of the search, and length of the windows at the edges."""

SEARCH_MS = 1_000

Samples = NDArray[np.float32]
"""(channels, samples): whole numbers from -32768 to 32767."""
Range = tuple[int, int]
"""Start and end in milliseconds."""


def sample_position(ms: int, sample_rate: int) -> int:
    """Return the sample at which millisecond `ms` starts."""
    return int(ms * (sample_rate / 1000.0))


def length_ms(samples: Samples, sample_rate: int) -> int:
    """Return the length, rounded to whole milliseconds."""
    return round(1000.0 * int(samples.shape[-1]) / sample_rate)


def slice_ms(samples: Samples, start_ms: int, end_ms: int, sample_rate: int) -> Samples:
    """Return the samples between two milliseconds inside the waveform; a last part of a millisecond is filled up."""
    total_ms = length_ms(samples, sample_rate)
    start = sample_position(min(max(start_ms, 0), total_ms), sample_rate)
    end = sample_position(min(max(end_ms, 0), total_ms), sample_rate)
    part = samples[:, start:end]
    missing = max(0, end - start) - part.shape[1]
    return np.pad(part, ((0, 0), (0, missing))) if missing > 0 else part


def window_rms(
    samples: Samples, starts_ms: NDArray[np.int64], ends_ms: NDArray[np.int64], sample_rate: int
) -> NDArray[np.float64]:
    """Return the RMS of each window [start, end), rounded down to a whole number; 0 for an empty one."""
    num_channels, num_samples = samples.shape
    per_ms = sample_rate / 1000.0
    starts = np.minimum((starts_ms * per_ms).astype(np.int64), num_samples)
    ends = np.minimum((ends_ms * per_ms).astype(np.int64), num_samples)
    edges = np.unique(np.concatenate((starts, ends)))
    if len(edges) < 2:
        return np.zeros(len(starts))
    # Sums of squares of 16-bit samples are whole numbers far under 2**53: exact in float64, so that a window on the
    # threshold falls to the same side as in integer arithmetic.
    window = samples[:, edges[0] : edges[-1]]
    squares = np.square(window[0], dtype=np.float64)
    for channel in window[1:]:
        squares += np.square(channel, dtype=np.float64)
    sums = np.concatenate(([0.0], np.cumsum(np.add.reduceat(squares, edges[:-1] - edges[0]))))
    energy = sums[np.searchsorted(edges, ends)] - sums[np.searchsorted(edges, starts)]
    rms: NDArray[np.float64] = np.floor(np.sqrt(energy / np.maximum(1, (ends - starts) * num_channels)))
    return rms


def amplitude(level_dbfs: float) -> float:
    """Return the 16-bit amplitude of a level in dBFS."""
    return float(10.0 ** (level_dbfs / 20.0) * FULL_SCALE)


def silent_ranges(samples: Samples, sample_rate: int, min_silence_ms: int, threshold_dbfs: float) -> list[Range]:
    """Return the ranges, ascending, in which every window of `min_silence_ms` is at or under the threshold."""
    total_ms = length_ms(samples, sample_rate)
    if total_ms < min_silence_ms:
        return []
    last_start = total_ms - min_silence_ms
    starts = np.arange(0, last_start + 1, SEEK_MS)
    if last_start % SEEK_MS:
        starts = np.append(starts, last_start)
    rms = window_rms(samples, starts, starts + min_silence_ms, sample_rate)
    quiet = starts[rms <= amplitude(threshold_dbfs)]
    if len(quiet) == 0:
        return []
    step = np.diff(quiet)
    breaks = np.flatnonzero((step != SEEK_MS) & (step > min_silence_ms))
    firsts = quiet[np.concatenate(([0], breaks + 1))]
    lasts = quiet[np.concatenate((breaks, [len(quiet) - 1]))]
    return [(int(first), int(last) + min_silence_ms) for first, last in zip(firsts, lasts, strict=True)]


def sounding_ranges(samples: Samples, sample_rate: int, min_silence_ms: int, threshold_dbfs: float) -> list[Range]:
    """Return the ranges between the silent ones; none for silence throughout, one for a waveform without pauses."""
    total_ms = length_ms(samples, sample_rate)
    ranges: list[Range] = []
    position = 0
    for start, end in silent_ranges(samples, sample_rate, min_silence_ms, threshold_dbfs):
        if start > 0:
            ranges.append((position, start))
        position = end
    if position != total_ms:
        ranges.append((position, total_ms))
    return ranges


def leading_silence_ms(samples: Samples, sample_rate: int, threshold_dbfs: float) -> int:
    """Return how long the waveform stays under the threshold at its start, in steps of 10 ms."""
    total_ms = length_ms(samples, sample_rate)
    # Most waveforms begin within the first second: no need to look at the rest of an hour.
    for start_ms in range(0, total_ms, SEARCH_MS):
        starts = np.arange(start_ms, min(start_ms + SEARCH_MS, total_ms), SEEK_MS)
        rms = window_rms(samples, starts, np.minimum(starts + SEEK_MS, total_ms), sample_rate)
        loud = np.flatnonzero(rms >= amplitude(threshold_dbfs))
        if len(loud):
            return int(starts[loud[0]])
    return total_ms


def speech_level_dbfs(samples: Samples, sample_rate: int) -> float:
    """Return the level that a twentieth of all 10 ms frames reach: speech's, whatever single clicks do."""
    total_ms = length_ms(samples, sample_rate)
    starts = np.arange(0, total_ms - SEEK_MS + 1, SEEK_MS)
    if len(starts) == 0:
        return -math.inf
    rms = window_rms(samples, starts, starts + SEEK_MS, sample_rate)
    level = float(np.partition(rms, -1 - len(rms) // 20)[-1 - len(rms) // 20])
    return 20.0 * math.log10(level / FULL_SCALE) if level > 0 else -math.inf
