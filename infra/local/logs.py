"""The log file of a service, which outlives its processes: each of them writes behind what the last one left."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MAX_BYTES = 16 * 2**20


@dataclass(slots=True)
class Log:
    """A log file and where in it, in bytes, the present process's part begins."""

    path: Path
    begin: int = 0

    def begin_here(self) -> None:
        """What is written from now on is the present process's part. A log that has grown long is put aside first, in
        place of the one that was put aside before."""
        if self.path.exists() and self.path.stat().st_size > MAX_BYTES:
            self.path.replace(self.path.with_name(f"{self.path.name}.1"))
        self.begin = self.path.stat().st_size if self.path.exists() else 0

    def text(self) -> str:
        """The present process's part; empty while there is no file."""
        if not self.path.exists():
            return ""
        with self.path.open("rb") as file:
            file.seek(self.begin)
            return file.read().decode(errors="replace")
