"""Where a checkpoint is meant to be: a name tells a local folder from a Hub id, without the Hub's packages."""

from __future__ import annotations

from pathlib import Path

from omnivoice.errors import CheckpointError


def local_folder(path_or_hub_id: str | Path) -> Path | None:
    """The folder of that name; None for a Hub id, `owner/name`. Raises `CheckpointError` where it is neither."""
    folder = Path(path_or_hub_id)
    if folder.is_dir():
        return folder
    name = str(path_or_hub_id)
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise CheckpointError(f"{name}: no such folder, and not a Hub id (owner/name)")
    return None
