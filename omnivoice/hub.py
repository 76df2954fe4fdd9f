"""Where a checkpoint comes from: a local folder, or the Hugging Face Hub, whose files can be checked by hash."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

from omnivoice.errors import CheckpointError
from omnivoice.location import local_folder

log = logging.getLogger(__name__)

LICENCE_NOTICE = (
    "The weights of k2-fsa/OmniVoice are CC-BY-NC (no commercial use); "
    "its audio tokenizer, Higgs Audio v2, has a community licence of its own."
)

PUBLISHED_SHA256 = {
    "model.safetensors": "730839316de585f4c8298ec0e1712efc10fb19c6fa4e36eb741cb8d51ebcf6aa",
    "audio_tokenizer/model.safetensors": "fe7c5e8785e0a05833e1bfc3e002ec7f55af21e306b2e7154a448c1f54ccfb0d",
    "tokenizer.json": "408f669b7e2b045fdf54201d815bd364e6667dbd845115da81239c40bc6dcfd1",
}
"""Of the published files; copies with zeroed rows have been shipped."""

_PATTERNS = ["config.json", "model.safetensors", "tokenizer*.json", "audio_tokenizer/*"]


def checkpoint_folder(path_or_hub_id: str | Path) -> Path:
    """Return the folder that holds a checkpoint, downloading `owner/name` from the Hub where no such folder exists.

    A local folder never needs the network. Raises `CheckpointError` where there is neither.
    """
    return local_folder(path_or_hub_id) or _download(str(path_or_hub_id))


def cached_folder(path_or_hub_id: str | Path) -> Path | None:
    """What `checkpoint_folder` returns, but without the network: None where it would have to download."""
    if (folder := local_folder(path_or_hub_id)) is not None:
        return folder
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - heavy
    from huggingface_hub.errors import LocalEntryNotFoundError  # noqa: PLC0415

    try:
        return Path(snapshot_download(str(path_or_hub_id), allow_patterns=_PATTERNS, local_files_only=True))
    except (LocalEntryNotFoundError, ValueError):
        return None


def _download(repository: str) -> Path:
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - heavy, and only for downloads
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError  # noqa: PLC0415

    log.warning("loading %s from the Hugging Face Hub (its cache, or a download with progress)", repository)
    log.warning(LICENCE_NOTICE)
    try:
        return Path(snapshot_download(repository, allow_patterns=_PATTERNS))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(f"{repository}: cannot be downloaded ({reason})") from None


def verify(folder: Path) -> list[str]:
    """Compare a folder with the published files; return a line a difference, none where all are equal."""
    differences = []
    for name, expected in PUBLISHED_SHA256.items():
        path = folder / name
        if not path.is_file():
            differences.append(f"{path}: no such file")
        elif (found := file_sha256(path)) != expected:
            differences.append(f"{path}: SHA-256 is {found}, the published file's is {expected}")
    return differences


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
