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

SEARCH_MS = 250
"""Most waveforms begin within that: no need to look at the rest of an hour."""

BLOCK_FRAMES = 256
"""Frames squared at once: in float64 they fit a core's cache, where an hour of them would take 700 MB."""

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
    starts, ends = (_positions(times_ms, samples, sample_rate) for times_ms in (starts_ms, ends_ms))
    edges = np.concatenate((starts, ends))
    edges.sort()
    edges = np.concatenate((edges[:1], edges[1:][edges[1:] > edges[:-1]]))  # `np.unique` takes four times as long
    if len(edges) < 2:
        return np.zeros(len(starts))
    sums = _running_energy(samples, edges)
    energies = sums[edges.searchsorted(ends)] - sums[edges.searchsorted(starts)]
    return _whole_rms(energies, np.maximum(ends - starts, 1) * len(samples))


def frame_rms(
    samples: Samples, edges_ms: NDArray[np.int64], sample_rate: int, num_frames: int = 1
) -> NDArray[np.float64]:
    """Return what `window_rms` does, sooner, for windows of `num_frames` frames each, starting at every frame.

    Frames lie between neighbouring edges and hold a sample at least.
    """
    edges = _positions(edges_ms, samples, sample_rate)
    sums = _running_energy(samples, edges)
    energies, counts = (sums[num_frames:] - sums[:-num_frames]), (edges[num_frames:] - edges[:-num_frames])
    return _whole_rms(energies, counts * len(samples))


def _positions(times_ms: NDArray[np.int64], samples: Samples, sample_rate: int) -> NDArray[np.int64]:
    return np.minimum((times_ms * (sample_rate / 1000.0)).astype(np.int64), samples.shape[1])


def _running_energy(samples: Samples, edges: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the sum of squares over all channels from the first edge to each: two or more ascending positions."""
    # Sums of squares of 16-bit samples are whole numbers far under 2**53: exact in float64, so that a window on the
    # threshold falls to the same side as in integer arithmetic.
    sums = np.zeros(len(edges))
    energies = sums[1:]
    for first in range(0, len(energies), BLOCK_FRAMES):
        block = edges[first : first + BLOCK_FRAMES + 1]
        window = samples[:, block[0] : block[-1]]
        squares = window[0].astype(np.float64)
        np.square(squares, out=squares)
        for channel in window[1:]:
            squares += np.square(channel, dtype=np.float64)
        np.add.reduceat(squares, block[:-1] - block[0], out=energies[first : first + BLOCK_FRAMES])
    np.cumsum(energies, out=energies)
    return sums


def _whole_rms(energies: NDArray[np.float64], counts: NDArray[np.int64]) -> NDArray[np.float64]:
    rms = energies / counts
    np.sqrt(rms, out=rms)
    np.floor(rms, out=rms)
    return rms


def amplitude(level_dbfs: float) -> float:
    """Return the 16-bit amplitude of a level in dBFS."""
    return float(10.0 ** (level_dbfs / 20.0) * FULL_SCALE)


def silent_ranges(samples: Samples, sample_rate: int, min_silence_ms: int, threshold_dbfs: float) -> list[Range]:
    """Return the ranges, ascending, in which every window of `min_silence_ms`, over 0, is at or under the threshold."""
    total_ms = length_ms(samples, sample_rate)
    if total_ms < min_silence_ms:
        return []
    last_start = total_ms - min_silence_ms
    starts = np.arange(0, last_start + 1, SEEK_MS)
    if total_ms % SEEK_MS or min_silence_ms % SEEK_MS:
        if last_start % SEEK_MS:
            starts = np.append(starts, last_start)
        rms = window_rms(samples, starts, starts + min_silence_ms, sample_rate)
    else:
        edges = np.arange(0, total_ms + 1, SEEK_MS)
        rms = frame_rms(samples, edges, sample_rate, min_silence_ms // SEEK_MS)
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
    for start_ms in range(0, total_ms, SEARCH_MS):
        edges = np.minimum(np.arange(start_ms, min(start_ms + SEARCH_MS, total_ms) + SEEK_MS, SEEK_MS), total_ms)
        loud = frame_rms(samples, edges, sample_rate) >= amplitude(threshold_dbfs)
        first = int(loud.argmax())
        if loud[first]:
            return start_ms + first * SEEK_MS
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
