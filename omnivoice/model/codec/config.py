"""The codec's `config.json`, read by transformers' own configuration class and held to what this engine supports.

That class imports without torchaudio; the model class beside it does not, and is never imported.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers.models.higgs_audio_v2_tokenizer.configuration_higgs_audio_v2_tokenizer import (
    HiggsAudioV2TokenizerConfig,
)

from omnivoice.errors import CheckpointError
from omnivoice.model.checkpoint import read_json
from omnivoice.parameters import CODEBOOK_SIZE, HOP_LENGTH, NUM_CODEBOOKS, SAMPLE_RATE

MODEL_TYPE = "higgs_audio_v2_tokenizer"


def read_codec_config(path: Path) -> HiggsAudioV2TokenizerConfig:
    """Read the `config.json` at `path`; raise `CheckpointError`, one line, for an entry that is bad or not supported.

    Entries that the file lacks have the layout's defaults: files are written without them.
    """
    content = read_json(path)
    if content.get("model_type") != MODEL_TYPE:
        raise CheckpointError(f"{path}: model_type must be {MODEL_TYPE}, not {content.get('model_type')!r}")
    _check_parts(path, content)
    try:
        config = HiggsAudioV2TokenizerConfig.from_dict(content)
        _check_rates(path, config)
    except (StrictDataclassError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: {one_line(error)}") from None
    # A parameter that only masked training uses; files of this layout do not hold it, whatever the probabilities say.
    config.semantic_model_config.mask_time_prob = 0.0
    config.semantic_model_config.mask_feature_prob = 0.0
    return config


def one_line(error: Exception) -> str:
    """The error's kind and text without line breaks: some libraries spread theirs over several."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def _check_parts(path: Path, content: dict[str, Any]) -> None:
    for name, model_type in (("acoustic_model_config", "dac"), ("semantic_model_config", "hubert")):
        part = content.get(name)
        if not isinstance(part, dict) or part.get("model_type", model_type) != model_type:
            raise CheckpointError(f"{path}: {name} must describe a model of type {model_type}")


def _check_rates(path: Path, config: HiggsAudioV2TokenizerConfig) -> None:
    """Refuse sizes with which codes would not be 8 x 1024 at 25 frames a second, or the two encoders would disagree."""
    acoustic, semantic = config.acoustic_model_config, config.semantic_model_config
    semantic_hop = config.downsample_factor * config.semantic_downsample_factor
    facts = {
        "sample_rate": (config.sample_rate, SAMPLE_RATE),
        "product of downsampling_ratios": (math.prod(acoustic.downsampling_ratios), HOP_LENGTH),
        "product of upsampling_ratios": (math.prod(acoustic.upsampling_ratios), HOP_LENGTH),
        "number of codebooks (from target_bandwidths)": (config.num_quantizers, NUM_CODEBOOKS),
        "codebook_size": (config.codebook_size, CODEBOOK_SIZE),
        "product of the semantic model's conv_stride": (math.prod(semantic.conv_stride), config.downsample_factor),
        "semantic samples a frame": (semantic_hop * SAMPLE_RATE, config.semantic_sample_rate * HOP_LENGTH),
        "product of strides": (math.prod(config.strides), 1),
        "last of channel_ratios": (config.channel_ratios[-1], 1),
    }
    for name, (found, needed) in facts.items():
        if found != needed:
            raise CheckpointError(f"{path}: {name} must be {needed}, not {found}")
    if len(config.strides) != len(config.channel_ratios):
        raise CheckpointError(f"{path}: strides and channel_ratios must be of one length")
