"""How far apart two sounds are, for the codec to learn from."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from omnivoice.parameters import SAMPLE_RATE

FFT_SIZES = (2048, 1024, 512, 256, 128, 64)
MEL_BANDS = (160, 80, 40, 20, 12, 8)
STFT_WEIGHT = 0.3
FLOOR, FLOOR_ABOVE = 5e-5, 2e-3
"""Amplitudes under which a difference hardly counts. Quiet consonants are above the first (at four times as much, a
teacher whose quieter bins were set to zero had 12.9% of words wrong instead of 10.8%). The second is for what is above
`TOP_HERTZ`, where the teachers say nothing: to be quiet is enough there; to be silent took most of the gradient."""
TOP_HERTZ = 8_000


class SpectralLoss(nn.Module):
    """Distance of two waveforms (batch, samples): log-mel at six scales, and log magnitudes of the spectrum."""

    def __init__(self) -> None:
        super().__init__()
        for size, bands in zip(FFT_SIZES, MEL_BANDS, strict=True):
            mel = mel_filters(size, bands)
            floor = torch.where(torch.linspace(0, SAMPLE_RATE / 2, size // 2 + 1) > TOP_HERTZ, FLOOR_ABOVE, FLOOR)
            self.register_buffer(f"mel{size}", mel)
            self.register_buffer(f"floor{size}", floor[:, None])
            self.register_buffer(f"window{size}", torch.hann_window(size))

    def forward(self, found: Tensor, wanted: Tensor) -> Tensor:
        loss = found.new_zeros(())
        for size in FFT_SIZES:
            ours = self._log_bands(found, size)
            with torch.no_grad():
                theirs = self._log_bands(wanted, size)
            for mine, other, weight in zip(ours, theirs, (1.0, STFT_WEIGHT), strict=True):
                loss = loss + weight * F.l1_loss(mine, other) / len(FFT_SIZES)
        return loss

    def _log_bands(self, waveform: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Log-mel and log magnitudes of (batch, samples) at one scale, each (batch, bands or bins, frames)."""
        window, mel, floor = (self.get_buffer(f"{name}{size}") for name in ("window", "mel", "floor"))
        bins = torch.stft(waveform, size, size // 4, window=window, return_complex=True, pad_mode="constant")
        above = (bins.real.square() + bins.imag.square() + 1e-12).sqrt() * (4 / size) + floor
        return (mel @ above).log(), above.log()


def mel_filters(size: int, bands: int) -> Tensor:
    """Triangles (bands, size / 2 + 1), evenly spaced on the mel scale, each of sum 1 (a narrow one: one bin)."""
    top = 2595 * math.log10(1 + SAMPLE_RATE / 2 / 700)
    edges = 700 * (10 ** (torch.linspace(0, top, bands + 2) / 2595) - 1)
    bins = torch.linspace(0, SAMPLE_RATE / 2, size // 2 + 1)
    filters = []
    for low, high, end in zip(edges, edges[1:], edges[2:], strict=False):
        rise, fall = (bins - low) / (high - low), (end - bins) / (end - high)
        triangle = torch.minimum(rise, fall).clamp_min(0)
        if triangle.sum() == 0:
            triangle[(bins - high).abs().argmin()] = 1
        filters.append(triangle / triangle.sum())
    return torch.stack(filters)
