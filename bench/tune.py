"""Times candidate tiles of every product beside cuBLAS, and attention's blocks: where `graph/tiles.py` comes from.

python -m bench.tune --out bench/results/tune.json [--rows 230,1844,7376]
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from triton.runtime.errors import OutOfResources

from bench.random_checkpoint import SIZES
from omnivoice.attention import VarlenAttention
from omnivoice.kernels import attention, products
from omnivoice.kernels.attention import Blocks
from omnivoice.kernels.products import Product, Tile
from omnivoice.model.backbone import apart
from omnivoice.packing import Packing

DEVICE = torch.device("cuda")
EPS = 1e-6
LAYERS = 28
FEW_ROWS = 1024
KINDS = {
    "qkv": products.SCALED,
    "out": products.ADDED,
    "gate_up": products.GATED,
    "down": products.ADDED,
    "heads": products.PLAIN,
}
FOR_FEW_ROWS = (
    Tile(64, 64, 64, 6, 4), Tile(64, 64, 128, 4, 4), Tile(64, 64, 128, 5, 4), Tile(64, 128, 64, 4, 4),
    Tile(64, 128, 64, 5, 4), Tile(128, 64, 64, 5, 4), Tile(128, 64, 64, 4, 8), Tile(128, 128, 64, 4, 8),
)  # fmt: skip
FOR_MANY_ROWS = (
    Tile(128, 128, 64, 4, 4), Tile(128, 128, 64, 4, 8), Tile(128, 256, 64, 3, 8), Tile(128, 256, 64, 4, 8),
    Tile(256, 128, 64, 3, 8), Tile(64, 256, 64, 4, 4),
)  # fmt: skip
BLOCKS = (
    Blocks(64, 64, 4, 1), Blocks(64, 64, 4, 2), Blocks(64, 64, 4, 2, 128), Blocks(128, 64, 4, 1), Blocks(128, 64, 8, 1),
    Blocks(128, 64, 8, 2, 128), Blocks(64, 128, 8, 1), Blocks(32, 64, 4, 1), Blocks(256, 64, 8, 2),
)  # fmt: skip


def shape_of(kind: str) -> tuple[int, int]:
    """Columns and depth of a product, at the published size."""
    size = SIZES["published"]
    heads = size.heads * size.head_dim
    return {
        "qkv": (heads + 2 * size.kv_heads * size.head_dim, size.hidden),
        "out": (size.hidden, heads),
        "gate_up": (size.ffn, size.hidden),
        "down": (size.hidden, size.ffn),
        "heads": (8 * 1025, size.hidden),
    }[kind]


def candidates(rows: int) -> Iterator[Tile]:
    for tile in FOR_FEW_ROWS if rows <= FEW_ROWS else FOR_MANY_ROWS:
        yield tile
        if rows > FEW_ROWS:
            yield tile._replace(persistent=True)


def median_us(launches: list[Callable[[], object]], repeats: int = 7) -> float:
    """Microseconds of one of `launches`, captured together and replayed."""
    for launch in launches[:2]:
        launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for launch in launches:
            launch()
    graph.replay()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times) * 1e3 / len(launches)


def ranked(times: dict[str, float]) -> dict[str, float]:
    return dict(sorted(times.items(), key=lambda item: item[1]))


def tune_product(kind: str, rows: int) -> dict[str, float]:
    """Microseconds of a product by tile, over weights of their own for each layer, as in a step."""
    columns, depth = shape_of(kind)
    is_gated, is_added, is_heads = kind == "gate_up", kind in ("out", "down"), kind == "heads"
    height = columns * (2 if is_gated else 1)
    weights = [torch.randn(height, depth, device=DEVICE).bfloat16() * 0.02 for _ in range(4 if is_heads else LAYERS)]
    x = torch.randn(rows, depth, device=DEVICE).bfloat16()
    squares = torch.zeros(16, rows, device=DEVICE)
    squares[0] = x.float().square().sum(1)
    number = torch.tensor([rows], dtype=torch.int32, device=DEVICE)
    out = torch.zeros(rows, columns, device=DEVICE, dtype=torch.float32 if is_heads else torch.bfloat16)
    wide = torch.zeros(rows, height, device=DEVICE, dtype=torch.bfloat16)
    if is_added:
        library = [partial(torch.addmm, out, x, weight.T, out=out) for weight in weights]
    else:
        library = [partial(torch.mm, x, weight.T, out=wide) for weight in weights]
    times = {"cublas": median_us(list(library))}

    expected = x.float() @ weights[0].float().T
    if kind in ("qkv", "gate_up"):
        expected *= torch.rsqrt(x.float().square().mean(1, keepdim=True) + EPS)
    if is_gated:
        gate, up = apart(expected)
        expected = torch.nn.functional.silu(gate) * up
    for tile in candidates(rows):
        try:
            makes = partial(
                Product, KINDS[kind], x, out=out, num_rows=number, tile=tile, eps=EPS, chained=rows <= FEW_ROWS
            )
            made = [makes(weight=weight, squares=squares.clone() if is_added else squares) for weight in weights]
            out.zero_()
            made[0].launch()
            error = float((out.float() - expected).norm() / expected.norm())
            if not error < 1e-2:
                raise SystemExit(f"{kind} {tile}: relative error {error:.2g}")
            times[str(tuple(tile))] = median_us([product.launch for product in made])
        except (OutOfResources, ValueError) as error:
            print(f"{kind} {tile}: {error}")
    return ranked(times)


def tune_attention(batch: int, rows_each: int = 230, frames: int = 104) -> dict[str, float]:
    """Microseconds of attention with all that is fused into it, beside torch's `varlen_attn` alone."""
    lengths = [length for _ in range(batch) for length in (rows_each - frames, frames)]
    packing = Packing.of(lengths, DEVICE)
    rows = packing.num_rows
    qkv = torch.randn(rows, 4096, device=DEVICE).bfloat16()
    out = torch.zeros(rows, 2048, device=DEVICE, dtype=torch.bfloat16)
    norm = torch.ones(128, device=DEVICE, dtype=torch.bfloat16)
    angles = torch.arange(4096, device=DEVICE).float()[:, None] * 1e6 ** -(torch.arange(0, 128, 2, device=DEVICE) / 128)
    rotation = (angles.cos().bfloat16(), angles.sin().bfloat16())
    query, key, value = (part.contiguous() for part in qkv.view(rows, 32, 128).split([16, 8, 8], dim=1))
    times = {"varlen_attn": median_us([partial(VarlenAttention(), query, key, value, packing)] * LAYERS)}
    number = torch.tensor([rows], dtype=torch.int32, device=DEVICE)
    positions = packing.positions.to(torch.int32)
    sizes = (norm, *rotation, EPS, 16, 8)
    keys = partial(attention.prepare_heads, qkv[:, 2048:3072], positions, number, norm, *rotation, EPS)
    times["prepare_keys"] = median_us([keys] * LAYERS)
    for blocks in BLOCKS:
        step = attention.queries_per_item(16, 8, blocks)
        starts = packing.cu_seqlens.tolist()
        items = [(s, n, o) for s, n in zip(starts, lengths, strict=False) for o in range(0, n, step)]
        table = torch.tensor(items, dtype=torch.int32, device=DEVICE)
        counted = torch.tensor([len(items)], dtype=torch.int32, device=DEVICE)
        for ready in (False, True):
            launch = partial(
                attention.attend, qkv, out, table, counted, len(items), norm, *sizes,
                blocks=blocks, keys_ready=ready, chained=batch == 1,
            )  # fmt: skip
            try:
                times[f"{tuple(blocks)}{', keys ready' if ready else ''}"] = median_us([launch] * LAYERS)
            except OutOfResources as error:
                print(f"attention {blocks}: {error}")
    return ranked(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", default="230,460,920,1840,3680,7376")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--batches", default="1,8,32", help="of attention")
    parser.add_argument("--show", type=int, default=5)
    arguments = parser.parse_args()
    jobs = [(f"attention B={batch}", partial(tune_attention, int(batch))) for batch in arguments.batches.split(",")]
    jobs += [
        (f"{kind} rows={rows}", partial(tune_product, kind, int(rows)))
        for rows in arguments.rows.split(",")
        for kind in arguments.kinds.split(",")
    ]
    results: dict[str, dict[str, float]] = {}
    for name, job in jobs:
        results[name] = job()
        best = list(results[name].items())[: arguments.show]
        print(f"{name}:", ", ".join(f"{label} {us:.1f}" for label, us in best), flush=True)
        arguments.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
