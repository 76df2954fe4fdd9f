"""How many masked cells each step reveals: a pure function of the length, the steps and the shift."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

NUM_CODEBOOKS = 8
_Float32 = TypeVar("_Float32", np.float32, NDArray[np.float32])


@lru_cache(maxsize=256)
def _timesteps(num_step: int) -> NDArray[np.float32]:
    """Return `torch.linspace(0, 1, num_step + 1)` bit for bit, float32 (num_step + 1,).

    Torch fills the upper half from the end, each value rounded once; `np.linspace` differs in the last bit, and with
    it some counts.
    """
    index = np.arange(num_step + 1)
    step = float(np.float32(1.0 / num_step))
    exact = np.where(index < (num_step + 1) // 2, step * index, 1.0 - step * (num_step - index))
    timesteps = exact.astype(np.float32)
    timesteps.setflags(write=False)  # they are shared
    return timesteps


def revealed_share(x: _Float32, t_shift: float) -> _Float32:
    """Return the share of all cells that is revealed once `x` of the steps are done, both from 0 to 1, in float32."""
    return np.float32(t_shift) * x / (np.float32(1.0) + np.float32(t_shift - 1.0) * x)


@lru_cache(maxsize=4096)
def unmask_counts(frames: int, num_step: int, t_shift: float) -> tuple[int, ...]:
    """Return the number of cells that each of `num_step` steps unmasks; they sum to 8 · `frames`.

    With τ = `t_shift`, r = τ·x / (1 + (τ−1)·x) is the share revealed at x = n / num_step. It is computed in float32,
    the differences and the ceiling in float64, as the model was run: other precision moves single counts. Late steps
    of a short target may reveal nothing.
    """
    x = _timesteps(num_step)
    revealed = revealed_share(x, t_shift).astype(np.float64)
    num_cells = remaining = NUM_CODEBOOKS * frames
    counts = []
    for n in range(num_step - 1):
        count = min(math.ceil(num_cells * float(revealed[n + 1] - revealed[n])), remaining)
        counts.append(count)
        remaining -= count
    return (*counts, remaining)
