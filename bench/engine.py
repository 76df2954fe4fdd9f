"""The engine beside its peers and its floors, in one run: one table, one plot, one JSON file.

python -m bench.engine --peers WHEELS --out bench/results/engine-2026-11-30.json --quick

WHEELS is a folder that `pip download --no-deps omnivoice==0.2.1 vllm-omni==0.30.0 fa3-fwd==0.0.3 -d WHEELS` has filled.
Every contender gets the same texts, the same lengths and the same random weights, and is timed from texts to codes,
device work included, in turns: forwards, backwards, forwards, and so on.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import torch

from bench.floors import floors
from bench.peers.ours import MODES, OurEngine, RowCounter, checkpoint_of_size, make_work
from bench.peers.process import PEERS, PeerFailed, PeerProcess, unpack_wheels
from bench.peers.protocol import Work
from bench.plot import Block, Summary, draw, markdown, tables
from bench.record import circumstances, write
from bench.texts import SENTENCE_SECONDS
from omnivoice.model.config import ModelConfig

UNTIMED_BELOW_SECONDS = 0.3
"""Passes shorter than this come after an untimed one, so that the clocks are up: the same rule for every contender."""

CLOCK_FIELDS = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu", "clocks_event_reasons.active")
STARTED = time.perf_counter()


class Contender(Protocol):
    """Whoever can be timed on a piece of work. `run` returns seconds and raises `PeerFailed` if it cannot."""

    name: str

    def run(self, work: Work, untimed: int = 0) -> float: ...


def say(text: str) -> None:
    print(f"[{time.perf_counter() - STARTED:6.1f} s] {text}", flush=True)


def clocks() -> dict[str, str]:
    """What nvidia-smi says of the first GPU now; empty without one."""
    command = ["nvidia-smi", f"--query-gpu={','.join(CLOCK_FIELDS)}", "--format=csv,noheader", "-i", "0"]
    try:
        line = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(CLOCK_FIELDS, (part.strip() for part in line.split(",")), strict=False))


def measure(contenders: Sequence[Contender], work: Work, block: Block, repeats: int, max_pass: float) -> None:
    """Fill `block`. The first pass of each warms up (captures, compiles) and does not count.

    A contender slower than `max_pass` seconds is timed once; one that fails is noted and left out.
    """
    block.clocks_before = clocks()
    running = []
    for contender in contenders:
        first = attempt(contender, work, block)
        if first is not None:
            block.first_ms[contender.name] = first
            block.times_ms[contender.name] = []
            running.append(contender)
    for repeat in range(repeats):
        for contender in running if repeat % 2 == 0 else running[::-1]:
            times = block.times_ms[contender.name]
            if times and times[0] > max_pass * 1e3:
                continue
            last = times[-1] if times else block.first_ms[contender.name]
            taken = attempt(contender, work, block, untimed=int(last < UNTIMED_BELOW_SECONDS * 1e3))
            if taken is None:
                running = [other for other in running if other is not contender]
            else:
                times.append(taken)
    block.clocks_after = clocks()


def attempt(contender: Contender, work: Work, block: Block, untimed: int = 0) -> float | None:
    """Milliseconds of one pass, or None and a note: whoever fails leaves the others' figures alone."""
    try:
        return contender.run(work, untimed) * 1e3
    except PeerFailed as error:
        block.notes[contender.name] = str(error)
    except RuntimeError as error:  # of torch or Triton, in this process
        traceback.print_exc()
        block.notes[contender.name] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return None


def blocks_of(arguments: argparse.Namespace) -> Iterator[tuple[int, float, bool]]:
    """(batch, seconds, has a voice): all batches at a sentence's length, and all lengths at some batches."""
    for has_voice in arguments.voices:
        for batch in arguments.batches:
            yield batch, SENTENCE_SECONDS, has_voice
        for seconds in arguments.seconds:
            for batch in arguments.length_batches:
                yield batch, seconds, has_voice


def wav_table(engines: Sequence[OurEngine], arguments: argparse.Namespace) -> tuple[str, list[dict[str, Any]]]:
    """Text to finished WAV beside the generator alone, both saturated: several windows of the largest batch."""
    figures: list[dict[str, Any]] = []
    batch, windows, repeats = max(arguments.batches), arguments.wav_windows, arguments.repeats
    work = make_work(batch * windows, SENTENCE_SECONDS, False, arguments.num_step)
    for engine in engines:
        engine.to_wav(work)
        generated, finished = [], []
        for _ in range(repeats):
            generated.append(engine.run(work))
            finished.append(engine.to_wav(work))
        rates = [work.audio_seconds / Summary.of(times).median for times in (generated, finished)]
        figures.append(
            {"name": engine.name, "batch": batch, "windows": windows, "generated_s": generated, "finished_s": finished}
            | {"generator_audio_s_per_s": rates[0], "wav_audio_s_per_s": rates[1], "share": rates[1] / rates[0]}
        )
        say(f"{engine.name}: text to WAV {rates[1]:.1f} audio-s/s, {100 * rates[1] / rates[0]:.1f} % of the generator")
    rates_of = ("generator_audio_s_per_s", "wav_audio_s_per_s")
    rows = [
        [str(row["name"]), *(f"{row[key]:.1f}" for key in rates_of), f"{100 * row['share']:.1f} %"] for row in figures
    ]
    title = f"{windows} windows of {batch}, {SENTENCE_SECONDS:g} s each"
    return markdown([title, "generator, audio-s/s", "text to WAV, audio-s/s", "share"], rows), figures


def start_peers(arguments: argparse.Namespace, folder: Path, scratch: Path) -> list[PeerProcess]:
    """Start the peers' processes, all at once; they load while the engine does."""
    if arguments.peers is None:
        return []
    chosen = [spec for spec in PEERS if not arguments.only_peers or spec.name in arguments.only_peers]
    return [
        PeerProcess(spec, unpack_wheels(spec, arguments.peers, scratch), folder, arguments.device) for spec in chosen
    ]


def ready(peers: Sequence[PeerProcess]) -> list[PeerProcess]:
    """Wait for the peers; leave out, and name, those that did not come up."""
    up = []
    for peer in peers:
        try:
            peer.wait()
            up.append(peer)
            say(f"{peer.name}: {json.dumps(peer.info)}")
        except PeerFailed as error:
            say(f"NOT MEASURED: {error}")
    return up


def run(arguments: argparse.Namespace, scratch: Path, stack: contextlib.ExitStack) -> None:
    say(f"a random checkpoint, {arguments.size}")
    folder = checkpoint_of_size(arguments.size, scratch)
    peers = start_peers(arguments, folder, scratch)
    for peer in peers:
        stack.callback(peer.close)
    most = max(arguments.batches)
    engines = []
    for mode in arguments.modes:
        engines.append(OurEngine(mode, folder, arguments.device, most, arguments.max_batch_tokens))
        say(f"{engines[-1].name}: {json.dumps(engines[-1].info)}")
    count_rows = RowCounter(folder)
    config = ModelConfig.from_folder(folder)
    bases = [] if arguments.no_floors else floors(config, torch.device(arguments.device), count_rows)
    peers = ready(peers)
    contenders: list[Contender] = [*bases, *engines, *peers]
    results: dict[str, Any] = {
        **circumstances("bench.engine", arguments.device),
        "size": arguments.size,
        "contenders": {contender.name: getattr(contender, "info", {}) for contender in contenders},
    }
    blocks: list[Block] = []
    for batch, seconds, has_voice in dict.fromkeys(blocks_of(arguments)):
        work = make_work(batch, seconds, has_voice, arguments.num_step)
        block = Block(batch, seconds, work.frames, has_voice, count_rows(work), work.audio_seconds)
        measure(contenders, work, block, arguments.repeats, arguments.max_pass)
        blocks.append(block)
        medians = {name: round(Summary.of(times).median, 1) for name, times in block.times_ms.items() if times}
        voice = ", voice" if has_voice else ""
        say(f"B={batch}, {seconds:g} s{voice}, T={block.rows}: {medians} {block.notes or ''}")
        write(arguments.out, results | {"blocks": [asdict(block) for block in blocks]})
    table = ""
    if arguments.wav_windows and engines:
        table, results["wav"] = wav_table(engines, arguments)
    write(arguments.out, results | {"blocks": [asdict(block) for block in blocks]})
    try:
        draw(results, blocks, arguments.out.with_suffix(".png"))
    except ImportError:
        say("no plot: matplotlib is not here")
    print(f"\n{results['device']}, torch {results['torch']}, {results['date']}; {arguments.num_step} steps,", end=" ")
    print(f"{arguments.size} size with random weights; median (lowest–highest) of {arguments.repeats}", end="")
    print("; on a CPU all compute in float32, whatever they are called\n" if arguments.device == "cpu" else "\n")
    print(tables(blocks))
    print(f"\n{table}" if table else "")


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def lengths(text: str) -> list[float]:
    return [float(part) for part in text.split(",") if part]


def parse(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, help="folder with the peers' wheels; without it only engine and floors")
    parser.add_argument("--out", type=Path, required=True, help="JSON to write; the plot goes beside it")
    parser.add_argument("--quick", action="store_true", help="B = 1, 8, 32, one length, no voice")
    parser.add_argument("--batches", type=numbers, default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--seconds", type=lengths, default=[1.0, 2.0, 4.0, 8.0, 15.0])
    parser.add_argument("--length-batches", type=numbers, default=[1, 16], help="batches that the lengths are swept at")
    parser.add_argument("--voices", choices=("none", "only", "both"), default="both", help="6 s reference voices")
    parser.add_argument("--modes", default="bf16", help=f"comma-separated, of {', '.join(MODES)}")
    parser.add_argument("--only-peers", default="", help=f"comma-separated, of {', '.join(p.name for p in PEERS)}")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--num-step", type=int, default=32)
    parser.add_argument("--max-pass", type=float, default=6.0, help="seconds; slower contenders are timed once")
    parser.add_argument("--max-batch-tokens", type=int, help="the engine's own bound, if not its default")
    parser.add_argument("--wav-windows", type=int, default=8, help="windows of text to WAV; 0 leaves that out")
    parser.add_argument("--no-floors", action="store_true")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--size", choices=("published", "medium", "golden"), default="published")
    arguments = parser.parse_args(given)
    arguments.modes = [mode for mode in arguments.modes.split(",") if mode]
    if unknown := set(arguments.modes) - set(MODES):
        parser.error(f"--modes: {', '.join(sorted(unknown))} is not one of {', '.join(MODES)}")
    arguments.only_peers = [name for name in arguments.only_peers.split(",") if name]
    arguments.voices = {"none": [False], "only": [True], "both": [False, True]}[arguments.voices]
    if arguments.quick:
        arguments.batches, arguments.seconds, arguments.voices = [1, 8, 32], [], [False]
        arguments.wav_windows = min(arguments.wav_windows, 4)
    return arguments


def main() -> None:
    arguments = parse()
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        try:
            run(arguments, Path(scratch), stack)
        except PeerFailed as error:
            raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
