"""The packed step as a list of kernel launches over static buffers: what a CUDA graph captures."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from omnivoice.graph.graphs import Program
from omnivoice.graph.tables import Capacity, Tables
from omnivoice.graph.tiles import Tiles
from omnivoice.kernels.attention import attend, prepare_keys, queries_per_item
from omnivoice.kernels.products import ADDED, GATED, PLAIN, SCALED, Product, Tile
from omnivoice.kernels.rows import embed, guide, sum_squares
from omnivoice.kernels.unmask import pick_cells, score_cells
from omnivoice.model.backbone import Backbone

MAX_PARTS = 16
"""Column tiles of the residual rows at most, each of which leaves its part of their sums of squares."""


@dataclass(frozen=True, slots=True)
class Buffers:
    """Everything a step reads and writes beside the weights; T packed rows and as many target rows at most."""

    capacity: Capacity
    tables: Tables
    codes: torch.Tensor
    """int32 (T, 8), the state: what is unmasked so far."""
    hidden: torch.Tensor
    squares: torch.Tensor
    qkv: torch.Tensor
    """Without rows in an fp8 engine, as `gated` is: its products share the buffers of `omnivoice.graph.fp8`."""
    mixed: torch.Tensor
    gated: torch.Tensor
    guided: torch.Tensor
    logits: torch.Tensor
    scores: torch.Tensor
    tokens: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor

    @classmethod
    def of(cls, backbone: Backbone, capacity: Capacity, *, fp8: bool = False) -> Buffers:
        config, device, dtype = backbone.config, backbone.heads.device, backbone.heads.dtype
        rows = capacity.rows
        product_rows = 0 if fp8 else rows

        def empty(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        float32, int32 = torch.float32, torch.int32
        cos, sin = backbone.rotary(torch.arange(rows, device=device), dtype)
        return cls(
            capacity=capacity,
            tables=Tables(capacity, device),
            codes=empty(rows, config.num_codebooks, dtype=int32),
            hidden=empty(rows, config.hidden_size),
            squares=empty(MAX_PARTS, rows, dtype=float32),
            qkv=empty(product_rows, config.qkv_width),
            mixed=empty(rows, config.query_width),
            gated=empty(product_rows, config.intermediate_size),
            guided=empty(rows, config.hidden_size),
            logits=empty(rows, config.num_codebooks * config.audio_vocab_size, dtype=float32),
            scores=empty(rows, config.num_codebooks, dtype=float32),
            tokens=empty(rows, config.num_codebooks, dtype=int32),
            cos=cos,
            sin=sin,
        )


def build_program(backbone: Backbone, buffers: Buffers, rows: int, tiles: Tiles) -> Program:
    """Return the launches of one step for up to `rows` packed rows; run in order, they enqueue it and return.

    The backbone's norms must be folded (`Backbone.folded`).
    """
    config, num_rows = backbone.config, buffers.tables.size(0)
    squares, hidden = buffers.squares[:, :rows], buffers.hidden[:rows]
    qkv, mixed, gated = buffers.qkv[:rows], buffers.mixed[:rows], buffers.gated[:rows]
    added = [tile.columns for tile in (tiles.out, tiles.down) if tile is not None]
    parts = -(-config.hidden_size // min(added, default=config.hidden_size))
    chained = tiles.chained
    product = partial(
        Product, squares=squares, num_rows=num_rows, parts=parts, eps=config.rms_norm_eps, chained=chained
    )

    def add(activations: torch.Tensor, weight: torch.Tensor, tile: Tile | None) -> Program:
        """Add a product to the residual rows, with their sums of squares."""
        if tile is not None:
            return [product(ADDED, activations, weight, hidden, tile=tile).launch]
        return [
            partial(torch.addmm, hidden, activations, weight.T, out=hidden),
            partial(sum_squares, hidden, squares, num_rows, parts, chained=chained),
        ]

    launches = embedding(backbone, buffers, rows, tiles, parts)
    for layer in backbone.layers:
        launches += [
            product(SCALED, hidden, layer.qkv, qkv, tile=tiles.qkv).launch,
            *attention(backbone, layer.q_norm, layer.k_norm, buffers, qkv, tiles),
            *add(mixed, layer.out, tiles.out),
            product(GATED, hidden, layer.gate_up, gated, tile=tiles.gate_up).launch,
            *add(gated, layer.down, tiles.down),
        ]
    return launches + unmasking(backbone, buffers, rows, tiles, parts)


def embedding(backbone: Backbone, buffers: Buffers, rows: int, tiles: Tiles, parts: int) -> Program:
    """The residual rows from their ids, with `parts` parts of their sums of squares."""
    tables = buffers.tables
    return [
        partial(
            embed, tables["row_target"], tables["row_ids"], buffers.codes[:rows], backbone.text_table,
            backbone.audio_table, buffers.hidden[:rows], buffers.squares[:, :rows], tables.size(0), parts,
            chained=tiles.chained,
        )
    ]  # fmt: skip


def attention(
    backbone: Backbone, q_norm: torch.Tensor, k_norm: torch.Tensor, buffers: Buffers, qkv: torch.Tensor, tiles: Tiles
) -> Program:
    """From `qkv` (rows, …) to as many rows of `buffers.mixed`."""
    config, tables = backbone.config, buffers.tables
    heads, rows = (config.num_heads, config.num_kv_heads), len(qkv)
    max_items = buffers.capacity.items(rows, queries_per_item(*heads, tiles.attention))
    shared = (buffers.cos, buffers.sin, config.rms_norm_eps, *heads)
    attending = partial(
        attend, qkv, buffers.mixed[:rows], tables["items"], tables.size(2), max_items, q_norm, k_norm, *shared,
        blocks=tiles.attention, keys_ready=tiles.prepares_keys, chained=tiles.chained,
    )  # fmt: skip
    if not tiles.prepares_keys:
        return [attending]
    keys = partial(prepare_keys, qkv, tables["position"], tables.size(0), k_norm, *shared, chained=tiles.chained)
    return [keys, attending]


def unmasking(backbone: Backbone, buffers: Buffers, rows: int, tiles: Tiles, parts: int) -> Program:
    """From the last layer's residual rows and their sums of squares to unmasked cells."""
    config, tables = backbone.config, buffers.tables
    num_rows, num_targets, _, num_requests = (tables.size(index) for index in range(4))
    squares, chained = buffers.squares[:, :rows], tiles.chained
    guided, logits = buffers.guided[:rows], buffers.logits[:rows]
    product = Product(PLAIN, guided, backbone.heads, logits, squares, num_targets, tiles.heads, chained=chained)
    return [
        partial(
            guide, buffers.hidden[:rows], squares, tables["cond_row"], tables["uncond_row"], tables["target_request"],
            tables.params(0), guided, num_rows, num_targets, parts, config.rms_norm_eps, chained=chained,
        ),
        product.launch,
        partial(
            score_cells, logits, buffers.codes[:rows], tables["target_request"], tables["target_frame"],
            tables["chunk"], tables["step"], tables["key"], tables.params(1), tables.params(2), tables.params(3),
            buffers.scores[:rows], buffers.tokens[:rows], num_targets, config.audio_mask_id, chained=chained,
        ),
        partial(
            pick_cells, buffers.scores, buffers.tokens, buffers.codes, tables["first_target"], tables["frames"],
            tables["counts"], tables["step"], num_requests, chained=chained,
        ),
    ]  # fmt: skip
