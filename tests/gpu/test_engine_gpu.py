"""The engine on a CUDA device, against its slow twins: SDPA, float32, the CPU. Needs the engine's packages only."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import golden_cases as golden
import numpy as np
import pytest
import torch
from published import published_checkpoint

from bench.texts import SENTENCES
from omnivoice import Engine, EngineConfig, SamplingParams, SynthesisRequest
from omnivoice.attention import SdpaAttention, VarlenAttention
from omnivoice.model.backbone import Backbone
from omnivoice.model.codec import Codec
from omnivoice.packing import Packing
from omnivoice.philox import gumbel, philox, split_seed, uniform

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

DEVICE = torch.device("cuda")


@pytest.fixture(scope="module")
def published_size() -> Path:
    return published_checkpoint()


@pytest.fixture(scope="module")
def engine(published_size: Path) -> Iterator[Engine]:
    yield Engine.from_checkpoint(published_size, EngineConfig(device="cuda"))
    gc.collect()
    torch.cuda.empty_cache()


def sentences(count: int, num_step: int = 32) -> list[SynthesisRequest]:
    params = SamplingParams(num_step=num_step)
    return [
        SynthesisRequest(f"{SENTENCES[0]} {index}", language="en", seed=index, params=params) for index in range(count)
    ]


def test_varlen_equals_sdpa_within_bf16() -> None:
    """Both against float64 SDPA: neither is further from it than bf16's rounding explains."""
    lengths = [1, 160, 104, 0, 700, 33, 0, 250]
    generator = torch.Generator(device="cuda").manual_seed(0)

    def random(heads: int) -> torch.Tensor:
        return torch.randn(sum(lengths), heads, 128, generator=generator, device=DEVICE)

    packing = Packing.of(lengths, DEVICE)
    query, key, value = random(16), random(8), random(8)
    exact = SdpaAttention()(query.double(), key.double(), value.double(), packing)
    narrow = [x.bfloat16() for x in (query, key, value)]
    for backend in (SdpaAttention(), VarlenAttention()):
        found = backend(*narrow, packing).double()
        assert float((found - exact).norm() / exact.norm()) < 1e-2, backend.name


def test_eager_varlen_equals_sdpa_through_the_whole_model(engine: Engine, published_size: Path) -> None:
    """28 layers at full size: varlen in bf16 is no further from float32 than SDPA in bf16 is."""
    fast = engine._executor.backbone
    slow = Backbone.from_folder(published_size, DEVICE, torch.bfloat16, SdpaAttention())
    exact = Backbone.from_folder(published_size, DEVICE, torch.float32, SdpaAttention())
    assert isinstance(fast.attention, VarlenAttention)
    packing = Packing.of([160, 104, 220, 104], DEVICE)
    generator = torch.Generator(device="cuda").manual_seed(1)
    rows = torch.randn(packing.num_rows, 1024, generator=generator, device=DEVICE).bfloat16()
    with torch.inference_mode():
        expected = exact.forward(rows.float(), packing)
        fast_error, slow_error = (
            float((backbone.forward(rows, packing).float() - expected).norm() / expected.norm())
            for backbone in (fast, slow)
        )
    assert slow_error < 5e-2
    assert fast_error < 1.2 * slow_error


@pytest.mark.parametrize("batch", [1, 8, 32])
def test_batches_run_in_bf16(engine: Engine, batch: int) -> None:
    results = engine.generate(sentences(batch, num_step=8))
    assert [result.error for result in results] == [None] * batch
    assert all(result.waveform is not None and np.isfinite(result.waveform).all() for result in results)
    assert {result.batch_size for result in results} == {batch}


def test_random_words_are_the_cpus() -> None:
    """Philox gives the same bits on both; the noise made of them may differ in the logarithms' last ones."""
    frame, codebook = torch.arange(200)[:, None], torch.arange(8)
    key = tuple(map(torch.tensor, split_seed(2**64 - 3)))
    counter = (frame, codebook << 16, torch.tensor(5), torch.tensor(2))
    on_cpu = philox(counter, key)
    on_gpu = philox(tuple(x.to(DEVICE) for x in counter), tuple(x.to(DEVICE) for x in key))
    for ours, theirs in zip(on_cpu, on_gpu, strict=True):
        assert torch.equal(ours, theirs.cpu())
    noise = gumbel(uniform(on_gpu[0], torch.float32)).cpu()
    torch.testing.assert_close(noise, gumbel(uniform(on_cpu[0], torch.float32)), rtol=1e-5, atol=1e-5)


def test_golden_codes_in_float32() -> None:
    """The reference's own codes, computed on a CPU: near ties may fall the other way on another device."""
    engine = Engine.from_checkpoint(golden.CHECKPOINT, EngineConfig(device="cuda", dtype="float32"))
    shares = []
    for case in golden.cases("generate"):
        if case["prompt"] or case["language"] == "ar":
            continue
        request = SynthesisRequest(
            case["text"],
            language=case["language"],
            instruct=case["instruct"],
            duration=case["duration"],
            speed=case["speed"],
            params=SamplingParams(**case["config"]),
        )
        codes = engine.generate([request])[0].codes
        shares.append(float((np.asarray(codes) == golden.codes(case["tokens"])).mean()))
    assert len(shares) == 18
    assert sum(share == 1.0 for share in shares) >= 15
    assert min(shares) >= 0.97


def test_golden_codec() -> None:
    codec = Codec.from_folder(golden.CHECKPOINT, DEVICE)
    case = golden.cases("codec_decode")[0]
    expected = np.squeeze(golden.tensors()[case["waveform"]])
    assert golden.relative_error(codec.decode(golden.codes(case["codes"])), expected) <= 1e-4
    case = golden.cases("codec_encode")[0]
    found = codec.encode(np.squeeze(golden.tensors()[case["waveform"]]))
    assert (found == golden.codes(case["codes"])).mean() >= 0.99
