"""Which tiles are picked: by size, by device, and one for all where results must not depend on the batch."""

from __future__ import annotations

import pytest
import torch

from omnivoice.graph import tiles
from omnivoice.graph.graphs import ladder
from omnivoice.graph.tiles import Tiles, pick_tiles
from omnivoice.kernels.hopper.product import HopperTile

BUCKETS = ladder(8192)


@pytest.mark.parametrize("on_hopper", [False, True])
def test_deterministic_tiles_are_the_same_for_every_bucket(on_hopper: bool) -> None:
    picked = {pick_tiles(rows, torch.bfloat16, True, on_hopper) for rows in BUCKETS}
    [only] = picked
    assert only.out is not None  # the library's products depend on the number of rows
    assert only.down is not None


@pytest.mark.parametrize("on_hopper", [False, True])
def test_float32_never_runs_on_the_tiles_of_16_bits(on_hopper: bool) -> None:
    assert {pick_tiles(rows, torch.float32, False, on_hopper) for rows in BUCKETS} == {tiles.WIDE}


def test_hopper_tiles_are_for_hopper_alone_and_come_with_its_attention() -> None:
    for rows in BUCKETS:
        elsewhere, there = (pick_tiles(rows, torch.float16, False, on_hopper) for on_hopper in (False, True))
        assert not any(isinstance(tile, HopperTile) for tile in elsewhere)
        assert elsewhere.attention is not None
        # Its attention takes heads that its product has prepared.
        assert isinstance(there.qkv, HopperTile)
        assert there.attention is None


def test_fp8_on_hopper_never_multiplies_with_the_library() -> None:
    """Its products would need quantising passes that those for Hopper do without."""
    for rows in BUCKETS:
        picked = pick_tiles(rows, torch.bfloat16, False, True, fp8=True)
        assert all(isinstance(tile, HopperTile) for tile in (picked.qkv, picked.out, picked.gate_up, picked.down))


@pytest.mark.parametrize("sizes", [tiles.HOPPER_UP_TO, tiles.HOPPER_FP8_UP_TO])
def test_larger_batches_never_take_tiles_for_smaller_ones(sizes: tuple[tuple[int | None, Tiles], ...]) -> None:
    ladder_of = [bound for bound, _ in sizes]
    assert ladder_of[-1] is None
    finite = [bound for bound in ladder_of if bound is not None]
    assert finite == sorted(finite)


def test_the_ladder_of_sizes_is_the_one_measured() -> None:
    assert pick_tiles(256, torch.bfloat16, False, True) == tiles.HOPPER_ONE
    assert pick_tiles(257, torch.bfloat16, False, True) == tiles.HOPPER_SMALL
    assert pick_tiles(7424, torch.bfloat16, False, True) == tiles.HOPPER_LARGE
