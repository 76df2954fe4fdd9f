"""The Triton kernels against torch, through Triton's interpreter: float32, on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKS = Path(__file__).parent / "interpreted"


@pytest.mark.parametrize("checks", ["check_kernels.py", "check_step.py", "check_fp8.py"])
def test_in_the_interpreter(checks: str) -> None:
    """In a process of its own: whether Triton interprets or compiles is settled when it is imported."""
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "--noconftest",
            "-p",
            "no:cacheprovider",
            "-W",
            "ignore",
            CHECKS / checks,
        ],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(CHECKS)},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
