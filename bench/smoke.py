"""First times of the eager engine on a GPU, at the published size with random weights.

python -m bench.smoke --out bench/results/smoke.json
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch

from bench.random_checkpoint import SIZES, write_checkpoint
from omnivoice import Engine, EngineConfig, SamplingParams, SynthesisRequest
from omnivoice.parameters import FRAME_RATE

SENTENCE = "The river was low, the wheel was still, and the money was gone by noon."


def generator_ms(engine: Engine, batch: int, num_step: int, repeats: int) -> list[float]:
    """Milliseconds of all steps of a batch, device time included; the first run warms up and does not count."""
    params = SamplingParams(num_step=num_step)
    times = []
    for repeat in range(repeats + 1):
        for index in range(batch):
            engine.add_request(str(index), SynthesisRequest(SENTENCE, "en", seed=index, params=params))
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(num_step - 1):
            engine.step()
        torch.cuda.synchronize()
        elapsed = (time.perf_counter() - start) * num_step / (num_step - 1)
        while engine.num_unfinished:
            engine.step()
        if repeat:
            times.append(elapsed * 1e3)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    results: dict[str, object] = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "what": "eager, bf16, random weights of the published size, 32 steps, generator only, median ms",
    }
    with tempfile.TemporaryDirectory() as scratch:
        start = time.perf_counter()
        write_checkpoint(Path(scratch), SIZES["published"], torch.bfloat16)
        results["write_checkpoint_s"] = round(time.perf_counter() - start, 1)
        start = time.perf_counter()
        engine = Engine.from_checkpoint(scratch, EngineConfig(device="cuda"))
        results["load_s"] = round(time.perf_counter() - start, 1)
        codes = engine.generate([SynthesisRequest(SENTENCE, "en")])[0].codes
        for batch in (1, 8, 32):
            times = generator_ms(engine, batch, 32, arguments.repeats)
            seconds = batch * codes.shape[1] / FRAME_RATE
            median = statistics.median(times)
            results[f"B={batch}"] = {
                "median_ms": round(median, 1),
                "min_ms": round(min(times), 1),
                "max_ms": round(max(times), 1),
                "audio_seconds_per_second": round(seconds / median * 1e3, 1),
            }
        start = time.perf_counter()
        for _ in range(10):
            engine.codec.decode(codes)
        results["decode_one_ms"] = round((time.perf_counter() - start) * 100, 2)
        results["peak_memory_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
    arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
