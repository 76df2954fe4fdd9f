"""Do the peers run, and do they compute what the engine computes? One batch, temperatures zero, codes compared.

python -m bench.peers.check --peers WHEELS --size golden --device cpu

The reference and the engine follow one algorithm and agree where both compute in float32; vllm-omni puts a denoise
token in front of texts without a voice, and attends in bfloat16 in every dtype, so only its shapes have to agree.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from bench.peers.ours import OurEngine, checkpoint_of_size, make_work
from bench.peers.process import PEERS, PeerProcess, unpack_wheels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, required=True, help="folder with the peers' wheels")
    parser.add_argument("--size", choices=("golden", "medium", "published"), default="golden")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--num-step", type=int, default=8)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = checkpoint_of_size(arguments.size, Path(scratch))
        ours = OurEngine("fp32", folder, arguments.device, max_batch_requests=4)
        for spec in PEERS:
            peer = PeerProcess(spec, unpack_wheels(spec, arguments.peers, Path(scratch)), folder, arguments.device)
            peer.wait()
            print(spec.name, peer.info)
            for has_voice in (False, True):
                work = make_work(3, 2.0, has_voice, arguments.num_step, position_temperature=0.0)
                pairs = zip(ours.codes(work), peer.codes(work), strict=True)
                shares = [float(np.mean(np.array(mine) == np.array(theirs))) for mine, theirs in pairs]
                print(f"{spec.name}, {'with' if has_voice else 'no'} voice: share of codes equal to ours {shares}")
            peer.close()


if __name__ == "__main__":
    main()
