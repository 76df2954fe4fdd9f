"""Runs the checks of `interpreted/`: the Triton kernels against torch, through Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "interpreted"
CHECKS = ("check_kernels.py", "check_step.py", "check_fp8.py")
PATIENCE_SECONDS = 170


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[subprocess.Popen[bytes], Path]]]:
    """One process a file, since whether Triton interprets or compiles is settled when it is imported; all at once."""
    folder = tmp_path_factory.mktemp("interpreted")
    options = ["-q", "--noconftest", "-p", "no:cacheprovider", "-W", "ignore"]
    made = {}
    for checks in CHECKS:
        output = folder / f"{checks}.log"
        with output.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest", *options, FOLDER / checks],
                env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(FOLDER), "OMP_NUM_THREADS": "1"},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        made[checks] = process, output
    yield made
    for process, _ in made.values():
        process.kill()
        process.wait()


@pytest.mark.parametrize("checks", CHECKS)
def test_in_the_interpreter(runs: dict[str, tuple[subprocess.Popen[bytes], Path]], checks: str) -> None:
    process, output = runs[checks]
    status = process.wait(PATIENCE_SECONDS)
    assert status == 0, output.read_text()[-8000:]
