"""The codec's network: transformers' DAC and HuBERT, and what joins them."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from transformers.models.dac.modeling_dac import DacDecoder, DacEncoder
from transformers.models.higgs_audio_v2_tokenizer.configuration_higgs_audio_v2_tokenizer import (
    HiggsAudioV2TokenizerConfig,
)
from transformers.models.hubert.modeling_hubert import HubertModel

from omnivoice.model.codec.quantizer import ResidualQuantizer
from omnivoice.model.codec.semantic import SemanticEncoder

SEMANTIC_PADDING = 160
"""Zeros on each side of what HuBERT hears, in samples, so that it gives one feature a hop."""


class CodecNetwork(nn.Module):
    """Batched, tensors in and out; parameters are named as in the checkpoint. Its caller gives whole frames only."""

    def __init__(self, config: HiggsAudioV2TokenizerConfig) -> None:
        super().__init__()
        acoustic = config.acoustic_model_config
        self.semantic_sample_rate: int = config.semantic_sample_rate
        self.semantic_stride: int = config.semantic_downsample_factor
        self.acoustic_encoder = DacEncoder(acoustic)
        self.acoustic_decoder = DacDecoder(acoustic)
        _adjust_decoder(self.acoustic_decoder)
        self.semantic_model = HubertModel(config.semantic_model_config)
        self.encoder_semantic = SemanticEncoder(config)
        self.quantizer = ResidualQuantizer(
            config.num_quantizers, config.hidden_size, config.codebook_size, config.codebook_dim
        )
        self.fc = nn.Linear(config.hidden_size, config.hidden_size)
        self.fc2 = nn.Linear(config.hidden_size, acoustic.hidden_size)

    def encode(self, waveform: Tensor, semantic_waveform: Tensor) -> Tensor:
        """The same audio at both rates, (batch, frames · 960) and (batch, frames · 640) → codes (batch, 8, frames)."""
        acoustic = self.acoustic_encoder(waveform[:, None])
        semantic = self.encoder_semantic(self.semantic_features(semantic_waveform).mT)
        hidden = self.fc(torch.cat([acoustic, semantic], dim=1).mT)
        return self.quantizer.encode(hidden)

    def decode(self, codes: Tensor) -> Tensor:
        """Codes (batch, 8, frames) → waveforms (batch, frames · 960); the slow twin of `WaveformDecoder`.

        Rows must be of one length: what a convolution's window sees of padding changes the frames beside it.
        """
        hidden = self.fc2(self.quantizer.decode(codes))
        waveform: Tensor = self.acoustic_decoder(hidden.mT)
        return waveform[:, 0]

    def semantic_features(self, waveform: Tensor) -> Tensor:
        """Mean of HuBERT's hidden states, one a frame: (batch, frames · 640) → (batch, frames, semantic_size)."""
        padded = F.pad(waveform, (SEMANTIC_PADDING, SEMANTIC_PADDING))
        states = self.semantic_model(padded, output_hidden_states=True).hidden_states
        return torch.stack(states).mean(dim=0)[:, :: self.semantic_stride]


def tensor_shapes(network: CodecNetwork, config: HiggsAudioV2TokenizerConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor in the codec's `model.safetensors` (527 for the published sizes)."""
    used = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    return used | _unused_tensor_shapes(config)


def _unused_tensor_shapes(config: HiggsAudioV2TokenizerConfig) -> dict[str, tuple[int, ...]]:
    """What only training needs: the codebooks' running averages and the decoder of semantic features."""
    size = config.semantic_hidden_size
    shapes: dict[str, tuple[int, ...]] = {"fc1.weight": (size, config.hidden_size), "fc1.bias": (size,)}
    for index in range(config.num_quantizers):
        prefix = f"quantizer.quantizers.{index}.codebook."
        shapes[prefix + "inited"] = (1,)
        shapes[prefix + "cluster_size"] = (config.codebook_size,)
        shapes[prefix + "embed_avg"] = (config.codebook_size, config.codebook_dim)

    channels = [*(int(size * ratio) for ratio in config.channel_ratios), size]
    shapes["decoder_semantic.conv1.weight"] = (channels[0], size, config.kernel_size)
    shapes["decoder_semantic.conv2.weight"] = (size, size, config.kernel_size)
    for block, (before, after) in enumerate(pairwise(channels)):
        prefix = f"decoder_semantic.conv_blocks.{block}."
        shapes[prefix + "conv.weight"] = (after, before, 3)
        shapes[prefix + "conv.bias"] = (after,)
        for unit in range(len(config.block_dilations)):
            shapes[f"{prefix}res_units.{unit}.conv1.weight"] = (after, after, config.unit_kernel_size)
            shapes[f"{prefix}res_units.{unit}.conv2.weight"] = (after, after, 1)
    return shapes


def _adjust_decoder(decoder: nn.Module) -> None:
    """Make DAC's decoder the tokenizer's: a frame is exactly 960 samples, and the waveform is not squashed."""
    for module in decoder.modules():
        if isinstance(module, nn.ConvTranspose1d):
            # Without it an odd stride yields one sample too few for each block.
            module.output_padding = (module.stride[0] % 2,)
    decoder.tanh = nn.Identity()
