"""How cold memory gets on this machine: without it a figure of lone requests cannot be compared with another hour's."""

from __future__ import annotations

import statistics
import time

import numpy as np

COLD_BYTES, CACHE_LINE = 8 << 20, 64
COLD_SECONDS = 0.3


def cold_memory_ms() -> float:
    """What it takes to read a byte of each line of 8 MB that lay unused for 0.3 s; the median of nine times.

    0.35 ms where the lines are still in a cache. Where other machines share it, most of a lone request's time is this.
    """
    values = np.zeros(COLD_BYTES, dtype=np.uint8)
    lines = np.random.default_rng(0).permutation(COLD_BYTES // CACHE_LINE) * CACHE_LINE
    taken = []
    for _ in range(9):
        time.sleep(COLD_SECONDS)
        began = time.perf_counter()
        values[lines].sum()
        taken.append(time.perf_counter() - began)
    return round(statistics.median(taken) * 1e3, 2)
