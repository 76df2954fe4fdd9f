"""What packing costs on a CPU: eight mixed requests in one batch against the same eight alone.

python -m bench.packing            # the small golden checkpoint and a 4-layer, 512-wide random one
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bench.random_checkpoint import SIZES, SMALL_CHECKPOINT, write_checkpoint
from omnivoice import Engine, EngineConfig, SamplingParams, SynthesisRequest, VoicePrompt

SENTENCES = (
    "The ferry leaves at noon, so bring your coat.",
    "Wait [laughter] you cannot be serious!",
    "Good morning to you.",
    "Nobody answered him; the river was low and the wheel was still.",
)


def mixed_requests(num_step: int) -> list[SynthesisRequest]:
    """Eight requests of four lengths; every second one has a reference voice of three seconds."""
    codes = np.random.default_rng(0).integers(0, 1024, (8, 75))
    voice = VoicePrompt(codes, "A short reference line.", rms=0.1)
    params = SamplingParams(num_step=num_step)
    return [
        SynthesisRequest(text, language="en", voice=voice if index % 2 else None, seed=index, params=params)
        for index, text in enumerate(SENTENCES * 2)
    ]


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def compare(folder: Path, num_step: int, repeats: int) -> dict[str, float]:
    """Median generator seconds of both ways, measured in turns: post-processing and decoding are left out."""
    engine = Engine.from_checkpoint(folder, EngineConfig(device="cpu", dtype="float32"))
    requests = mixed_requests(num_step)

    def generate(batch: list[SynthesisRequest]) -> None:
        for index, request in enumerate(batch):
            engine.add_request(str(index), request)
        for _ in range(num_step - 1):
            engine.step()
        for index in range(len(batch)):  # the last step would decode as well
            engine.abort(str(index))
        engine.step()

    def alone() -> None:
        for request in requests:
            generate([request])

    generate(requests)
    alone()
    batched_s, alone_s = [], []
    for _ in range(repeats):
        batched_s.append(seconds(lambda: generate(requests)))
        alone_s.append(seconds(alone))
    batched_median, alone_median = statistics.median(batched_s), statistics.median(alone_s)
    return {"batched_s": batched_median, "alone_s": alone_median, "ratio": batched_median / alone_median}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-step", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        medium = Path(scratch)
        write_checkpoint(medium, SIZES["medium"])
        for name, folder in (("golden", SMALL_CHECKPOINT), ("4 layers, 512 wide", medium)):
            figures = compare(folder, arguments.num_step, arguments.repeats)
            print(json.dumps({"checkpoint": name} | {key: round(value, 3) for key, value in figures.items()}))


if __name__ == "__main__":
    main()
