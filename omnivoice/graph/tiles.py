"""Which tile each product takes, by the size of the batch. Measured on an H200 (`bench/README.md`)."""

from __future__ import annotations

from typing import NamedTuple

import torch

from omnivoice.kernels.attention import Blocks, queries_per_item
from omnivoice.kernels.hopper import attention, compiler
from omnivoice.kernels.hopper.product import HopperTile
from omnivoice.kernels.products import Tile
from omnivoice.model.config import ModelConfig


class Tiles(NamedTuple):
    """How the kernels of one bucket cut their work: a layer's four products, the heads, attention.

    Where `out` or `down` is None the library multiplies; rows' sums of squares then take a pass of their own. Where
    `attention` is None that for Hopper runs. `prepares_keys` norms and rotates keys in a pass of its own. `chained`
    launches kernels ahead of their predecessors' end.
    """

    qkv: Tile | HopperTile
    out: Tile | HopperTile | None
    gate_up: Tile | HopperTile
    down: Tile | HopperTile | None
    heads: Tile | HopperTile
    attention: Blocks | None
    prepares_keys: bool = False
    chained: bool = False

    def queries(self, num_heads: int, num_kv_heads: int) -> int:
        """Positions of one sequence that an item of attention covers."""
        return (
            attention.QUERIES if self.attention is None else queries_per_item(num_heads, num_kv_heads, self.attention)
        )


SMALL = Tiles(
    qkv=Tile(64, 128, 64, stages=5, warps=4),
    out=None,
    gate_up=Tile(64, 128, 64, stages=4, warps=4),
    down=None,
    heads=Tile(128, 128, 64, stages=4, warps=8),
    attention=Blocks(64, 64, warps=4, stages=1),
    chained=True,
)
TILED = Tiles(
    qkv=Tile(128, 128, 64, stages=4, warps=4, persistent=True),
    out=Tile(128, 256, 64, stages=3, warps=8),
    gate_up=Tile(128, 256, 64, stages=3, warps=8, persistent=True),
    down=Tile(128, 256, 64, stages=3, warps=8),
    heads=Tile(128, 128, 64, stages=4, warps=8, persistent=True),
    attention=Blocks(64, 64, warps=4, stages=1),
    prepares_keys=True,
)
"""For deterministic engines, whatever the size: each row's sums run in one order."""
LARGE = TILED._replace(out=None, down=None)

HOPPER_ONE = Tiles(
    qkv=HopperTile(64, 128, stages=6),
    out=HopperTile(64, 64, stages=12, split=2),
    gate_up=HopperTile(128, 128, stages=5),
    down=HopperTile(64, 64, stages=12, split=2),
    heads=HopperTile(64, 128, stages=6),
    attention=None,
    chained=True,
)
HOPPER_SMALL = HOPPER_ONE._replace(
    qkv=HopperTile(128, 128, stages=5),
    out=HopperTile(64, 128, stages=6),
    down=HopperTile(64, 128, stages=6),
    heads=HopperTile(128, 128, stages=5),
)
HOPPER_TILED = HOPPER_ONE._replace(
    qkv=HopperTile(128, 256, stages=4, persistent=True),
    out=HopperTile(128, 128, stages=5, persistent=True),
    gate_up=HopperTile(128, 256, stages=4, persistent=True),
    down=HopperTile(128, 128, stages=5, persistent=True),
    heads=HopperTile(128, 256, stages=4, persistent=True),
)
"""For deterministic engines too, whatever the size."""
HOPPER_LARGE = HOPPER_TILED._replace(out=None, down=None, chained=False)

_FP8_NARROW = HopperTile(64, 64, stages=12)
_FP8_WIDE = HopperTile(128, 256, stages=3, persistent=True)
HOPPER_FP8_ONE = HOPPER_ONE._replace(out=_FP8_NARROW, down=_FP8_NARROW)
"""Half the depth a tile: splitting it costs more than it gains."""
HOPPER_FP8_LARGE = HOPPER_TILED._replace(out=_FP8_WIDE, down=_FP8_WIDE, chained=False)

_WIDE = Tile(64, 64, 32, stages=3, warps=4)
WIDE = Tiles(_WIDE, _WIDE, _WIDE, _WIDE, _WIDE, attention=Blocks(32, 32, warps=4, stages=1))
"""For float32, which is there to compare with: it takes twice the memory and no matrix units."""

_WIDEST_TILE = 256
_Ladder = tuple[tuple[int | None, Tiles], ...]
UP_TO: _Ladder = ((1024, SMALL), (None, LARGE))
HOPPER_UP_TO: _Ladder = ((256, HOPPER_ONE), (1024, HOPPER_SMALL), (2048, HOPPER_TILED), (None, HOPPER_LARGE))
HOPPER_FP8_UP_TO: _Ladder = (
    (256, HOPPER_FP8_ONE),
    (1024, HOPPER_SMALL),
    (2048, HOPPER_TILED),
    (None, HOPPER_FP8_LARGE),
)


def pick_tiles(rows: int, dtype: torch.dtype, deterministic: bool, on_hopper: bool, fp8: bool = False) -> Tiles:
    """Return the tiles for batches of up to `rows` rows; the same ones always where results must not depend on it."""
    if dtype.itemsize > 2:
        return WIDE
    if deterministic:
        return HOPPER_TILED if on_hopper else TILED
    sizes = (HOPPER_FP8_UP_TO if fp8 else HOPPER_UP_TO) if on_hopper else UP_TO
    return next(tiles for most, tiles in sizes if most is None or rows <= most)


def supports_hopper(model: ModelConfig, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the tiles for Hopper can be used for a model on a device."""
    widths = (model.qkv_width, 2 * model.intermediate_size, model.hidden_size)
    return (
        compiler.supports(device, dtype)
        and attention.supports(model.num_heads, model.num_kv_heads, model.head_dim)
        and all(width % _WIDEST_TILE == 0 for width in widths)
    )
