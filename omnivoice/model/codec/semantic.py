"""The convolutions behind HuBERT. transformers has them only in a module that needs torchaudio."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn
from transformers.models.higgs_audio_v2_tokenizer.configuration_higgs_audio_v2_tokenizer import (
    HiggsAudioV2TokenizerConfig,
)


class ResidualUnit(nn.Module):
    """ELU and a dilated convolution, ELU and a pointwise one, added to the input: (batch, channels, frames) kept."""

    def __init__(self, channels: int, kernel_size: int, dilation: int) -> None:
        super().__init__()
        padding = (kernel_size - 1) // 2 * dilation
        self.activation = nn.ELU()
        self.conv1 = nn.Conv1d(channels, channels, kernel_size, padding=padding, dilation=dilation, bias=False)
        self.conv2 = nn.Conv1d(channels, channels, 1, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        change: Tensor = self.conv2(self.activation(self.conv1(self.activation(hidden))))
        return hidden + change


class SemanticBlock(nn.Module):
    """Residual units, then the convolution that changes the number of channels; frames are kept (stride 1)."""

    def __init__(self, config: HiggsAudioV2TokenizerConfig, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.res_units = nn.Sequential(
            *(ResidualUnit(in_channels, config.unit_kernel_size, dilation) for dilation in config.block_dilations)
        )
        self.conv = nn.Conv1d(in_channels, out_channels, 3, padding=1)

    def forward(self, hidden: Tensor) -> Tensor:
        out: Tensor = self.conv(self.res_units(hidden))
        return out


class SemanticEncoder(nn.Module):
    """HuBERT features (batch, semantic_size, frames) → (batch, semantic_size · last channel ratio, frames)."""

    def __init__(self, config: HiggsAudioV2TokenizerConfig) -> None:
        super().__init__()
        size, kernel_size = config.semantic_hidden_size, config.kernel_size
        channels = [size, *(int(size * ratio) for ratio in config.channel_ratios)]
        self.conv = nn.Conv1d(size, size, kernel_size, padding=kernel_size // 2, bias=False)
        self.conv_blocks = nn.Sequential(
            *(SemanticBlock(config, before, after) for before, after in pairwise(channels))
        )

    def forward(self, features: Tensor) -> Tensor:
        out: Tensor = self.conv_blocks(self.conv(features))
        return out
