"""The reference package beside the engine: what it says with its own defaults, and the codes of both in float64."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from bench.accuracy.agreement import Pieces, agreement
from bench.accuracy.rows import BATCH
from bench.accuracy.texts import SHORT, Utterance, instructs_of, utterances
from bench.peers.process import PeerProcess, PeerSpec, unpack_wheels
from bench.peers.protocol import Work
from omnivoice import Engine, EngineConfig, SamplingParams

COMPARED_BATCH = 4


@contextmanager
def running(dtype: str, arguments: argparse.Namespace) -> Iterator[PeerProcess]:
    """The package in a process of its own, ready. Raises `PeerFailed` where it cannot be loaded."""
    spec = PeerSpec(f"reference package {dtype}", "omnivoice", dtype, ("omnivoice-0.2.1",))
    with tempfile.TemporaryDirectory() as scratch:
        site = unpack_wheels(spec, arguments.reference, Path(scratch))
        peer = PeerProcess(spec, site, arguments.checkpoint.resolve(), arguments.device)
        try:
            peer.wait()
            print(f"{spec.name}: {peer.info}", flush=True)
            yield peer
        finally:
            peer.close()


def codes_of(
    peer: PeerProcess, texts: Sequence[Utterance], size: int, num_step: int, temperature: float
) -> dict[str, Pieces]:
    """The package's codes in batches of `size`, each text as long as it estimates itself."""
    found: dict[str, Pieces] = {}
    for first in range(0, len(texts), size):
        batch = texts[first : first + size]
        work = Work([one.text for one in batch], None, num_step, None, temperature, instructs=instructs_of(batch))
        for one, codes in zip(batch, peer.codes(work), strict=True):
            found[one.name] = [np.array(codes, dtype=np.int16)]
    return found


def speak(texts: Sequence[Utterance], arguments: argparse.Namespace) -> tuple[dict[str, Pieces], float]:
    """Codes with the package's default parameters in float32, eager, and the seconds that they took, without decoding.

    Its noise is torch's, one stream for a batch: the codes are no other's.
    """
    with running("float32", arguments) as peer:
        codes_of(peer, texts[:2], 2, 2, 5.0)  # warm
        started = time.perf_counter()
        found = codes_of(peer, texts, BATCH, arguments.num_step, SamplingParams().position_temperature)
        return found, time.perf_counter() - started


def compare(arguments: argparse.Namespace) -> None:
    """The command of that name: all temperatures 0, float64 on both sides, on the CPU, texts of the first kind."""
    arguments.device = "cpu"
    texts = utterances(SHORT, arguments.sentences)
    params = SamplingParams(num_step=arguments.num_step, position_temperature=0.0, class_temperature=0.0)
    with running("float64", arguments) as peer:
        theirs = codes_of(peer, texts, COMPARED_BATCH, arguments.num_step, 0.0)
    engine = Engine.from_checkpoint(arguments.checkpoint, EngineConfig(device="cpu", dtype="float64"))
    results = engine.generate_codes([one.request(params) for one in texts])
    ours = {one.name: [np.asarray(result.codes, dtype=np.int16)] for one, result in zip(texts, results, strict=True)}
    shares = agreement(ours, theirs)
    assert shares is not None
    frames = sum(pieces[0].shape[1] for pieces in theirs.values())
    print(f"{len(texts)} sentences, {frames} frames, {arguments.num_step} steps, float64, temperatures 0:", end=" ")
    print(f"{100 * shares['codes']:.4f} % of {8 * frames} codes equal,", end=" ")
    print(f"all codes of {round(shares['utterances'] * len(texts))} of {len(texts)} sentences")
