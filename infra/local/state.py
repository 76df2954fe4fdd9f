"""What is remembered between `up` and `down`: a folder with a JSON file, the services' data and their logs."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from infra.local.errors import LocalError
from infra.local.processes import ProcessId

STATE_FILE = "state.json"


@dataclass(frozen=True, slots=True)
class Record:
    """A service that was started. `settings` are digests of its command and of each setting, by which changes are seen:
    no value is kept here."""

    name: str
    process: ProcessId
    address: str
    note: str
    settings: dict[str, str]
    stop_seconds: float
    leftovers: tuple[str, ...]

    @property
    def is_running(self) -> bool:
        return self.process.is_running


@dataclass(slots=True)
class State:
    """The services started and not yet stopped, in the order of their start, and the ports chosen, which are kept."""

    folder: Path
    records: dict[str, Record] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path) -> State:
        """Empty where there is none yet. Raises `LocalError` on a damaged file."""
        path = folder / STATE_FILE
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            records = [_record(entry) for entry in stored["services"]]
            return cls(folder, {record.name: record for record in records}, dict(stored["ports"]))
        except FileNotFoundError:
            return cls(folder)
        except (ValueError, KeyError, TypeError):
            raise LocalError(f"{path} is damaged; stop what it tells of by hand and delete it") from None

    def save(self) -> None:
        """Replace the file in one step: a crash in between must not lose the ids of running processes."""
        path = self.folder / STATE_FILE
        stored = {"services": [asdict(record) for record in self.records.values()], "ports": self.ports}
        draft = path.with_suffix(".new")
        draft.write_text(json.dumps(stored, indent=2), encoding="utf-8")
        draft.replace(path)

    def log(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    def is_running(self, name: str) -> bool:
        return name in self.records and self.records[name].is_running


def _record(entry: dict[str, object]) -> Record:
    process, leftovers = entry.pop("process"), entry.pop("leftovers")
    if isinstance(entry["settings"], str):  # one digest of all, as earlier versions kept: all of them count as changed
        entry["settings"] = {}
    return Record(process=ProcessId(**process), leftovers=tuple(leftovers), **entry)  # type: ignore[arg-type]


@contextmanager
def locked(folder: Path) -> Iterator[State]:
    """The state in `folder`, for one command at a time. Raises `LocalError` while another one holds it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)  # data, logs and keys of this stack are the owner's alone
        (folder / "logs").mkdir(exist_ok=True)
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise LocalError(f"{folder} cannot be used: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield State.load(folder)
    except BlockingIOError:
        raise LocalError(f"another command is at work on {folder}; wait for it or end it") from None
    finally:
        os.close(descriptor)
