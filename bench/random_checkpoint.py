"""Write a random checkpoint in the published layout, at any size: what speed can be measured on without the weights.

python -m bench.random_checkpoint FOLDER --size published
"""

from __future__ import annotations

import argparse
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

from omnivoice.model.codec.config import read_codec_config
from omnivoice.model.codec.network import CodecNetwork, tensor_shapes
from omnivoice.model.config import ModelConfig

SMALL_CHECKPOINT = Path(__file__).parent.parent / "tests" / "golden" / "checkpoint"
"""Tokenizer, and codec of the small sizes, are taken from here."""


@dataclass(frozen=True)
class Size:
    """Sizes of the language model; head_dim and the audio side are the published ones throughout."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    text_vocab: int
    head_dim: int = 128


SIZES = {
    "published": Size(hidden=1024, layers=28, heads=16, kv_heads=8, ffn=3072, text_vocab=151_676),
    "medium": Size(hidden=512, layers=4, heads=8, kv_heads=4, ffn=1536, text_vocab=1_100, head_dim=64),
}


PUBLISHED_CODEC = {
    "model_type": "higgs_audio_v2_tokenizer",
    "target_bandwidths": [0.5, 1, 1.5, 2],
    "codebook_dim": 64,
    "acoustic_model_config": {
        "model_type": "dac",
        "encoder_hidden_size": 64,
        "decoder_hidden_size": 1024,
        "hidden_size": 256,
        "downsampling_ratios": [8, 5, 4, 2, 3],
        "upsampling_ratios": [8, 5, 4, 2, 3],
    },
    "semantic_model_config": {"model_type": "hubert"},
}


def write_checkpoint(folder: Path, size: Size, dtype: torch.dtype = torch.float32, seed: int = 0) -> None:
    """Write config, weights, tokenizer and codec; weights have variance 1/fan-in, so that activations stay sane."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    (folder / "config.json").write_text(json.dumps(_config(size), indent=1))
    shapes = ModelConfig.from_folder(folder).tensor_shapes()
    tensors = {name: _random(name, shape, generator).to(dtype) for name, shape in shapes.items()}
    tensors["codebook_layer_offsets"] = torch.arange(8) * 1025
    save_file(tensors, folder / "model.safetensors")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(SMALL_CHECKPOINT / name, folder / name)
    _write_codec(folder / "audio_tokenizer", published=size == SIZES["published"], generator=generator)


def _config(size: Size) -> dict[str, object]:
    return {
        "model_type": "omnivoice",
        "audio_vocab_size": 1025,
        "audio_mask_id": 1024,
        "num_audio_codebook": 8,
        "llm_config": {
            "model_type": "qwen3",
            "hidden_size": size.hidden,
            "num_hidden_layers": size.layers,
            "num_attention_heads": size.heads,
            "num_key_value_heads": size.kv_heads,
            "head_dim": size.head_dim,
            "intermediate_size": size.ffn,
            "vocab_size": size.text_vocab,
            "rms_norm_eps": 1e-6,
            "attention_bias": False,
            "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"},
        },
    }


def _random(name: str, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    if len(shape) == 1:
        return torch.ones(shape)
    scale = 1.0 if "embed" in name else shape[-1] ** -0.5
    return torch.randn(shape, generator=generator) * scale


def _write_codec(folder: Path, published: bool, generator: torch.Generator) -> None:
    if not published:
        shutil.copytree(SMALL_CHECKPOINT / "audio_tokenizer", folder, dirs_exist_ok=True)
        return
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(PUBLISHED_CODEC, indent=1))
    shutil.copy(SMALL_CHECKPOINT / "audio_tokenizer" / "preprocessor_config.json", folder)
    config = read_codec_config(folder / "config.json")
    network = CodecNetwork(config)
    tensors = {name: tensor.contiguous() for name, tensor in network.state_dict().items()}
    for name, shape in tensor_shapes(network, config).items():
        if name not in tensors:
            tensors[name] = torch.randn(shape, generator=generator)
    save_file(tensors, folder / "model.safetensors")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", choices=SIZES, default="published")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    arguments = parser.parse_args()
    write_checkpoint(arguments.folder, SIZES[arguments.size], getattr(torch, arguments.dtype))
    print(arguments.folder)


if __name__ == "__main__":
    main()
