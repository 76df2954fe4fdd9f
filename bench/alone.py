"""What a caller waits who is alone on the card: the first request after start and those after it, and one long text.

python -m bench.alone --out bench/results/2026-11-30-h200-alone.json

Times run from text to the finished waveform: generating, decoding and post-processing.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.peers.ours import MODES, checkpoint_of_size
from bench.record import circumstances, write
from bench.texts import SENTENCE_SECONDS, texts_of
from omnivoice import Engine, EngineConfig, SamplingParams, SynthesisRequest
from omnivoice.parameters import FRAME_RATE
from omnivoice.planning import plan


def say(text: str) -> None:
    print(text, flush=True)


def milliseconds(engine: Engine, request: SynthesisRequest) -> float:
    """Raises what the request failed with."""
    start = time.perf_counter()
    [result] = engine.generate([request])
    if result.error is not None:
        raise result.error
    return (time.perf_counter() - start) * 1e3


def sentences(engine: Engine, count: int, params: SamplingParams) -> dict[str, Any]:
    """Milliseconds of `count` sentences, one after the other: the first, and the median of the second half."""
    times = [
        milliseconds(engine, SynthesisRequest(text, "en", seed=seed, duration=SENTENCE_SECONDS, params=params))
        for seed, text in enumerate(texts_of(SENTENCE_SECONDS, count))
    ]
    later = times[count // 2 :]
    found = {"first_ms": times[0], "later_ms": statistics.median(later), "slowest_later_ms": max(later)}
    say(f"{count} sentences: {', '.join(f'{name} {value:.1f}' for name, value in found.items())}")
    return found | {"times_ms": times}


def long_text(engine: Engine, minutes: float, repeats: int, params: SamplingParams) -> dict[str, Any]:
    """Seconds of one text of `minutes`, alone."""
    seconds = 60 * minutes
    request = SynthesisRequest(texts_of(seconds, 1)[0], "en", seed=1, duration=seconds, params=params)
    planned = plan(request)
    times = [milliseconds(engine, request) / 1e3 for _ in range(repeats)]
    median = statistics.median(times)
    say(f"{planned.frames / FRAME_RATE:.0f} s in {len(planned.chunks)} chunks: {median:.2f} s, {times}")
    return {"audio_s": planned.frames / FRAME_RATE, "chunks": len(planned.chunks), "median_s": median, "times_s": times}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--mode", choices=sorted(MODES), default="bf16")
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--num-step", type=int, default=32)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--size", choices=("published", "medium", "golden"), default="published")
    arguments = parser.parse_args()
    params = SamplingParams(num_step=arguments.num_step)
    with tempfile.TemporaryDirectory() as scratch:
        folder = checkpoint_of_size(arguments.size, Path(scratch))
        start = time.perf_counter()
        options = MODES[arguments.mode if arguments.device == "cuda" else "fp32"]
        engine = Engine.from_checkpoint(folder, EngineConfig(device=arguments.device, **options))
        started = time.perf_counter() - start
        say(f"start to ready: {started:.1f} s")
        results = {
            **circumstances("bench.alone", arguments.device),
            "start_s": started,
            "sentences": sentences(engine, arguments.requests, params),
            "long_text": long_text(engine, arguments.minutes, arguments.repeats, params),
        }
    write(arguments.out, results)


if __name__ == "__main__":
    main()
