"""What every result file says of how it came about, and how it is written."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.command import shown_command


def today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def circumstances(module: str, device: str) -> dict[str, str]:
    """Date, command, device and torch of a benchmark that computes on `device`: "cuda" or "cpu"."""
    import torch  # noqa: PLC0415 - not where only the queue is measured

    name = "CPU" if device == "cpu" else torch.cuda.get_device_name()
    return {"date": today(), "command": shown_command(module), "device": name, "torch": torch.__version__}


def write(path: Path, results: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
