"""`python -m bench.load --quick`: every part does what it says, however fast the machine is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
PARTS = "submit,worker_uploading,latency,redis"
"""Without those that others are made of: the worker without uploads, memory."""

pytestmark = [pytest.mark.redis, pytest.mark.s3]


@pytest.mark.timeout(170)
def test_every_part_measures_jobs_that_end(tmp_path: Path, redis_url: str, s3: object) -> None:
    """The two servers are asked for only because the fixtures skip where their programs are missing."""
    out = tmp_path / "load.json"
    command = [sys.executable, "-m", "bench.load", "--quick", "--parts", PARTS, "--out", str(out)]
    run = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=160, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    results = json.loads(out.read_text())
    assert results["command"] == f"python -m bench.load --quick --parts {PARTS} --out OUT"
    assert results["submit"]["jobs_per_s"] > 0
    assert results["submit"]["open_loop"]["jobs"] > 0
    assert results["worker_uploading"]["jobs_per_s"] > 0
    assert results["latency"]["added"]["p50_ms"] > 0
    # These do not depend on the machine: a record lies in one piece, a message is small, and nothing of a job stays.
    assert results["redis"]["record_encoding"] in ("listpack", "ziplist")
    assert 500 < results["redis"]["bytes_message"] < 1_300
    assert 500 < results["redis"]["bytes_record"] < 1_100
    assert results["redis"]["keys_left"] <= 0
