"""The packed step with the layers' four products in fp8: e4m3 rows on both sides, a scale a row, bfloat16 results.

Weights are quantised once, row by row; activations in the pass that makes them (`omnivoice.kernels.fp8`). Everything
else, residual rows, attention and heads, is as without fp8.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, cast

import torch

from omnivoice.graph.graphs import Program
from omnivoice.graph.program import Buffers, attention, embedding, rotation_of, unmasking
from omnivoice.graph.tables import Capacity
from omnivoice.graph.tiles import Tiles
from omnivoice.kernels.fp8 import LARGEST, SMALLEST, add_norm_quantise, add_sum_squares, gate_quantise, quantise
from omnivoice.kernels.hopper.product import ADDED, GATED, HEADS, HopperProduct, HopperTile, Rotation
from omnivoice.kernels.products import Tile
from omnivoice.model.backbone import Backbone, Layer
from omnivoice.model.config import GATE_GROUP, ModelConfig

FP8 = torch.float8_e4m3fn
ALIGNMENT = 16
"""The library multiplies fp8 matrices whose sizes are multiples of it."""


class Weight(NamedTuple):
    """A weight as `values` (columns, depth) · `scales`.T; float32 scales (1, columns)."""

    values: torch.Tensor
    scales: torch.Tensor

    @classmethod
    def of(cls, weight: torch.Tensor, dtype: torch.dtype = FP8) -> Weight:
        """Quantise row by row. Raises `ValueError` for sizes that the library does not multiply."""
        if any(size % ALIGNMENT for size in weight.shape):
            raise ValueError(f"fp8: needs weights whose sizes are multiples of {ALIGNMENT}, not {tuple(weight.shape)}")
        wide = weight.float()
        scales = wide.abs().amax(dim=1, keepdim=True).clamp_min(SMALLEST) / LARGEST
        return cls((wide / scales).to(dtype), scales.T.contiguous())

    def wide(self, dtype: torch.dtype) -> torch.Tensor:
        return (self.values.float() * self.scales.T).to(dtype)


Multiply = Callable[[torch.Tensor, torch.Tensor, Weight, torch.Tensor], object]


def multiply_scaled(rows: torch.Tensor, scales: torch.Tensor, weight: Weight, out: torch.Tensor) -> None:
    """Fill `out` (rows, columns) with (`rows` · `scales`) @ `weight`.T; e4m3 (rows, depth) and float32 (rows, 1)."""
    torch._scaled_mm(
        rows,
        weight.values.T,
        scale_a=scales,
        scale_b=weight.scales,
        out_dtype=out.dtype,
        use_fast_accum=True,
        out=out,
    )


@dataclass(frozen=True, slots=True)
class QuantisedLayer:
    """A `Layer` with folded norms whose products' weights are quantised."""

    ones: torch.Tensor
    q_norm: torch.Tensor
    k_norm: torch.Tensor
    qkv: Weight
    out: Weight
    gate_up: Weight
    down: Weight

    @classmethod
    def of(cls, layer: Layer, dtype: torch.dtype) -> QuantisedLayer:
        """Raises `ValueError` for sizes that the library does not multiply."""
        return cls(
            ones=layer.input_norm,
            q_norm=layer.q_norm,
            k_norm=layer.k_norm,
            qkv=Weight.of(layer.qkv, dtype),
            out=Weight.of(layer.out, dtype),
            gate_up=Weight.of(layer.gate_up, dtype),
            down=Weight.of(layer.down, dtype),
        )

    def wide(self) -> Layer:
        dtype = self.ones.dtype
        return Layer(
            input_norm=self.ones,
            qkv=self.qkv.wide(dtype),
            q_norm=self.q_norm,
            k_norm=self.k_norm,
            out=self.out.wide(dtype),
            ffn_norm=self.ones,
            gate_up=self.gate_up.wide(dtype),
            down=self.down.wide(dtype),
        )


class WideLayers:
    """Layers that are made from quantised ones while they are iterated over, so that no wide copy of all is kept."""

    def __init__(self, layers: tuple[QuantisedLayer, ...]) -> None:
        self._layers = layers

    def __iter__(self) -> Iterator[Layer]:
        return (layer.wide() for layer in self._layers)


@dataclass(frozen=True, slots=True)
class Scratch:
    """What the products of all layers read and write in turns: what was there before has been used up by then."""

    narrow: torch.Tensor
    """e4m3, flat: rows of activations, as wide as the product's depth."""
    scales: torch.Tensor
    """float32 (T, 1)."""
    wide: torch.Tensor
    """Flat: rows of the product's results."""

    @classmethod
    def of(
        cls, config: ModelConfig, capacity: Capacity, device: torch.device, dtype: torch.dtype, narrow: torch.dtype
    ) -> Scratch:
        rows = capacity.rows
        deepest = max(config.hidden_size, config.query_width, config.intermediate_size)
        widest = max(config.hidden_size, config.qkv_width, 2 * config.intermediate_size)
        return cls(
            narrow=torch.zeros(rows * deepest, dtype=narrow, device=device),
            scales=torch.zeros(rows, 1, device=device),
            wide=torch.zeros(rows * widest, dtype=dtype, device=device),
        )

    def inputs(self, rows: int, width: int) -> torch.Tensor:
        return self.narrow[: rows * width].view(rows, width)

    def outputs(self, rows: int, width: int) -> torch.Tensor:
        return self.wide[: rows * width].view(rows, width)


class QuantisedModel:
    """Folded backbone, quantised: the builder of its programs, over buffers of its own.

    `dtype` is what products read: e4m3, or in tests of what surrounds them a wide one, with a `multiply` to match.
    """

    def __init__(
        self,
        folded: Backbone,
        capacity: Capacity,
        dtype: torch.dtype = FP8,
        multiply: Multiply = multiply_scaled,
    ) -> None:
        """Raises `ValueError` for sizes that the library does not multiply."""
        self._layers = tuple(QuantisedLayer.of(layer, dtype) for layer in folded.layers)
        self._scratch = Scratch.of(folded.config, capacity, folded.heads.device, folded.heads.dtype, dtype)
        self._multiply = multiply
        self.backbone = copy.copy(folded)
        """For batches that no program fits: it multiplies dequantised weights with unquantised rows."""
        self.backbone.layers = cast(tuple[Layer, ...], WideLayers(self._layers))

    def program(self, buffers: Buffers, rows: int, tiles: Tiles) -> Program:
        """Return the launches of one step for up to `rows` packed rows; run in order, they enqueue it and return."""
        on_hopper = isinstance(tiles.qkv, HopperTile)
        return self._on_hopper(buffers, rows, tiles) if on_hopper else self._by_library(buffers, rows, tiles)

    def _on_hopper(self, buffers: Buffers, rows: int, tiles: Tiles) -> Program:
        """With products that finish their rows. Quantising one takes a pass: its largest is known when it is whole."""
        config, scratch = self.backbone.config, self._scratch
        hidden, mixed, scales = buffers.hidden[:rows], buffers.mixed[:rows], scratch.scales[:rows]
        squares, num_rows, chained = buffers.squares[:, :rows], buffers.tables.size(0), tiles.chained
        normed = scratch.inputs(rows, config.hidden_size)
        narrow_mixed = scratch.inputs(rows, config.query_width)
        narrow_gated = scratch.inputs(rows, config.intermediate_size)
        qkv, gated = scratch.outputs(rows, config.qkv_width), scratch.outputs(rows, config.intermediate_size)
        eps = config.rms_norm_eps
        norm = partial(add_norm_quantise, hidden, None, normed, scales, num_rows, eps, chained)

        def product(
            kind: int,
            narrow: torch.Tensor,
            weight: Weight,
            out: torch.Tensor,
            tile: Tile | HopperTile | None,
            rotation: Rotation | None = None,
        ) -> Callable[[], object]:
            assert isinstance(tile, HopperTile)
            return HopperProduct(
                kind, narrow, weight.values, out, squares, num_rows, tile,
                eps=eps, rotation=rotation, scales=(scales, weight.scales), chained=chained,
            ).launch  # fmt: skip

        assert isinstance(tiles.down, HopperTile)
        parts = config.hidden_size // tiles.down.columns
        launches = embedding(self.backbone, buffers, rows, tiles, parts)
        for layer in self._layers:
            norms = (layer.q_norm, layer.k_norm)
            rotation = rotation_of(self.backbone, *norms, buffers)
            launches += [
                norm,
                product(HEADS, normed, layer.qkv, qkv, tiles.qkv, rotation),
                *attention(self.backbone, *norms, buffers, qkv, tiles, is_prepared=True),
                partial(quantise, mixed, narrow_mixed, scales, num_rows, chained),
                product(ADDED, narrow_mixed, layer.out, hidden, tiles.out),
                norm,
                product(GATED, normed, layer.gate_up, gated, tiles.gate_up),
                partial(quantise, gated, narrow_gated, scales, num_rows, chained),
                product(ADDED, narrow_gated, layer.down, hidden, tiles.down),
            ]
        return launches + unmasking(self.backbone, buffers, rows, tiles, parts)

    def _by_library(self, buffers: Buffers, rows: int, tiles: Tiles) -> Program:
        """With the library's products: what surrounds them takes passes of its own."""
        config, scratch, num_rows = self.backbone.config, self._scratch, buffers.tables.size(0)
        hidden, mixed, scales = buffers.hidden[:rows], buffers.mixed[:rows], scratch.scales[:rows]
        heads, ffn, eps = mixed.shape[1], config.intermediate_size, config.rms_norm_eps
        normed = scratch.inputs(rows, config.hidden_size)
        mixed_narrow, gated = scratch.inputs(rows, heads), scratch.inputs(rows, ffn)
        qkv, gate_up = scratch.outputs(rows, config.qkv_width), scratch.outputs(rows, 2 * ffn)
        added = scratch.outputs(rows, config.hidden_size)
        chain = {"chained": tiles.chained}

        def norm(addend: torch.Tensor | None) -> Callable[[], object]:
            return partial(add_norm_quantise, hidden, addend, normed, scales, num_rows, eps, **chain)

        def product(narrow: torch.Tensor, weight: Weight, out: torch.Tensor) -> Callable[[], object]:
            return partial(self._multiply, narrow, scales, weight, out)

        launches = embedding(self.backbone, buffers, rows, tiles, parts=1)
        pending = None
        for layer in self._layers:
            launches += [
                norm(pending),
                product(normed, layer.qkv, qkv),
                *attention(self.backbone, layer.q_norm, layer.k_norm, buffers, qkv, tiles),
                partial(quantise, mixed, mixed_narrow, scales, num_rows, **chain),
                product(mixed_narrow, layer.out, added),
                norm(added),
                product(normed, layer.gate_up, gate_up),
                partial(gate_quantise, gate_up, gated, scales, num_rows, GATE_GROUP, **chain),
                product(gated, layer.down, added),
            ]
            pending = added
        launches.append(partial(add_sum_squares, hidden, added, buffers.squares[0, :rows], num_rows, **chain))
        return launches + unmasking(self.backbone, buffers, rows, tiles, parts=1)
