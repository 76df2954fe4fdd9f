"""The commands; `python -m bench.accuracy --help` tells them."""

from __future__ import annotations

import argparse
from pathlib import Path

import bench.accuracy
from bench.accuracy.generate import generate
from bench.accuracy.realtime import realtime
from bench.accuracy.reference import compare
from bench.accuracy.texts import SENTENCES
from omnivoice import SamplingParams

NUM_STEP = SamplingParams().num_step


def listen(arguments: argparse.Namespace) -> None:
    from bench.accuracy.listen import listen as listen_to  # noqa: PLC0415 - needs the development packages

    listen_to(arguments)


def speak(arguments: argparse.Namespace) -> None:
    generate(arguments)
    if arguments.listen:
        arguments.folder, arguments.rows = arguments.out, ""
        listen(arguments)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=bench.accuracy.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    speaking = commands.add_parser("generate", help="speak the texts in every row of the table and compare the codes")
    speaking.add_argument("--out", type=Path, required=True, help="folder for figures and codes")
    speaking.add_argument("--listen", action="store_true", help="listen as well, where the development packages are")
    speaking.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    speaking.add_argument("--rows", default="", help="comma-separated patterns, such as *digits,fp8*; default all")
    speaking.add_argument("--reference", type=Path, help="folder with the reference package's wheel, for its row")
    speaking.add_argument("--rate", type=float, default=1.0, help="requests a second of the row in step mode")
    speaking.add_argument("--rate-sentences", type=int, default=30, help="sentences of that row")
    comparing = commands.add_parser("compare", help="the engine's codes beside the reference package's, in float64")
    comparing.add_argument("--reference", type=Path, required=True, help="folder with the reference package's wheel")
    timing = commands.add_parser("realtime", help="the real-time factor of a CPU, alone and in batches of 8")
    timing.add_argument("--threads", type=int, default=2)
    timing.add_argument("--repeats", type=int, default=3)
    listening = commands.add_parser("listen", help="word error rates of what `generate` left")
    listening.add_argument("folder", type=Path)
    listening.add_argument("--rows", default="", help="comma-separated patterns; default all")
    for command, sentences in ((speaking, len(SENTENCES)), (comparing, 12), (timing, 16)):
        command.add_argument(
            "--sentences", type=int, default=sentences, help="how many; longer texts are as many fewer"
        )
        command.add_argument("--num-step", type=int, default=NUM_STEP)
    for command, function in ((speaking, speak), (comparing, compare), (timing, realtime), (listening, listen)):
        command.add_argument("--checkpoint", type=Path, required=True)
        command.set_defaults(command=function)
    arguments = parser.parse_args()
    for name in ("sentences", "rate_sentences", "num_step", "threads", "repeats"):
        if getattr(arguments, name, 1) < 1:
            parser.error(f"--{name.replace('_', '-')}: at least 1")
    if getattr(arguments, "rate", 1.0) <= 0:
        parser.error("--rate: more than 0")
    return arguments


if __name__ == "__main__":
    given = parse()
    given.command(given)
