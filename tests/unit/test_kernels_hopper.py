"""The kernels for Hopper compile: every tile that is picked, both dtypes. What they compute is in `tests/gpu`."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch

from omnivoice.graph.tiles import HOPPER_FP8_UP_TO, HOPPER_UP_TO, Tiles
from omnivoice.kernels.hopper import attention, compiler, product
from omnivoice.kernels.hopper.product import HopperTile

KINDS = {
    "qkv": product.HEADS,
    "out": product.ADDED,
    "gate_up": product.GATED,
    "down": product.ADDED,
    "heads": product.PLAIN,
}


def tiles_of(sizes: Iterable[tuple[int | None, Tiles]], names: Iterable[str]) -> set[tuple[int, HopperTile]]:
    found = ((KINDS[name], getattr(tiles, name)) for _, tiles in sizes for name in names)
    return {(kind, tile) for kind, tile in found if isinstance(tile, HopperTile)}


WIDE = {(*made, dtype) for made in tiles_of(HOPPER_UP_TO, KINDS) for dtype in (torch.bfloat16, torch.float16)}
NARROW = {
    (*made, torch.float8_e4m3fn) for made in tiles_of(HOPPER_FP8_UP_TO, [name for name in KINDS if name != "heads"])
}
MOST_SHARED_MEMORY = 227 * 1024


def test_there_are_tiles() -> None:
    assert {kind for kind, _, _ in WIDE} == set(KINDS.values())
    assert {kind for kind, _, _ in NARROW} == {product.HEADS, product.GATED, product.ADDED}


@pytest.mark.parametrize(("kind", "tile", "dtype"), sorted(WIDE | NARROW, key=str))
def test_products_compile(kind: int, tile: HopperTile, dtype: torch.dtype) -> None:
    out = torch.bfloat16 if dtype.itemsize == 1 else dtype
    constants = (*product.constants(kind, tile, dtype, out).items(), ("CHAINED", 1))
    code = compiler.compiled("product", constants, compiler.wgmma("multiply", tile.columns, dtype))
    assert code.startswith(b"\x7fELF")
    assert product.memory(kind, tile) + compiler.ALIGNMENT <= MOST_SHARED_MEMORY


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_attention_compiles(dtype: torch.dtype) -> None:
    constants = (*attention.constants(16, dtype).items(), ("CHAINED", 0))
    assert compiler.compiled("attention", constants, attention.functions(dtype)).startswith(b"\x7fELF")


def test_a_kernel_that_does_not_compile_says_why() -> None:
    with pytest.raises(RuntimeError, match=r"attention\.cu with \{'IS_BF16': 1\} does not compile: .*NUM_HEADS"):
        compiler.compiled("attention", (("IS_BF16", 1),), attention.functions(torch.bfloat16))


def test_no_device_but_hopper_is_supported() -> None:
    assert not compiler.supports(torch.device("cpu"), torch.bfloat16)
