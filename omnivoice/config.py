"""How an engine runs."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from omnivoice.scheduler import Mode

DTYPES = {"float64": torch.float64, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}

FP8_CAPABILITY = (8, 9)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How an engine runs.

    `mode` "request" runs a window of requests through all its steps before the next one starts; "step" lets requests
    join and leave between steps. `dtype` "auto" is bfloat16 on CUDA and float32 elsewhere; float64 is for the CPU.
    `max_batch_requests` bounds the chunks in a packed batch, `max_batch_tokens` its rows (a single chunk that is
    larger still runs, alone).

    On CUDA: `graphs` replays each step as a CUDA graph instead of op by op. `deterministic` multiplies with one tile
    whatever the batch's size, so that the codes of a seeded request are the same bit for bit in any batch and mode.
    `memory_gib` is what torch may hold on the device once graphs are captured: beyond it no more are, and steps that
    have none run op by op. `fp8` multiplies the layers' products in e4m3, a scale a row: faster for full batches, and
    less exact. It needs a GPU of compute capability 8.9, bfloat16 and `graphs`, and cannot be `deterministic`.
    """

    device: str = "auto"
    dtype: str = "auto"
    mode: Mode = "request"
    max_batch_requests: int = 32
    max_batch_tokens: int = 16_384
    graphs: bool = True
    deterministic: bool = False
    fp8: bool = False
    memory_gib: float | None = None

    def __post_init__(self) -> None:
        """Raises `ValueError`, one line, for values with which no engine could run."""
        if self.mode not in ("request", "step"):
            raise ValueError(f"mode: must be request or step, not {self.mode!r}")
        for name in ("max_batch_requests", "max_batch_tokens"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name}: must be a whole number from 1, not {value!r}")
        if self.memory_gib is not None and not (isinstance(self.memory_gib, int | float) and self.memory_gib > 0):
            raise ValueError(f"memory_gib: must be a positive number or None, not {self.memory_gib!r}")

    def resolved_device(self) -> torch.device:
        """Raises `ValueError`, one line, for a device that this machine or this build of torch has not got."""
        has_cuda = torch.cuda.is_available()
        if self.device == "auto":
            return torch.device("cuda" if has_cuda else "cpu")
        kind, _, index = self.device.partition(":")
        if kind not in ("cpu", "cuda") or not (index or "0").isdecimal():
            raise ValueError(f"device: must be auto, cpu, cuda or cuda:N, not {self.device!r}")
        if kind == "cuda" and not (has_cuda and int(index or 0) < torch.cuda.device_count()):
            raise ValueError(f"device: {self.device} is not there; this torch sees {torch.cuda.device_count()} GPUs")
        return torch.device(self.device)

    def resolved_dtype(self) -> torch.dtype:
        """Raises `ValueError`, one line, for a dtype that there is not, or not on the device; so for `fp8`."""
        device, name = self.resolved_device(), self.dtype
        if name == "auto":
            name = "bfloat16" if device.type == "cuda" else "float32"
        if name not in DTYPES:
            raise ValueError(f"dtype: must be auto or one of {', '.join(DTYPES)}, not {name!r}")
        if name == "float64" and device.type != "cpu":
            raise ValueError("dtype: float64 is for the CPU")
        if self.fp8:
            self._check_fp8(device, name)
        return DTYPES[name]

    def _check_fp8(self, device: torch.device, dtype: str) -> None:
        if device.type != "cuda":
            raise ValueError(f"fp8: needs CUDA, not {device}")
        if dtype != "bfloat16":
            raise ValueError(f"fp8: needs dtype bfloat16, not {dtype}")
        if not self.graphs:
            raise ValueError("fp8: needs graphs")
        if self.deterministic:
            raise ValueError("fp8: cannot be deterministic, how its products are cut depends on the batch's size")
        if (capability := torch.cuda.get_device_capability(device)) < FP8_CAPABILITY:
            needed, found = (".".join(map(str, version)) for version in (FP8_CAPABILITY, capability))
            raise ValueError(f"fp8: needs compute capability {needed}, {device} has {found}")
