"""How much of a CPU's time speech takes: seconds of computing a second of finished audio, alone and in batches."""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from bench.accuracy.texts import SHORT, utterances
from omnivoice import Engine, EngineConfig, SamplingParams
from omnivoice.parameters import SAMPLE_RATE

BATCHES = (1, 8)


def realtime(arguments: argparse.Namespace) -> None:
    """The command of that name: sentences through `Engine.generate`, text to finished waveform, in float32."""
    torch.set_num_threads(arguments.threads)
    engine = Engine.from_checkpoint(arguments.checkpoint, EngineConfig(device="cpu", dtype="float32"))
    params = SamplingParams(num_step=arguments.num_step)
    requests = [one.request(params) for one in utterances(SHORT, arguments.sentences)]
    engine.generate(requests[:1])
    for size in BATCHES:
        factors = []
        for _ in range(arguments.repeats):
            seconds = audio = 0.0
            for first in range(0, len(requests), size):
                started = time.perf_counter()
                results = engine.generate(requests[first : first + size])
                seconds += time.perf_counter() - started
                for result in results:
                    if result.waveform is None:
                        raise SystemExit(str(result.error))
                    audio += len(result.waveform) / SAMPLE_RATE
            factors.append(seconds / audio)
        shown = ", ".join(f"{factor:.3f}" for factor in factors)
        print(f"{arguments.threads} threads, batch {size}, {arguments.num_step} steps:", end=" ")
        print(f"real-time factor {statistics.median(factors):.3f} (median of {shown}), {audio:.1f} s of audio")
