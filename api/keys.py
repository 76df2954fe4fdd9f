"""API keys: who may call. The file holds names and SHA-256 hashes; a key itself is printed once and kept nowhere."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker.jobs.errors import StartupError

KEYS_VARIABLE = "OMNIVOICE_API_KEYS_FILE"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One entry of the keys file: `name` owns the jobs made with the key, `sha256` is the key's hash, hexadecimal."""

    name: str
    sha256: str

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and _NAME.fullmatch(self.name)):
            raise ValueError("name: must be 1 to 64 letters, digits, '.', '_' or '-', beginning with a letter or digit")
        if not (isinstance(self.sha256, str) and _SHA256.fullmatch(self.sha256)):
            raise ValueError("sha256: must be 64 lower-case hexadecimal digits")


@dataclass(frozen=True, slots=True)
class KeyRing:
    """The keys of one service; without any, `is_open` is true and nobody is asked for one."""

    keys: tuple[ApiKey, ...] = ()

    @property
    def is_open(self) -> bool:
        return not self.keys

    def owner_of(self, token: str) -> str | None:
        """Name of the key `token`, or None. Every key is compared, each in constant time: the answer's time tells
        neither which key nearly matched nor how many there are before it."""
        digest = hashlib.sha256(token.encode()).hexdigest()
        owner = None
        for key in self.keys:
            if hmac.compare_digest(key.sha256, digest):
                owner = key.name
        return owner


def new_key(name: str) -> tuple[str, ApiKey]:
    """A fresh key of 256 random bits and its entry. A fast hash is enough for a secret that nobody can guess.

    Raises `ValueError` for a name that is not allowed.
    """
    token = f"ov_{secrets.token_urlsafe(32)}"
    return token, ApiKey(name, hashlib.sha256(token.encode()).hexdigest())


def load_keys(path: str | None) -> KeyRing:
    """Read the keys file, JSON or (by its name's end) TOML: `{"keys": [{"name": …, "sha256": …}, …]}`.

    None gives an open ring. Raises `StartupError` for a file that cannot be read, holds no key (an emptied file must
    not open the service), an unknown field or a name twice.
    """
    if path is None:
        return KeyRing()
    entries = _entries(Path(path))
    keys: list[ApiKey] = []
    for number, entry in enumerate(entries, start=1):
        try:
            keys.append(_key(entry))
        except ValueError as error:
            raise StartupError(f"{KEYS_VARIABLE}: {path}: key {number}: {error}") from None
    if not keys:
        raise StartupError(f"{KEYS_VARIABLE}: {path} holds no key; `python -m api new-key NAME` makes one")
    names = [key.name for key in keys]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise StartupError(f"{KEYS_VARIABLE}: {path}: names are given twice: {', '.join(twice)}")
    return KeyRing(tuple(keys))


def _entries(path: Path) -> list[Any]:
    try:
        text = path.read_text(encoding="utf-8")
        content: Any = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except OSError as error:
        raise StartupError(f"{KEYS_VARIABLE}: {path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # json, tomllib and utf-8 decoding all raise a subclass of it
        raise StartupError(f"{KEYS_VARIABLE}: {path} cannot be parsed: {error}") from None
    entries = content.get("keys") if isinstance(content, dict) and set(content) == {"keys"} else content
    if not isinstance(entries, list):
        raise StartupError(f'{KEYS_VARIABLE}: {path} must be {{"keys": [{{"name": …, "sha256": …}}, …]}}')
    return entries


def _key(entry: Any) -> ApiKey:
    if not isinstance(entry, dict) or set(entry) != {"name", "sha256"}:
        raise ValueError("must have the fields name and sha256 and no other")
    return ApiKey(entry["name"], entry["sha256"])
