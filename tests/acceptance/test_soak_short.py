"""Half a minute of `python -m tests.soak`: faults of every target, nothing lost, and nothing left running."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import wait_until

CHECKOUT = Path(__file__).parents[2]
SECONDS = 150.0
"""Twice what it takes on two very busy cores."""
ARGUMENTS = ("--jobs", "160", "--seed", "78", "--rate", "8", "--seconds-per-fault", "2", "--lease-seconds", "2")
"""The seed's schedule kills workers at work before what takes long on slow cores: by then all jobs may be done."""

pytestmark = [pytest.mark.redis, pytest.mark.s3]


class Run:
    """`python -m tests.soak` with its logs and data in a folder of the test's."""

    def __init__(self, folder: Path) -> None:
        self.output = folder / "soak.log"
        self._mark = f"SOAK_TEST={folder}"
        environment = {**os.environ, "TMPDIR": str(folder), "SOAK_TEST": str(folder)}
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.soak", *ARGUMENTS],
                cwd=CHECKOUT,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def own_processes(self) -> list[int]:
        """What inherited our mark or runs in our folder (Redis writes its title over its environment)."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) not in (os.getpid(), self.process.pid):
                try:
                    told = (entry / "environ").read_bytes() + bytes((entry / "cwd").readlink())
                except OSError:
                    continue
                if self._mark.partition("=")[2].encode() in told:
                    found.append(int(entry.name))
        return found


@pytest.fixture
def run(tmp_path: Path, redis_url: str, s3: object) -> Iterator[Run]:
    """The two servers are asked for only because the fixtures skip where their programs are missing."""
    made = Run(tmp_path)
    yield made
    if made.process.poll() is None:
        made.process.send_signal(signal.SIGTERM)  # it ends what it started
        made.process.wait(60)


def test_short_soak_is_clean(run: Run, tmp_path: Path) -> None:
    try:
        status = run.process.wait(SECONDS)
    except subprocess.TimeoutExpired:
        pytest.fail(f"not over after {SECONDS} s:\n{run.text()[-3000:]}")
    assert status == 0, run.text()[-6000:]
    wait_until(lambda: not run.own_processes(), 5, "the end of what was killed")
    assert [path for path in tmp_path.iterdir() if path.name.startswith("soak-")] == [], "a clean run keeps nothing"
    # That it was a soak at all: every target was hit, jobs were run again, and the audio was listened to.
    text = run.text()
    faults = re.findall(r"^fault at .*: +[\d.]+ s  (\w+) ", text, re.MULTILINE)
    assert {"worker", "api", "redis", "s3"} <= set(faults), faults
    [accepted] = re.findall(r"^(\d+) jobs accepted", text, re.MULTILINE)
    assert accepted == "160"
    [heard] = re.findall(r"^audio +(\d+) objects heard", text, re.MULTILINE)
    assert int(heard) >= 100
    [again] = re.findall(r"leased more than once: (\d+)$", text, re.MULTILINE)
    assert int(again) >= 1


def test_interrupted_soak_leaves_no_process(run: Run) -> None:
    wait_until(lambda: "fault at" in run.text() or run.process.poll() is not None, 60, "the first fault")
    assert len(run.own_processes()) >= 5, run.text()
    run.process.send_signal(signal.SIGINT)
    assert run.process.wait(60) == 130, run.text()
    wait_until(lambda: not run.own_processes(), 5, "the end of what was killed")
