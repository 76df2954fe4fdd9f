"""Random numbers that belong to a request: Philox4x32-10 (Salmon et al., SC 2011).

The key is the request's 64-bit seed. The 128-bit counter says what a number is for, so that it depends on nothing
else: not on the device, the batch, the position in it, or the mode. **This table is the only definition:**

| counter word | holds |
| --- | --- |
| 0 | frame |
| 1 | codebook · 2^16 + vocabulary index // 4 |
| 2 | step |
| 3 | chunk · 2 + stream (0: position noise, 1: class noise) |

One call yields four words; class noise for vocabulary index v takes word v % 4, position noise word 0.
"""

from __future__ import annotations

import torch

POSITION_STREAM = 0
CLASS_STREAM = 1

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF
_ROUNDS = 10
EPSILON = 1e-10

Words = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def philox(counter: Words, key: tuple[torch.Tensor, torch.Tensor]) -> Words:
    """Return the four random words of each counter.

    Every tensor is int64 holding an unsigned 32-bit value; shapes broadcast. A product of two such values may wrap
    past 2^63, which leaves the bits of the unsigned product in place: the masks below read the right halves.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        p0 = c0 * _MULTIPLIERS[0]
        p1 = c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((p1 >> 32) & _MASK) ^ c1 ^ k0,
            p1 & _MASK,
            ((p0 >> 32) & _MASK) ^ c3 ^ k1,
            p0 & _MASK,
        )
        k0 = (k0 + _WEYL[0]) & _MASK
        k1 = (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def split_seed(seed: int) -> tuple[int, int]:
    """Return the two 32-bit key words of a 64-bit seed, low word first."""
    return seed & _MASK, seed >> 32


def uniform(word: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Map words to [0, 1) by their upper 24 bits, which float32 and float64 hold exactly."""
    return (word >> 8).to(dtype) * 2.0**-24


def gumbel(u: torch.Tensor) -> torch.Tensor:
    """Turn uniform numbers into standard Gumbel noise, as the reference does (epsilons included)."""
    return -torch.log(-torch.log(u + EPSILON) + EPSILON)
