"""The benchmark's end of the pipe: unpack a peer's wheels, start its process, send it work."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.peers.protocol import Work


class PeerFailed(Exception):
    """A peer could not do a piece of work, or its process has ended; the message is one line."""


@dataclass(frozen=True, slots=True)
class PeerSpec:
    """A package as it is run: its wheels by name, those that may be missing last, and its dtype.

    On a CPU float64 stays float64, and everything else is float32.
    """

    name: str
    package: str
    dtype: str
    wheels: tuple[str, ...]
    optional_wheels: tuple[str, ...] = ()


VLLM_OMNI = {"package": "vllm-omni", "wheels": ("vllm_omni-0.30.0",), "optional_wheels": ("fa3_fwd-0.0.3",)}

PEERS = (
    PeerSpec("omnivoice fp16", "omnivoice", "float16", ("omnivoice-0.2.1",)),
    PeerSpec("vllm-omni bf16", dtype="bfloat16", **VLLM_OMNI),  # type: ignore[arg-type]
    PeerSpec("vllm-omni fp32", dtype="float32", **VLLM_OMNI),  # type: ignore[arg-type]
)
"""Each as it deploys (the reference in fp16, vllm-omni in fp32), and vllm-omni in bf16, where it is fastest."""


def unpack_wheels(spec: PeerSpec, wheels: Path, scratch: Path) -> Path:
    """Unpack a peer's wheels from the folder `wheels` into one of its own in `scratch`, and return that.

    Raises `PeerFailed` where one is missing that cannot be done without.
    """
    site = scratch / spec.package
    if site.exists():
        return site
    found: list[Path] = []
    for name in spec.wheels + spec.optional_wheels:
        matches = sorted(wheels.glob(f"{name}-*.whl"))
        if not matches and name in spec.wheels:
            raise PeerFailed(f"{wheels}: no wheel {name}-*.whl")
        found += matches[:1]
    for wheel in found:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
    return site


class PeerProcess:
    """A peer in a process of its own. It starts loading at once; `wait` until it is ready, then `run` work."""

    def __init__(self, spec: PeerSpec, site: Path, checkpoint: Path, device: str) -> None:
        self.name = spec.name
        self.info: dict[str, Any] = {}
        dtype = spec.dtype if device != "cpu" or spec.dtype == "float64" else "float32"
        command = [sys.executable, "-m", "bench.peers.worker", "--peer", spec.package, "--dtype", dtype]
        command += ["--site", str(site), "--checkpoint", str(checkpoint), "--device", device]
        root = Path(__file__).parents[2]
        self._process = subprocess.Popen(
            command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )

    def wait(self) -> None:
        """Raises `PeerFailed` if the package cannot be loaded; its own words are on stderr."""
        self.info = self._read()

    def run(self, work: Work, untimed: int = 0) -> float:
        """Seconds of one generation of `work`, after `untimed` others."""
        return float(self._ask(work, wants_codes=False, untimed=untimed)["seconds"])

    def codes(self, work: Work) -> list[list[list[int]]]:
        """The codes of every text, [8][frames]."""
        codes: list[list[list[int]]] = self._ask(work, wants_codes=True, untimed=0)["codes"]
        return codes

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ask(self, work: Work, *, wants_codes: bool, untimed: int) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(work.to_line(wants_codes=wants_codes, untimed=untimed) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise PeerFailed(f"{self.name}: its process has ended") from None
        reply = self._read()
        shapes = [tuple(shape) for shape in reply["shapes"]]
        if work.frames is not None and shapes != [(8, work.frames)]:
            raise PeerFailed(f"{self.name}: codes of shapes {shapes}, not (8, {work.frames})")
        return reply

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise PeerFailed(f"{self.name}: its process has ended (status {self._process.wait()}), see above")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise PeerFailed(f"{self.name}: {reply['error']}")
        return reply
