"""The kernels for Hopper compile: every tile that is picked, both dtypes. What they compute is in `tests/gpu`."""

from __future__ import annotations

import pytest
import torch

from omnivoice.graph.tiles import HOPPER_UP_TO
from omnivoice.kernels.hopper import attention, compiler, product
from omnivoice.kernels.hopper.product import HopperTile

TILES = sorted(
    {
        (kind, tile)
        for _, tiles in HOPPER_UP_TO
        for kind, tile in (
            (product.HEADS, tiles.qkv),
            (product.ADDED, tiles.out),
            (product.GATED, tiles.gate_up),
            (product.ADDED, tiles.down),
        )
        if isinstance(tile, HopperTile)
    }
)
MOST_SHARED_MEMORY = 227 * 1024


def test_there_are_tiles() -> None:
    assert {kind for kind, _ in TILES} == {product.HEADS, product.GATED, product.ADDED}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("kind", "tile"), TILES)
def test_products_compile(kind: int, tile: HopperTile, dtype: torch.dtype) -> None:
    constants = (*product.constants(kind, tile, dtype).items(), ("CHAINED", 1))
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
