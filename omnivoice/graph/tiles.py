"""Which tile each product takes, by the size of the batch. Measured on an H200 (`bench/README.md`)."""

from __future__ import annotations

from typing import NamedTuple

import torch

from omnivoice.kernels.attention import Blocks
from omnivoice.kernels.products import Tile


class Tiles(NamedTuple):
    """How the kernels of one bucket cut their work: a layer's four products, the heads, attention.

    Where `out` or `down` is None the library multiplies; rows' sums of squares then take a pass of their own.
    `prepares_keys` norms and rotates keys in a pass of its own. `chained` launches kernels ahead of their
    predecessors' end.
    """

    qkv: Tile
    out: Tile | None
    gate_up: Tile
    down: Tile | None
    heads: Tile
    attention: Blocks
    prepares_keys: bool = False
    chained: bool = False


SMALL = Tiles(
    qkv=Tile(64, 128, 64, stages=5, warps=4),
    out=Tile(64, 64, 128, stages=5, warps=4),
    gate_up=Tile(64, 128, 64, stages=4, warps=4),
    down=Tile(64, 64, 128, stages=5, warps=4),
    heads=Tile(128, 128, 64, stages=4, warps=8),
    attention=Blocks(64, 64, warps=4, stages=1),
    chained=True,
)
SMALL_ROWS = 1024
TILED = Tiles(
    qkv=Tile(128, 128, 64, stages=4, warps=4, persistent=True),
    out=Tile(128, 256, 64, stages=3, warps=8),
    gate_up=Tile(128, 256, 64, stages=3, warps=8, persistent=True),
    down=Tile(128, 256, 64, stages=3, warps=8),
    heads=Tile(128, 128, 64, stages=4, warps=4, persistent=True),
    attention=Blocks(64, 64, warps=4, stages=1),
    prepares_keys=True,
)
"""For deterministic engines, whatever the size: each row's sums run in one order."""
LARGE = TILED._replace(out=None, down=None)
_WIDE = Tile(64, 64, 32, stages=3, warps=4)
WIDE = Tiles(_WIDE, _WIDE, _WIDE, _WIDE, _WIDE, attention=Blocks(32, 32, warps=4, stages=1))
"""For float32, which is there to compare with: it takes twice the memory and no matrix units."""


def pick_tiles(rows: int, dtype: torch.dtype, deterministic: bool) -> Tiles:
    """Return the tiles for batches of up to `rows` rows; the same ones always where results must not depend on it."""
    if dtype.itemsize > 2:
        return WIDE
    if deterministic:
        return TILED
    return SMALL if rows <= SMALL_ROWS else LARGE
