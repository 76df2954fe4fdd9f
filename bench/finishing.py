"""CPU time from decoded chunks to a finished WAV, one thread: `finish`, the encoding that the worker does, SHA-256.

python -m bench.finishing --out bench/results/finishing.json

Also what the GIL costs both sides: how long a thread takes that computes a little and lets go of it, over and over, as
one does that launches GPU work, alone and beside a thread that finishes; and how long finishing takes beside it.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import platform
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from itertools import cycle, islice
from pathlib import Path
from typing import TypeVar

import numpy as np

from omnivoice import SamplingParams
from omnivoice.audio.postprocess import scale_to_full
from omnivoice.audio.wav import encode_wav
from omnivoice.finishing import finish
from omnivoice.parameters import SAMPLE_RATE
from omnivoice.request import Waveform

if HAS_SOUNDFILE := find_spec("soundfile") is not None:
    from omnivoice.audio.files import encode_audio

SECONDS = (1.0, 4.16, 15.0)
BATCH = 32
PARAMS = SamplingParams()
Item = TypeVar("Item")
LAUNCH_LOOPS = 400
"""Turns of an empty loop with the GIL held: some 10 µs."""
LAUNCH_BYTES = bytes(8_192)
"""Hashing them takes some 5 µs without the GIL, as a launch does."""


def speech_like(seconds: float, seed: int, pause_seconds: float = 0.0) -> Waveform:
    """Syllables of a wavering voice over room noise, quiet at both ends; float32 (samples,), with a pause inside."""
    rng = np.random.default_rng(seed)
    time_s = np.arange(int(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    pitch = 2 * np.pi * np.cumsum(rng.uniform(100, 220) * (1 + 0.1 * np.sin(3 * time_s))) / SAMPLE_RATE
    voice = np.sin(pitch) + 0.5 * np.sin(2 * pitch) + 0.1 * rng.standard_normal(len(time_s))
    voice *= rng.uniform(0.1, 0.5) * np.abs(np.sin(np.pi * 4 * time_s + rng.uniform(0, np.pi)))
    edge, middle = 0.15, rng.uniform(0.3, 0.5) * seconds
    silent = (time_s < edge) | (time_s > seconds - edge) | ((time_s > middle) & (time_s < middle + pause_seconds))
    voice[silent] = 0.0
    return (voice + 3e-4 * rng.standard_normal(len(time_s))).astype(np.float32)


def finish_alone(waveform: Waveform) -> Waveform:
    return finish([waveform], PARAMS, None)


def encode(waveform: Waveform) -> bytes:
    """What the worker's delivery does; where libsndfile is missing, the same less the look-up of the format."""
    scale_to_full(waveform)
    if HAS_SOUNDFILE:
        return encode_audio(waveform, SAMPLE_RATE, "wav", SAMPLE_RATE)
    return encode_wav(np.atleast_2d(scale_to_full(waveform)[0]).T, SAMPLE_RATE)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def microseconds(times: Sequence[float]) -> dict[str, float]:
    ordered = sorted(times)
    return {
        "median_us": round(statistics.median(ordered) * 1e6, 1),
        "min_us": round(ordered[0] * 1e6, 1),
        "mean_us": round(statistics.fmean(ordered) * 1e6, 1),
        "p99_us": round(ordered[int(0.99 * (len(ordered) - 1))] * 1e6, 1),
        "max_us": round(ordered[-1] * 1e6, 1),
    }


def timed(call: Callable[[Item], object], items: Sequence[Item], repeats: int) -> dict[str, float]:
    """CPU times of one call, `repeats` of them after a round over all items, so that no cache holds the next one."""
    times = []
    for number, item in enumerate(islice(cycle(items), len(items) + repeats)):
        start = time.thread_time()
        call(item)
        if number >= len(items):
            times.append(time.thread_time() - start)
    return microseconds(times)


def stages(waveforms: Sequence[Waveform], repeats: int) -> dict[str, dict[str, float]]:
    finished = [finish_alone(waveform) for waveform in waveforms]
    files = [encode(waveform) for waveform in finished]
    return {
        "finish": timed(finish_alone, waveforms, repeats),
        "encode": timed(encode, finished, repeats),
        "sha256": timed(digest, files, repeats),
    }


def batch_ms(waveforms: Sequence[Waveform], repeats: int) -> dict[str, float]:
    """CPU milliseconds from a batch's waveforms to its files with their digests, one after the other."""
    times = []
    for _ in range(repeats + 1):
        start = time.thread_time()
        for waveform in waveforms:
            digest(encode(finish_alone(waveform)))
        times.append((time.thread_time() - start) * 1e3)
    return {"median_ms": round(statistics.median(times[1:]), 2), "min_ms": round(min(times[1:]), 2)}


def launch_times(seconds: float) -> list[float]:
    """How long each turn of a thread took that computes for some 10 µs and then lets go of the GIL for 5."""
    times = []
    end = time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        for _ in range(LAUNCH_LOOPS):
            pass
        hashlib.sha256(LAUNCH_BYTES)
        times.append(time.perf_counter() - start)
    return times


def beside_launches(waveforms: Sequence[Waveform], seconds: float) -> dict[str, dict[str, float]]:
    finishing: list[float] = []
    is_over = threading.Event()

    def run() -> None:
        for waveform in cycle(waveforms):
            if is_over.is_set():
                return
            start = time.perf_counter()
            finish_alone(waveform)
            finishing.append(time.perf_counter() - start)

    alone = launch_times(seconds)
    thread = threading.Thread(target=run)
    thread.start()
    beside = launch_times(seconds)
    is_over.set()
    thread.join()
    results = {"launch_alone": alone, "launch_beside_finish": beside, "finish_beside_launch": finishing}
    return {name: microseconds(times) for name, times in results.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=320)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    results: dict[str, object] = {
        "date": datetime.date.today().isoformat(),
        "cpu": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
    for seconds in SECONDS:
        waveforms = [speech_like(seconds, seed) for seed in range(BATCH)]
        results[f"{seconds:g} s"] = stages(waveforms, arguments.repeats)
        results[f"{BATCH} x {seconds:g} s"] = batch_ms(waveforms, max(5, arguments.repeats // BATCH))
        print(json.dumps({f"{seconds:g} s": results[f"{seconds:g} s"]}), flush=True)
    paused = [speech_like(4.16, seed, pause_seconds=1.4) for seed in range(BATCH)]
    results["4.16 s with a pause to shorten"] = stages(paused, arguments.repeats)
    results["GIL, 4.16 s"] = beside_launches([speech_like(4.16, seed) for seed in range(BATCH)], 1.0)
    text = json.dumps(results, indent=1)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
