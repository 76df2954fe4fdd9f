"""Times of the codec at the published size with random weights: one row at a time, in batches, and each choice of how.

python -m bench.codec --out bench/results/codec.json
python -m bench.codec --device cpu --repeats 2 --out /tmp/codec.json
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bench.random_checkpoint import SMALL_CHECKPOINT, _write_codec
from omnivoice.model.codec import Codec
from omnivoice.model.codec.codec import EXACT
from omnivoice.model.codec.decoder import DecoderOptions, WaveformDecoder
from omnivoice.parameters import FRAME_RATE, HOP_LENGTH

EQUAL = [104] * 32
"""32 times 4.16 s, a sentence of about 70 characters."""
SMALL = [5, 7, 5, 12]


def mixed_lengths(rows: int = 32) -> list[int]:
    """Frames of 1 to 15 s, evenly drawn."""
    return [int(frames) for frames in np.random.default_rng(0).integers(FRAME_RATE, 15 * FRAME_RATE + 1, rows)]


def write_published_codec(folder: Path) -> None:
    """Random weights of the published sizes, as `folder/audio_tokenizer`."""
    (folder / "audio_tokenizer").mkdir(parents=True)
    torch.manual_seed(0)
    _write_codec(folder / "audio_tokenizer", published=True, generator=torch.Generator().manual_seed(0))


def random_rows(lengths: Sequence[int], device: torch.device) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(0, 1024, (length, 8), generator=generator).to(device) for length in lengths]


def milliseconds(run: Callable[[], object], device: torch.device, repeats: int) -> dict[str, float]:
    """Median of the device's time, and of the host's until it has queued all; the first run does not count.

    `first_ms` is that of the run before: with kernels to choose and to compile, on a cold machine.
    """
    spent, queued = [], []
    for _ in range(repeats + 1):
        if device.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            begin.record()
        start = time.perf_counter()
        run()
        queued.append((time.perf_counter() - start) * 1e3)
        if device.type == "cuda":
            end.record()
            torch.cuda.synchronize()
            spent.append(begin.elapsed_time(end))
        else:
            spent.append(queued[-1])
    return {
        "median_ms": round(statistics.median(spent[1:]), 2),
        "min_ms": round(min(spent[1:]), 2),
        "queued_ms": round(statistics.median(queued[1:]), 2),
        "first_ms": round(spent[0], 1),
    }


def relative_error(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """The worst row's."""
    errors = [float((a.double() - b.double()).norm() / b.double().norm()) for a, b in zip(found, wanted, strict=True)]
    return float(f"{max(errors):.1e}")


def by_the_layers(codec: Codec, rows: Sequence[Tensor], allow_tf32: bool) -> list[Tensor]:
    """transformers' decoder, one row at a time: how it was done before."""
    flags = {**EXACT, "deterministic": False, "allow_tf32": allow_tf32}
    with torch.inference_mode(), torch.backends.cudnn.flags(**flags):
        return [codec.network.decode(row.T[None])[0] for row in rows]


def decoding(codec: Codec, rows: Sequence[Tensor], repeats: int) -> dict[str, object]:
    """Every choice on one workload, each with its error against the exact float32 decode by the layers."""
    device = codec.device
    on_cuda = device.type == "cuda"
    wanted = by_the_layers(codec, rows, allow_tf32=False)
    results: dict[str, object] = {"rows": len(rows), "frames": sum(map(len, rows)), "longest": max(map(len, rows))}
    tf32_choices = (False, True) if on_cuda else (False,)
    for tf32 in tf32_choices:
        name = f"layers, one at a time{', tf32' if tf32 else ''}"
        results[name] = {
            **milliseconds(lambda tf32=tf32: by_the_layers(codec, rows, tf32), device, repeats),
            "error": relative_error(by_the_layers(codec, rows, tf32), wanted),
        }
        one = WaveformDecoder(codec.network, DecoderOptions(allow_tf32=tf32))
        results[f"one at a time{', tf32' if tf32 else ''}"] = milliseconds(
            lambda one=one: [one.decode([row]) for row in rows], device, repeats
        )
    choices = product(tf32_choices, (True, False) if on_cuda else (False,), (False, True), (False, True))
    for tf32, fused, channels_last, autotune in choices:
        if autotune and not on_cuda:
            continue
        options = DecoderOptions(tf32, fused, channels_last, autotune)
        results[", ".join(["batch", *_names(options)])] = batch(codec, rows, options, wanted, repeats)
    for limit in (512, 1024, 4096):
        options = DecoderOptions(max_pass_frames=limit, allow_tf32=on_cuda)
        results[f"batch, passes of {limit}{', tf32' if on_cuda else ''}"] = batch(codec, rows, options, wanted, repeats)
    return results


def batch(
    codec: Codec, rows: Sequence[Tensor], options: DecoderOptions, wanted: Sequence[Tensor], repeats: int
) -> dict[str, float]:
    """One choice: times, error and, on CUDA, the memory of a decode beyond the weights."""
    decoder = WaveformDecoder(codec.network, options)
    result = milliseconds(lambda: decoder.decode(rows), codec.device, repeats)
    result["error"] = relative_error(decoder.decode(rows), wanted)
    if codec.device.type == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        decoder.decode(rows)
        result["memory_mib"] = round((torch.cuda.max_memory_allocated() - before) / 2**20)
    return result


def padded(codec: Codec, rows: Sequence[Tensor], repeats: int) -> dict[str, object]:
    """The other way to batch: rows beside each other, all as long as the longest."""
    codes = torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=-1)
    results: dict[str, object] = {}
    for tf32, channels_last in product((False, True), (False, True)):
        options = DecoderOptions(allow_tf32=tf32, channels_last=channels_last)
        decoder = WaveformDecoder(codec.network, options)

        def run(decoder: WaveformDecoder = decoder) -> None:
            with torch.inference_mode():
                decoder.decode_frames(codes)

        results[", ".join(["padded", *_names(options)])] = milliseconds(run, codec.device, repeats)
    return results


def new_lengths(codec: Codec, tf32: bool) -> list[float]:
    """Milliseconds, waited for, of a row of a size that was not seen before, and of one that shares its bucket."""
    decoder = WaveformDecoder(codec.network, DecoderOptions(allow_tf32=tf32))
    times = []
    for length in (209, 210, 225, 226):
        row = random_rows([length], codec.device)
        torch.cuda.synchronize()
        start = time.perf_counter()
        decoder.decode(row)
        torch.cuda.synchronize()
        times.append(round((time.perf_counter() - start) * 1e3, 1))
    return times


def encoding(codec: Codec, clips: int, frames: int, repeats: int) -> dict[str, object]:
    generator = np.random.default_rng(0)
    waveforms = [(0.1 * generator.standard_normal(frames * HOP_LENGTH)).astype(np.float32) for _ in range(clips)]
    return {
        "clips": clips,
        "frames": frames,
        "one at a time": milliseconds(lambda: [codec.encode(one) for one in waveforms], codec.device, repeats),
        "batch": milliseconds(lambda: codec.encode_batch(waveforms), codec.device, repeats),
        "codes differ": sum(
            int((alone != together).sum())
            for alone, together in zip(map(codec.encode, waveforms), codec.encode_batch(waveforms), strict=True)
        ),
    }


def _names(options: DecoderOptions) -> list[str]:
    chosen = asdict(options)
    names = {"allow_tf32": "tf32", "fused": "fused", "channels_last": "channels last", "autotune": "autotuned"}
    return [name for key, name in names.items() if chosen[key]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--repeats", type=int, default=10)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    on_cuda = device.type == "cuda"
    results: dict[str, object] = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "device": torch.cuda.get_device_name() if on_cuda else "cpu",
        "torch": torch.__version__,
        "what": f"codec, float32, random weights of the {'published' if on_cuda else 'golden'} size, ms",
    }
    with tempfile.TemporaryDirectory() as scratch:
        if on_cuda:
            write_published_codec(Path(scratch))
        codec = Codec.from_folder(Path(scratch) if on_cuda else SMALL_CHECKPOINT, device)
    workloads = {"32 x 4.16 s": EQUAL, "32 of 1 to 15 s": mixed_lengths()} if on_cuda else {"small": SMALL}
    for name, lengths in workloads.items():
        results[name] = decoding(codec, random_rows(lengths, device), arguments.repeats)
    if on_cuda:
        results["32 x 4.16 s, padded"] = padded(codec, random_rows(EQUAL, device), arguments.repeats)
        results["209, 210, 225, 226 frames for the first time"] = new_lengths(codec, tf32=False)
        results["the same in tf32"] = new_lengths(codec, tf32=True)
    results["encoding"] = encoding(codec, *((8, 150) if on_cuda else (2, 10)), arguments.repeats)
    arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
