"""A peer's process: load one package from its own folder, then generate what comes in, a JSON line at a time.

python -m bench.peers.worker --peer omnivoice --site FOLDER --checkpoint FOLDER --dtype float16 --device cuda

The first line out says that it is ready and how it runs; each further line answers one line of work. Whatever the
package prints goes to stderr.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any, Protocol, TextIO

import torch

from bench.peers.protocol import Work

MODULES = {"omnivoice": "bench.peers.reference", "vllm-omni": "bench.peers.vllm_omni"}


class Peer(Protocol):
    """A loaded package. `info` says how it runs; `generate` returns codes on the device, (8, frames) a text."""

    info: dict[str, str]

    def generate(self, work: Work) -> list[torch.Tensor]: ...


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def answer(peer: Peer, work: Work, *, wants_codes: bool, untimed: int) -> dict[str, Any]:
    """Generate `untimed` + 1 times and report the seconds of the last, all device work included."""
    for _ in range(untimed):
        peer.generate(work)
    synchronize()
    start = time.perf_counter()
    codes = peer.generate(work)
    synchronize()
    seconds = time.perf_counter() - start
    reply: dict[str, Any] = {"seconds": seconds, "shapes": sorted({tuple(part.shape) for part in codes})}
    if wants_codes:
        reply["codes"] = [part.tolist() for part in codes]
    return reply


def serve(peer: Peer, lines: TextIO, out: TextIO) -> None:
    def say(reply: dict[str, Any]) -> None:
        out.write(json.dumps(reply) + "\n")
        out.flush()

    say({"ready": True, **peer.info, "torch": torch.__version__})
    for line in lines:
        message = json.loads(line)
        try:
            work = Work.from_message(message)
            say(answer(peer, work, wants_codes=message["wants_codes"], untimed=message["untimed"]))
        except Exception as error:  # noqa: BLE001  whatever a package raises, the benchmark carries on with the others
            traceback.print_exc()
            if isinstance(error, torch.cuda.OutOfMemoryError):
                torch.cuda.empty_cache()
            say({"error": f"{type(error).__name__}: {error}"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", choices=MODULES, required=True)
    parser.add_argument("--site", type=Path, required=True, help="folder that the peer's wheels are unpacked in")
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.path.insert(0, str(arguments.site.resolve()))  # before the working folder, whose `omnivoice` is ours
    device = torch.device("cuda:0" if arguments.device == "cuda" else arguments.device)
    peer: Peer = importlib.import_module(MODULES[arguments.peer]).load(
        arguments.site.resolve(), arguments.checkpoint, getattr(torch, arguments.dtype), device
    )
    serve(peer, sys.stdin, replies)


if __name__ == "__main__":
    main()
