"""The graph executor against its slow twin, and what it promises: no waiting, no capture once warm, nothing kept."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import golden_cases as golden
import numpy as np
import pytest
import torch
from published import graph_of, published_checkpoint

from omnivoice import Engine, EngineConfig, SamplingParams, SynthesisRequest
from omnivoice.chunk_run import ChunkRun
from omnivoice.executor import EagerExecutor, Executor
from omnivoice.request import VoicePrompt

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

ACTIVITIES = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
TEXTS = ("Good morning.", "The river was low, the wheel was still, and the money was gone by noon.", "Is it?")


@pytest.fixture(scope="module")
def published() -> Path:
    return published_checkpoint()


@pytest.fixture(scope="module")
def engine(published: Path) -> Engine:
    return Engine.from_checkpoint(published, EngineConfig(device="cuda", mode="step"))


def requests(count: int, num_step: int = 8) -> list[SynthesisRequest]:
    """Of different lengths, steps, guidance and temperatures, some with a voice."""
    voice = VoicePrompt(np.random.default_rng(0).integers(0, 1024, (8, 60)), "A voice speaks here.")
    return [
        SynthesisRequest(
            TEXTS[index % 3],
            "en",
            seed=index,
            duration=[None, 7.0, None, 0.6][index % 4],
            voice=voice if index % 5 == 2 else None,
            params=SamplingParams(
                num_step=num_step + index % 3,
                guidance_scale=[2.0, 0.0, 3.5][index % 3],
                class_temperature=[0.0, 0.0, 0.0, 0.7][index % 4],
            ),
        )
        for index in range(count)
    ]


def codes_of(engine: Engine, wanted: list[SynthesisRequest]) -> list[np.ndarray]:
    results = engine.generate_codes(wanted)
    assert [result.error for result in results] == [None] * len(wanted)
    return [np.asarray(result.codes) for result in results]


def agreement(ours: list[np.ndarray], theirs: list[np.ndarray]) -> float:
    equal = np.concatenate([(a == b).ravel() for a, b in zip(ours, theirs, strict=True)])
    return float(equal.mean())


@pytest.mark.parametrize("mode", ["request", "step"])
def test_graph_equals_eager_in_float32(mode: str) -> None:
    """Forty requests under a few buckets: lengths, items and the padding behind them change under one graph."""
    options = {"device": "cuda", "dtype": "float32", "mode": mode, "max_batch_requests": 6, "max_batch_tokens": 2048}
    fast = Engine.from_checkpoint(golden.CHECKPOINT, EngineConfig(**options))  # type: ignore[arg-type]
    slow = Engine.from_checkpoint(golden.CHECKPOINT, EngineConfig(**options, graphs=False))  # type: ignore[arg-type]
    graph_of(fast)
    assert isinstance(slow._executor, EagerExecutor)
    wanted = requests(40, num_step=5)
    assert agreement(codes_of(fast, wanted), codes_of(slow, wanted)) >= 0.98


@pytest.mark.parametrize("rows", [200, 1500, 5000])
def test_one_step_is_as_near_to_float32_as_eager_is(engine: Engine, published: Path, rows: int) -> None:
    """Full size: of the cells that one step unmasks, as many are float32's as with eager bfloat16."""
    exact = Engine.from_checkpoint(published, EngineConfig(device="cuda", dtype="float32", graphs=False))
    eager = Engine.from_checkpoint(published, EngineConfig(device="cuda", graphs=False))
    frames = 90

    def first_step(executor: Executor) -> torch.Tensor:
        params = SamplingParams(num_step=4, position_temperature=0.0)
        runs = [ChunkRun(str(i), 0, list(range(i, i + 20)), None, frames, params, seed=i) for i in range(rows // 200)]
        with torch.cuda.stream(torch.cuda.Stream()):
            executor.set_runs(runs)
            executor.step()
            codes = torch.cat([executor.codes(run).long() for run in runs])
            executor.set_runs([])
            torch.cuda.current_stream().synchronize()
        return codes

    expected, slow, fast = (first_step(e) for e in (exact._executor, eager._executor, graph_of(engine)))
    slow_share, fast_share = (float((codes == expected).float().mean()) for codes in (slow, fast))
    assert slow_share > 0.9
    assert fast_share > slow_share - 0.02


def test_deterministic_codes_do_not_depend_on_company(published: Path) -> None:
    """Bit for bit: alone, in batches of any size and order, in both modes."""
    wanted = requests(24, num_step=6)
    options = {"device": "cuda", "deterministic": True, "max_batch_requests": 16}
    together = Engine.from_checkpoint(published, EngineConfig(**options, mode="request"))  # type: ignore[arg-type]
    stepwise = Engine.from_checkpoint(published, EngineConfig(**options, mode="step"))  # type: ignore[arg-type]
    alone = [codes_of(together, [request])[0] for request in wanted]
    assert agreement(codes_of(together, wanted), alone) == 1.0
    assert agreement(codes_of(stepwise, wanted[::-1])[::-1], alone) == 1.0


def test_a_step_is_one_launch_and_no_wait(engine: Engine) -> None:
    """Counted by the profiler over whole requests of 8 and of 32 steps: the calls that synchronise are as many."""
    counts = {}
    for num_step in (8, 32):
        params = SamplingParams(num_step=num_step)
        codes_of(engine, [SynthesisRequest(TEXTS[1], seed=1, params=params)])
        with torch.profiler.profile(activities=ACTIVITIES, acc_events=True) as profile:
            codes_of(engine, [SynthesisRequest(TEXTS[1], seed=index, params=params) for index in range(4)])
        counts[num_step] = Counter(event.name for event in profile.events() if event.name.startswith(("cuda", "cu")))
    launches = {steps: counts[steps]["cudaGraphLaunch"] for steps in counts}
    assert launches == {8: 8, 32: 32}
    waits = {
        steps: sum(number for name, number in found.items() if "Synchronize" in name) for steps, found in counts.items()
    }
    assert waits[8] == waits[32]
    kernels = {steps: counts[steps]["cudaLaunchKernel"] + counts[steps]["cuLaunchKernelEx"] for steps in counts}
    assert kernels[8] == kernels[32]


def test_nothing_is_captured_once_warm(engine: Engine) -> None:
    graphs = graph_of(engine)._graphs
    before = graphs.num_captures
    assert before == len(graphs.buckets)
    codes_of(engine, requests(60, num_step=2))
    assert graphs.num_captures == before


def test_a_chunk_larger_than_the_buffers_runs_eagerly(published: Path) -> None:
    small = Engine.from_checkpoint(published, EngineConfig(device="cuda", max_batch_tokens=512, mode="step"))
    wanted = [
        SynthesisRequest(TEXTS[0], seed=1, duration=20.0, params=SamplingParams(num_step=3)),
        SynthesisRequest(TEXTS[0], seed=2, params=SamplingParams(num_step=3)),
    ]
    long, short = codes_of(small, wanted)
    assert long.shape == (8, 500)
    assert short.max() < 1024


def test_what_no_graph_may_be_captured_for_runs_op_by_op(published: Path) -> None:
    starved = Engine.from_checkpoint(published, EngineConfig(device="cuda", memory_gib=0.01, max_batch_tokens=1024))
    rich = Engine.from_checkpoint(published, EngineConfig(device="cuda", max_batch_tokens=1024))
    assert graph_of(starved)._graphs.num_captures == 0
    wanted = requests(3, num_step=3)
    assert agreement(codes_of(starved, wanted), codes_of(rich, wanted)) == 1.0


def test_two_thousand_requests_leave_nothing_behind(engine: Engine) -> None:
    def served(count: int) -> int:
        for _ in range(count // 100):
            engine.generate(requests(100, num_step=1))
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()

    before = served(200)
    assert served(2_000) <= before + 2**20
    assert engine.num_unfinished == 0
