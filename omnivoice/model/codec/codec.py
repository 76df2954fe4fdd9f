"""The codec as the engine uses it: NumPy in, NumPy out, on one device, in float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omnivoice.audio.resample import resample
from omnivoice.model.codec.decoder import DecoderOptions, WaveformDecoder
from omnivoice.parameters import CODEBOOK_SIZE, HOP_LENGTH, NUM_CODEBOOKS, SAMPLE_RATE
from omnivoice.request import Codes, Waveform

if TYPE_CHECKING:
    from omnivoice.model.codec.network import CodecNetwork

EXACT = {"enabled": True, "benchmark": False, "deterministic": True, "allow_tf32": False}
"""cuDNN's flags for encoding: a clip has the same codes every time."""

ON_CPU = DecoderOptions(tabled=False, channels_last=True, max_pass_frames=1)
"""Sums in the network's own order, a pass for each row, since a CPU gains nothing from shared ones, and channels last,
with which its convolutions take a third less time."""


class Codec:
    """Waveforms to codes and back. Any thread may call; decoding needs no turns, encoding on a GPU takes them."""

    def __init__(self, network: CodecNetwork, options: DecoderOptions | None = None) -> None:
        parameter = next(network.parameters())
        self.network = network
        self.device = parameter.device
        self.dtype = parameter.dtype
        self._decoder = WaveformDecoder(network, options or (ON_CPU if self.device.type == "cpu" else None))
        self._lock = Lock()

    @classmethod
    def from_folder(
        cls,
        folder: Path,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        fast_decode: bool = False,
    ) -> Codec:
        """Load `folder/audio_tokenizer`, where `folder` is the whole checkpoint's.

        `dtype` is float32, or float64 on the CPU. `fast_decode` gives up 3e-4 of relative error (-70 dB) for twice the
        speed of decoding on a GPU; encoding is exact either way. Raises `CheckpointError`, one line, where a file is
        missing or unreadable, or holds other tensors than its config says.
        """
        _check_dtype(torch.device(device), dtype)
        # Imported here because it brings in transformers, which takes seconds.
        from omnivoice.model.codec.loading import load_network  # noqa: PLC0415

        network = load_network(Path(folder) / "audio_tokenizer", torch.device(device), dtype)
        fast = DecoderOptions(allow_tf32=True, channels_last=True) if fast_decode else None
        return cls(network, fast)

    def decode(self, codes: Codes) -> Waveform:
        """Codes int64 (8, frames), each 0…1023 → float32 (frames · 960,). Raises `ValueError` for anything else."""
        return self.decode_batch([codes])[0]

    def decode_batch(self, codes: Sequence[Codes]) -> list[Waveform]:
        """What `decode` makes of each, in their order, at the speed of few large passes; lengths may differ.

        The waveforms share one buffer. Raises `ValueError` where one of them is no codes, before any is decoded.
        """
        for row in codes:
            _check_codes(row)
        if not codes:
            return []
        lengths = [row.shape[1] for row in codes]
        frames = self._upload(np.concatenate([row.T for row in codes]).astype(np.int64))
        waveforms = torch.cat(self.decode_tensors(torch.split(frames, lengths))).cpu().numpy()
        ends = np.cumsum([length * HOP_LENGTH for length in lengths[:-1]], dtype=np.int64)
        return np.split(waveforms, ends)

    def decode_tensors(self, codes: Sequence[Tensor], on_pass: Callable[[], None] = lambda: None) -> list[Tensor]:
        """Codes (frames, 8), int32 or int64, on the codec's device → float32 (frames · 960,) there.

        Runs on the current stream and never waits for the device, so it cannot check: a code outside 0…1023 is
        undefined behaviour. The waveforms are views of a buffer that those decoded in one pass share. `on_pass` is
        called after each pass: on a CPU that of a row, on a GPU it is only queued then.
        """
        return [waveform.float() for waveform in self._decoder.decode(codes, on_pass)]

    def encode(self, waveform: Waveform) -> Codes:
        """Float32 (frames · 960,) at 24 kHz → codes int64 (8, frames). Raises `ValueError` for anything else."""
        return self.encode_batch([waveform])[0]

    def encode_batch(self, waveforms: Sequence[Waveform]) -> list[Codes]:
        """What `encode` makes of each, in their order; a GPU is handed all of them before the first is waited for.

        They are not stacked. A code is the nearest of 1024 centres, and a stack, even of equal lengths, is computed by
        kernels that round differently, so that near ties would fall otherwise in company than alone; and one clip of
        some seconds keeps a GPU busy. Raises `ValueError` where one of them is no waveform, before any is encoded.
        """
        for waveform in waveforms:
            _check_waveform(waveform)
        semantic_rate = self.network.semantic_sample_rate
        codes = []
        for waveform in waveforms:
            semantic = self._upload(resample(waveform, SAMPLE_RATE, semantic_rate)).to(self.dtype)
            acoustic = self._upload(waveform.copy()).to(self.dtype)
            with self._exact():
                codes.append(self.network.encode(acoustic[None], semantic[None])[0])
        return [row.cpu().numpy() for row in codes]

    def _upload(self, array: NDArray[np.generic]) -> Tensor:
        """To the device, on the current stream, without waiting for what is queued there."""
        tensor = torch.from_numpy(array)
        if self.device.type != "cuda":
            return tensor.to(self.device)
        # Out of pinned memory: torch keeps it until the copy is done.
        return tensor.pin_memory().to(self.device, non_blocking=True)

    @contextmanager
    def _exact(self) -> Iterator[None]:
        """Without gradients and, on a GPU, without TF32, with which codes would differ from the published ones.

        The encoder's layers are transformers' own, and cuDNN's flag, the only way to tell them, is the process's. Two
        threads that change it and change it back would undo each other's work, hence the lock, held while work is
        queued and not while it runs. The decoder says what it wants with every call and needs neither.
        """
        if self.device.type != "cuda":
            with torch.inference_mode():
                yield
            return
        with self._lock, torch.inference_mode(), torch.backends.cudnn.flags(**EXACT):
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
