"""The packed step as a list of kernel launches over static buffers: what a CUDA graph captures."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
import triton.language as tl

from omnivoice.graph.graphs import Program
from omnivoice.graph.tables import Capacity, Tables
from omnivoice.graph.tiles import Tiles
from omnivoice.kernels.attention import attend, prepare_heads, query_scale
from omnivoice.kernels.hopper import product as hopper
from omnivoice.kernels.hopper.attention import HopperAttention
from omnivoice.kernels.hopper.product import HopperProduct, HopperTile, Rotation
from omnivoice.kernels.products import ADDED, GATED, PLAIN, SCALED, Product, Tile
from omnivoice.kernels.rows import embed, guide, sum_squares
from omnivoice.kernels.unmask import pick_cells, score_cells
from omnivoice.model.backbone import Backbone

HOPPERS = {SCALED.value: hopper.HEADS, GATED.value: hopper.GATED, ADDED.value: hopper.ADDED}
FEWEST_COLUMNS = 64
"""Of a column tile of the residual rows, each of which leaves its part of their sums of squares."""


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
            squares=empty(-(-config.hidden_size // FEWEST_COLUMNS), rows, dtype=float32),
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
    eps = config.rms_norm_eps
    product = partial(Product, squares=squares, num_rows=num_rows, parts=parts, eps=eps, chained=chained)
    on_hopper = partial(HopperProduct, squares=squares, num_rows=num_rows, parts=parts, eps=eps, chained=chained)

    def multiply(
        kind: tl.constexpr,
        activations: torch.Tensor,
        weight: torch.Tensor,
        out: torch.Tensor,
        tile: Tile | HopperTile | None,
        rotation: Rotation | None = None,
    ) -> Program:
        if isinstance(tile, HopperTile):
            return [on_hopper(HOPPERS[kind.value], activations, weight, out, tile=tile, rotation=rotation).launch]
        if tile is not None:
            return [product(kind, activations, weight, out, tile=tile).launch]
        assert kind is ADDED
        return [
            partial(torch.addmm, out, activations, weight.T, out=out),
            partial(sum_squares, out, squares, num_rows, parts, chained=chained),
        ]

    is_prepared = isinstance(tiles.qkv, HopperTile)
    launches = embedding(backbone, buffers, rows, tiles, parts)
    for layer in backbone.layers:
        norms = (layer.q_norm, layer.k_norm)
        rotation = rotation_of(backbone, *norms, buffers)
        launches += [
            *multiply(SCALED, hidden, layer.qkv, qkv, tiles.qkv, rotation),
            *attention(backbone, *norms, buffers, qkv, tiles, is_prepared=is_prepared),
            *multiply(ADDED, mixed, layer.out, hidden, tiles.out),
            *multiply(GATED, hidden, layer.gate_up, gated, tiles.gate_up),
            *multiply(ADDED, gated, layer.down, hidden, tiles.down),
        ]
    return launches + unmasking(backbone, buffers, rows, tiles, parts)


def rotation_of(backbone: Backbone, q_norm: torch.Tensor, k_norm: torch.Tensor, buffers: Buffers) -> Rotation:
    """What a product of heads needs to norm and rotate them by their rows' positions."""
    heads = (backbone.config.num_heads, backbone.config.num_kv_heads)
    return Rotation(buffers.tables["position"], buffers.cos, buffers.sin, q_norm, k_norm, *heads)


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
    backbone: Backbone,
    q_norm: torch.Tensor,
    k_norm: torch.Tensor,
    buffers: Buffers,
    qkv: torch.Tensor,
    tiles: Tiles,
    *,
    is_prepared: bool = False,
) -> Program:
    """From `qkv` (rows, …) to as many rows of `buffers.mixed`. `is_prepared`: its heads are normed and rotated."""
    config, tables = backbone.config, buffers.tables
    heads, rows = (config.num_heads, config.num_kv_heads), len(qkv)
    max_items = buffers.capacity.items(rows, tiles.queries(*heads))
    items = (tables["items"], tables.size(2), max_items)
    prepare = partial(
        prepare_heads, position=tables["position"], num_rows=tables.size(0),
        cos=buffers.cos, sin=buffers.sin, eps=config.rms_norm_eps, chained=tiles.chained,
    )  # fmt: skip
    queries, keys = qkv[:, : config.query_width], qkv[:, config.query_width :][:, : config.key_width]
    prepare_queries = partial(prepare, queries, norm=q_norm, factor=query_scale(config.head_dim))
    prepare_keys = partial(prepare, keys, norm=k_norm)
    mixed = buffers.mixed[:rows]
    if tiles.attention is None:
        attending = HopperAttention(qkv, mixed, *items, config.num_heads, chained=tiles.chained).launch
        return [attending] if is_prepared else [prepare_queries, prepare_keys, attending]
    attend_all = partial(
        attend, qkv, mixed, *items, q_norm, k_norm, buffers.cos, buffers.sin,
        config.rms_norm_eps, *heads,
        blocks=tiles.attention, keys_ready=tiles.prepares_keys, chained=tiles.chained,
    )  # fmt: skip
    return [prepare_keys, attend_all] if tiles.prepares_keys else [attend_all]


def unmasking(backbone: Backbone, buffers: Buffers, rows: int, tiles: Tiles, parts: int) -> Program:
    """From the last layer's residual rows and their sums of squares to unmasked cells."""
    config, tables = backbone.config, buffers.tables
    num_rows, num_targets, _, num_requests = (tables.size(index) for index in range(4))
    squares, chained = buffers.squares[:, :rows], tiles.chained
    guided, logits = buffers.guided[:rows], buffers.logits[:rows]
    of_heads = (guided, backbone.heads, logits, squares, num_targets)
    product = (
        HopperProduct(hopper.PLAIN, *of_heads, tiles.heads, chained=chained)
        if isinstance(tiles.heads, HopperTile)
        else Product(PLAIN, *of_heads, tiles.heads, chained=chained)
    )
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
