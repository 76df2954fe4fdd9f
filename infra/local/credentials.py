"""The S3 server's one identity: made at random for this checkout, readable by its owner alone."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from infra.local.errors import LocalError

IDENTITY = "omnivoice"


@dataclass(frozen=True, slots=True)
class S3Keys:
    """An access key and its secret; the secret stays out of `repr` so that no log or traceback shows it."""

    access_key: str
    secret_key: str = field(repr=False)


def ensure_identities(path: Path) -> S3Keys:
    """Read the keys from SeaweedFS's identities file at `path`, or make both. Raises `LocalError` on a damaged file."""
    if not path.exists():
        _write(path, S3Keys(secrets.token_hex(10).upper(), secrets.token_urlsafe(30)))
    return read_identities(path)


def read_identities(path: Path) -> S3Keys:
    try:
        (identity,) = json.loads(path.read_text(encoding="utf-8"))["identities"]
        (keys,) = identity["credentials"]
        return S3Keys(keys["accessKey"], keys["secretKey"])
    except (ValueError, KeyError, TypeError):
        raise LocalError(f"{path} is damaged; stop the stack with `make down` and delete the file") from None


def _write(path: Path, keys: S3Keys) -> None:
    identity = {
        "name": IDENTITY,
        "credentials": [{"accessKey": keys.access_key, "secretKey": keys.secret_key}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    # Created with the mode, not changed to it: between the two anybody could open the file.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump({"identities": [identity]}, file, indent=2)
