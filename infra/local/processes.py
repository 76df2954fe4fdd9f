"""Starting a process in the background, knowing it again later, and ending exactly that one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from infra.local.errors import LocalError

POLL_SECONDS = 0.05
KILL_SECONDS = 10.0
"""How long the kernel may take to remove a process after SIGKILL."""


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process, told apart from a later one that got the same number.

    `started` is the boot's id and the kernel's start time in clock ticks since that boot.
    """

    pid: int
    started: str

    @property
    def is_running(self) -> bool:
        return _start_time(self.pid) == self.started

    @property
    def is_stopped(self) -> bool:
        """Whether it is there, but was told to stand still (SIGSTOP)."""
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it may end meanwhile
            return self.is_running and _fields(self.pid)[0] in "Tt"
        return False


def launch(command: Sequence[str], environment: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start `command` in a session of its own, so that a Ctrl-C in the terminal reaches us alone; output is
    appended to `log`, where the reason for an earlier process's end may still be looked for.

    Raises `LocalError` when the program cannot be started.
    """
    with log.open("ab") as output:
        try:
            return subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise LocalError(f"{command[0]} cannot be started: {error.strerror}") from None


def identify(pid: int) -> ProcessId:
    """The identity of a child that has not been waited for (one that has ended already gets an empty start time)."""
    return ProcessId(pid, _start_time(pid) or "")


def stop(process: ProcessId, grace_seconds: float) -> None:
    """End the process and its group: SIGTERM, then SIGKILL once `grace_seconds` have passed (0: at once).

    Nothing happens where it no longer runs. Raises `LocalError` when even SIGKILL does not end it.
    """
    if not process.is_running:
        return
    if grace_seconds > 0:
        os.kill(process.pid, signal.SIGTERM)
        _wait_until_gone(process, grace_seconds)
    # Also after a clean end: what it left of its group (it leads one of its own) must not outlive it.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    if not _wait_until_gone(process, KILL_SECONDS):
        raise LocalError(f"process {process.pid} still runs {KILL_SECONDS:.0f} s after SIGKILL")


def _wait_until_gone(process: ProcessId, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while process.is_running:
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def _start_time(pid: int) -> str | None:
    """None for a process that has ended, also one that its parent has not waited for yet."""
    try:
        fields = _fields(pid)
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (FileNotFoundError, ProcessLookupError):
        if not Path("/proc/self/stat").exists():
            raise LocalError("the local stack needs Linux: there is no /proc here") from None
        return None
    state, start_ticks = fields[0], fields[19]
    return None if state in "ZX" else f"{boot}:{start_ticks}"


def _fields(pid: int) -> list[str]:
    """State, parent, and so on, of proc(5), from behind the last parenthesis: a program's name may hold blanks."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
