"""The fp8 engine on a GPU: its kernels beside torch, its products, its codes, and what it refuses."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest
import torch
from published import graph_of, published_checkpoint

from omnivoice import Engine, EngineConfig, SamplingParams, SynthesisRequest
from omnivoice.chunk_run import ChunkRun
from omnivoice.executor import Executor
from omnivoice.graph.fp8 import FP8, Weight, multiply_scaled
from omnivoice.kernels import fp8
from omnivoice.model.backbone import GATE_GROUP, apart

HAS_FP8 = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 9)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not HAS_FP8, reason="needs a CUDA device of compute capability 8.9"),
]

TEXT = "The river was low, the wheel was still, and the money was gone by noon."
EPS = 1e-6


@pytest.fixture(scope="module")
def published() -> Path:
    return published_checkpoint()


@pytest.fixture(scope="module")
def engine(published: Path) -> Engine:
    # The largest bucket is no multiple of 16, which the library wants of the other sizes only.
    config = EngineConfig(device="cuda", fp8=True, mode="step", max_batch_requests=40, max_batch_tokens=8_190)
    return Engine.from_checkpoint(published, config)


def requests(count: int, num_step: int = 4) -> list[SynthesisRequest]:
    """Of different lengths, steps and guidance."""
    return [
        SynthesisRequest(
            TEXT,
            "en",
            seed=index,
            duration=[None, 7.0, 0.6][index % 3],
            params=SamplingParams(num_step=num_step + index % 3, guidance_scale=[2.0, 0.0][index % 2]),
        )
        for index in range(count)
    ]


def codes_of(engine: Engine, wanted: list[SynthesisRequest]) -> list[np.ndarray]:
    results = engine.generate_codes(wanted)
    assert [result.error for result in results] == [None] * len(wanted)
    return [np.asarray(result.codes) for result in results]


def compare(narrow: torch.Tensor, scales: torch.Tensor, expected: torch.Tensor, counted: int) -> None:
    """Rows within half a unit in e4m3's last place; what does not count is left alone."""
    found = (narrow.float() * scales)[:counted]
    expected = expected.float()[:counted]
    largest = expected.abs().amax(dim=1, keepdim=True)
    # 3 bits of mantissa, and steps of 2^-9 where they end; a little more, as the twin's row is rounded elsewhere.
    assert ((found - expected).abs() <= expected.abs() * 2**-4 * 1.05 + largest * 2**-18 + 1e-29).all()
    assert (scales[:counted] > 0).all()
    assert (scales[counted:] == -1).all()
    assert narrow.view(torch.uint8)[counted:].eq(0).all()


@pytest.mark.parametrize("width", [64, 1024, 2048, 3072])
@pytest.mark.parametrize("chained", [False, True])
def test_kernels_quantise_as_torch_does(width: int, chained: bool) -> None:
    torch.manual_seed(width)
    rows, counted = 300, 277

    def outputs() -> tuple[torch.Tensor, torch.Tensor]:
        narrow = torch.zeros(rows, width, dtype=FP8, device="cuda")
        return narrow, torch.full((rows, 1), -1.0, device="cuda")

    def values(columns: int) -> torch.Tensor:
        x = torch.randn(rows, columns, device="cuda") * torch.logspace(-4, 4, rows, device="cuda")[:, None]
        x[3] = 0
        x[5, 7] = 3e4
        return x.bfloat16()

    num_rows = torch.tensor([counted], dtype=torch.int32, device="cuda")
    x, addend, gate_up = values(width), values(width), values(2 * width)
    narrow, scales = outputs()
    fp8.quantise(x, narrow, scales, num_rows, chained)
    compare(narrow, scales, x, counted)

    gate, up = apart(gate_up.float())
    narrow, scales = outputs()
    fp8.gate_quantise(gate_up, narrow, scales, num_rows, GATE_GROUP, chained)
    compare(narrow, scales, torch.nn.functional.silu(gate) * up, counted)

    for added in (None, addend):
        hidden, total = x.clone(), x if added is None else x + added
        narrow, scales = outputs()
        fp8.add_norm_quantise(hidden, added, narrow, scales, num_rows, EPS, chained)
        assert torch.equal(hidden[:counted], total[:counted])
        wide = total.float()
        compare(narrow, scales, wide * torch.rsqrt(wide.square().mean(dim=1, keepdim=True) + EPS), counted)


def test_a_row_that_is_not_finite_spoils_no_other() -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 256, device="cuda").bfloat16()
    x[1, 3], x[2, 5], x[3] = torch.inf, torch.nan, 0
    narrow = torch.zeros(64, 256, dtype=FP8, device="cuda")
    scales, out = torch.zeros(64, 1, device="cuda"), torch.zeros(64, 128, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(128, 256, device="cuda")
    fp8.quantise(x, narrow, scales, torch.tensor([64], dtype=torch.int32, device="cuda"))
    multiply_scaled(narrow, scales, Weight.of(weight), out)
    assert out.isnan().all(dim=1).nonzero().flatten().tolist() == [1, 2]
    assert (out[3] == 0).all()
    fine = [0, *range(4, 64)]
    expected = x.float()[fine] @ weight.T
    # Each of the 256 terms is off by up to 2^-3 of itself, at random: 6 % of the result's own deviation is ample.
    assert (out.float()[fine] - expected).square().mean() < (0.06 * expected.std()).square()


def test_codes_are_whole_and_nothing_is_captured_once_warm(engine: Engine) -> None:
    graphs = graph_of(engine)._graphs
    before = graphs.num_captures
    assert before == len(graphs.buckets)
    found = codes_of(engine, requests(60))
    assert all(codes.min() >= 0 and codes.max() < 1024 for codes in found)
    assert graphs.num_captures == before


@pytest.mark.parametrize("rows", [200, 1500, 5000])
def test_tokens_are_mostly_those_of_float32(engine: Engine, published: Path, rows: int) -> None:
    """Full size, one step that unmasks every cell. Rounding to e4m3 leaves 80 % of the tokens, to bfloat16 92 %: among
    random weights' logits the two largest of 1024 lie close."""
    exact = Engine.from_checkpoint(published, EngineConfig(device="cuda", dtype="float32", graphs=False))
    eager = Engine.from_checkpoint(published, EngineConfig(device="cuda", graphs=False))

    def tokens(executor: Executor) -> torch.Tensor:
        params = SamplingParams(num_step=1, position_temperature=0.0)
        runs = [ChunkRun(str(i), 0, list(range(i, i + 20)), None, 90, params, seed=i) for i in range(rows // 200)]
        with torch.cuda.stream(torch.cuda.Stream()):
            executor.set_runs(runs)
            executor.step()
            codes = torch.cat([executor.codes(run).long() for run in runs])
            executor.set_runs([])
            torch.cuda.current_stream().synchronize()
        assert int(codes.max()) < 1024
        return codes

    expected, slow, fast = (tokens(e) for e in (exact._executor, eager._executor, graph_of(engine)))
    slow_share, fast_share = (float((codes == expected).float().mean()) for codes in (slow, fast))
    print(f"{rows} rows: bfloat16 {slow_share:.4f}, fp8 {fast_share:.4f}")
    assert slow_share > 0.9
    assert fast_share > 0.7


def test_a_chunk_larger_than_the_buffers_runs_on_dequantised_weights(published: Path) -> None:
    config = EngineConfig(device="cuda", fp8=True, max_batch_tokens=512, mode="step")
    small = Engine.from_checkpoint(published, config)
    long = SynthesisRequest(TEXT, seed=1, duration=20.0, params=SamplingParams(num_step=3))
    short = SynthesisRequest(TEXT, seed=2, params=SamplingParams(num_step=3))
    found = codes_of(small, [long, short])
    assert found[0].shape == (8, 500)
    assert all(codes.max() < 1024 for codes in found)


def test_an_fp8_engine_holds_less(published: Path) -> None:
    """No wide copy of the products' weights is kept: half of their 881 MB goes."""
    held = {}
    for is_fp8 in (False, True):
        gc.collect()
        before = torch.cuda.memory_allocated()
        one = Engine.from_checkpoint(published, EngineConfig(device="cuda", fp8=is_fp8, max_batch_tokens=256))
        torch.cuda.synchronize()
        held[is_fp8] = torch.cuda.memory_allocated() - before
        del one
    assert held[True] < held[False] - 350e6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "cpu"}, "^fp8: needs CUDA"),
        ({"dtype": "float16"}, "^fp8: needs dtype bfloat16, not float16$"),
        ({"graphs": False}, "^fp8: needs graphs$"),
        ({"deterministic": True}, "^fp8: cannot be deterministic"),
    ],
)
def test_what_fp8_needs(published: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Engine.from_checkpoint(published, EngineConfig(**{"device": "cuda", "fp8": True, **options}))  # type: ignore[arg-type]


def test_without_fp8_nothing_is_quantised(published: Path) -> None:
    plain = Engine.from_checkpoint(published, EngineConfig(device="cuda", max_batch_tokens=256))
    weights = [tensor for layer in graph_of(plain).backbone.layers for tensor in (layer.qkv, layer.down)]
    assert {weight.dtype for weight in weights} == {torch.bfloat16}
