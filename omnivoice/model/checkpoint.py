"""Strict reading of checkpoint files: what a folder must hold, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from omnivoice.errors import CheckpointError

FLOAT_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in `path`; raise `CheckpointError` naming the file where there is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON ({error})") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: must hold a JSON object")
    return content


def load_tensors(path: Path, expected: Mapping[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    """Read every tensor of a safetensors file, on the CPU in the file's own dtype.

    `expected` maps each name that the file must hold to its shape. Any tensor missing, extra, misshapen or of a dtype
    that is neither a float (F32, F16, BF16) nor I64 raises `CheckpointError`, which names it.
    """
    with _opened(path, expected) as file:
        return {name: _checked(path, name, file.get_tensor(name)) for name in expected}


def check_tensors(path: Path, expected: Mapping[str, tuple[int, ...]]) -> None:
    """Raise `CheckpointError` as `load_tensors` would for names, shapes and a file that was cut; reads no tensor."""
    with _opened(path, expected):
        pass


@contextmanager
def _opened(path: Path, expected: Mapping[str, tuple[int, ...]]) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - not a dict
            _check_names(path, expected, found)
            yield file
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file") from None
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot be read as safetensors ({error})") from None


def _check_names(path: Path, expected: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]]) -> None:
    if missing := expected.keys() - found.keys():
        raise CheckpointError(f"{path}: {_count(missing)} missing: {_first(missing)}")
    if extra := found.keys() - expected.keys():
        raise CheckpointError(f"{path}: {_count(extra)} too many: {_first(extra)}")
    for name, shape in expected.items():
        if found[name] != tuple(shape):
            raise CheckpointError(f"{path}: {name} has shape {list(found[name])}, the config says {list(shape)}")


def _checked(path: Path, name: str, tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype not in FLOAT_DTYPES and tensor.dtype != torch.int64:
        raise CheckpointError(f"{path}: {name} is {tensor.dtype}; F32, F16, BF16 and (for offsets) I64 are read")
    return tensor


def _count(names: Iterable[str]) -> str:
    number = len(list(names))
    return "1 tensor" if number == 1 else f"{number} tensors"


def _first(names: Iterable[str], limit: int = 5) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:limit]) + (", …" if len(ordered) > limit else "")
