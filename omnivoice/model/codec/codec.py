"""The codec as the engine uses it: NumPy in, NumPy out, on one device, in float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omnivoice.audio.resample import resample
from omnivoice.parameters import CODEBOOK_SIZE, HOP_LENGTH, NUM_CODEBOOKS, SAMPLE_RATE
from omnivoice.request import Codes, Waveform

if TYPE_CHECKING:
    from omnivoice.model.codec.network import CodecNetwork


class Codec:
    """Waveforms to codes and back. Both calls may come from several threads; on a GPU they take turns."""

    def __init__(self, network: CodecNetwork) -> None:
        parameter = next(network.parameters())
        self.network = network
        self.device = parameter.device
        self.dtype = parameter.dtype
        self._lock = Lock()

    @classmethod
    def from_folder(cls, folder: Path, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> Codec:
        """Load `folder/audio_tokenizer`, where `folder` is the whole checkpoint's.

        `dtype` is float32, or float64 on the CPU. Raises `CheckpointError`, one line, where a file is missing or
        unreadable, or holds other tensors than its config says.
        """
        _check_dtype(torch.device(device), dtype)
        # Imported here because it brings in transformers, which takes seconds.
        from omnivoice.model.codec.loading import load_network  # noqa: PLC0415

        return cls(load_network(Path(folder) / "audio_tokenizer", torch.device(device), dtype))

    def decode(self, codes: Codes) -> Waveform:
        """Codes int64 (8, frames), each 0…1023 → float32 (frames · 960,). Raises `ValueError` for anything else."""
        _check_codes(codes)
        with self._exact():
            waveform = self.network.decode(torch.from_numpy(codes.astype(np.int64))[None].to(self.device))
        return waveform[0].to("cpu", torch.float32).numpy()

    def encode(self, waveform: Waveform) -> Codes:
        """Float32 (frames · 960,) at 24 kHz → codes int64 (8, frames). Raises `ValueError` for anything else."""
        _check_waveform(waveform)
        semantic_waveform = resample(waveform, SAMPLE_RATE, self.network.semantic_sample_rate)
        with self._exact():
            codes = self.network.encode(self._batch_of_one(waveform), self._batch_of_one(semantic_waveform))
        return codes[0].cpu().numpy()

    def _batch_of_one(self, waveform: Waveform) -> Tensor:
        return torch.from_numpy(waveform.copy())[None].to(self.device, self.dtype)

    @contextmanager
    def _exact(self) -> Iterator[None]:
        """Without gradients and, on a GPU, without TF32.

        cuDNN's convolutions use TF32 unless told otherwise: decoded audio would be off by 3e-4, and codes would
        differ from the published ones. The flag is the process's, hence the lock around changing it back.
        """
        if self.device.type != "cuda":
            with torch.inference_mode():
                yield
            return
        with self._lock, torch.inference_mode(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            yield


def _check_dtype(device: torch.device, dtype: torch.dtype) -> None:
    if dtype == torch.float32 or (dtype == torch.float64 and device.type == "cpu"):
        return
    # float16 overflows inside the decoder.
    raise ValueError(f"the codec runs in float32, or in float64 on the CPU, not in {dtype} on {device}")


def _check_codes(codes: NDArray[np.int64]) -> None:
    if codes.ndim != 2 or codes.shape[0] != NUM_CODEBOOKS or codes.shape[1] < 1:
        raise ValueError(f"codes must have shape ({NUM_CODEBOOKS}, frames), not {codes.shape}")
    if not np.issubdtype(codes.dtype, np.integer):
        raise ValueError(f"codes must be whole numbers, not {codes.dtype}")
    low, high = int(codes.min()), int(codes.max())
    if low < 0 or high >= CODEBOOK_SIZE:
        raise ValueError(f"codes must be from 0 to {CODEBOOK_SIZE - 1}, not {low if low < 0 else high}")


def _check_waveform(waveform: Waveform) -> None:
    if waveform.ndim != 1 or len(waveform) == 0 or len(waveform) % HOP_LENGTH:
        raise ValueError(f"a waveform must have shape (frames * {HOP_LENGTH},), not {waveform.shape}")
    if not np.issubdtype(waveform.dtype, np.floating):
        raise ValueError(f"a waveform must hold floats, not {waveform.dtype}")
    if not np.isfinite(waveform).all():
        raise ValueError("a waveform must be finite")
