"""A codec folder that is not exactly what its config says stops the start with one line that names the fault."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from bench.random_checkpoint import PUBLISHED_CODEC
from omnivoice.errors import CheckpointError
from omnivoice.model.codec import Codec
from omnivoice.model.codec.config import read_codec_config
from omnivoice.model.codec.network import CodecNetwork, tensor_shapes

CHECKPOINT = Path(__file__).parents[1] / "golden" / "checkpoint"
Tensors = dict[str, torch.Tensor]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the golden checkpoint's codec that a test may break."""
    shutil.copytree(CHECKPOINT / "audio_tokenizer", tmp_path / "audio_tokenizer")
    return tmp_path


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as refused:
        Codec.from_folder(folder)
    message = str(refused.value)
    assert "\n" not in message
    return message


def change_tensors(folder: Path, change: Callable[[Tensors], object]) -> None:
    path = folder / "audio_tokenizer" / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "audio_tokenizer" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")


@pytest.mark.parametrize(
    "name",
    [
        "acoustic_decoder.block.2.conv_t1.weight",
        "quantizer.quantizers.7.codebook.embed",
        "semantic_model.encoder.pos_conv_embed.conv.parametrizations.weight.original0",
        "encoder_semantic.conv.weight",
        "fc2.bias",
        "fc1.weight",
        "quantizer.quantizers.0.codebook.inited",
        "decoder_semantic.conv_blocks.1.res_units.0.conv2.weight",
    ],
)
def test_a_missing_tensor_is_named(folder: Path, name: str) -> None:
    change_tensors(folder, lambda tensors: tensors.pop(name))
    message = refusal(folder)
    assert name in message
    assert "missing" in message


def test_an_extra_tensor_is_named(folder: Path) -> None:
    change_tensors(folder, lambda tensors: tensors.update(surplus=torch.zeros(1)))
    assert "surplus" in refusal(folder)


@pytest.mark.parametrize(
    "name", ["fc.weight", "decoder_semantic.conv1.weight", "quantizer.quantizers.3.codebook.embed"]
)
def test_a_misshapen_tensor_is_named(folder: Path, name: str) -> None:
    change_tensors(folder, lambda tensors: tensors.update({name: tensors[name][:-1].clone()}))
    message = refusal(folder)
    assert name in message
    assert "shape" in message


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / "audio_tokenizer" / name).unlink()
    assert name in refusal(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
@pytest.mark.parametrize("keep", [0, 5, 1000, -100])
def test_a_truncated_file_is_named(folder: Path, name: str, keep: int) -> None:
    path = folder / "audio_tokenizer" / name
    path.write_bytes(path.read_bytes()[:keep])
    assert name in refusal(folder)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "encodec"}, "model_type"),
        ({"sample_rate": 44_100}, "sample_rate"),
        ({"sample_rate": 0}, "config.json"),
        ({"downsample_factor": 0}, "config.json"),
        ({"target_bandwidths": []}, "config.json"),
        ({"target_bandwidths": [0.5, 1]}, "codebooks"),
        ({"codebook_size": 512}, "codebook"),
        ({"codebook_dim": "sixteen"}, "codebook_dim"),
        ({"codebook_dim": -16}, "config.json"),
        ({"codebook_dim": 24}, "quantizer.quantizers"),
        ({"strides": [2, 1]}, "strides"),
        ({"strides": [1]}, "strides"),
        ({"channel_ratios": [1, 2]}, "channel_ratios"),
        ({"acoustic_model_config": None}, "acoustic_model_config"),
        ({"acoustic_model_config": {"model_type": "encodec"}}, "acoustic_model_config"),
        ({"acoustic_model_config": {"downsampling_ratios": [8, 5, 4, 2]}}, "downsampling_ratios"),
        ({"semantic_model_config": {"model_type": "wavlm"}}, "semantic_model_config"),
        ({"semantic_model_config": {"hidden_size": 33, "num_attention_heads": 2}}, "config.json"),
        ({"semantic_model_config": {"conv_stride": [5, 2, 2, 2, 2, 2, 1]}}, "conv_stride"),
    ],
)
def test_a_bad_config_entry_is_named(folder: Path, changes: dict[str, Any], named: str) -> None:
    change_config(folder, **changes)
    assert named in refusal(folder)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_files_are_computed_in_float32(folder: Path, dtype: torch.dtype) -> None:
    codes = np.random.default_rng(0).integers(0, 1024, (8, 10))
    change_tensors(folder, lambda tensors: tensors.update({k: v.to(dtype) for k, v in tensors.items()}))
    half = Codec.from_folder(folder)
    assert {tensor.dtype for tensor in half.network.state_dict().values()} == {torch.float32}
    change_tensors(folder, lambda tensors: tensors.update({k: v.float() for k, v in tensors.items()}))
    np.testing.assert_array_equal(half.decode(codes), Codec.from_folder(folder).decode(codes))


def test_what_only_training_needs_is_not_kept() -> None:
    names = set(Codec.from_folder(CHECKPOINT).network.state_dict())
    assert "quantizer.quantizers.0.codebook.embed" in names
    unused = [name for name in names if name.startswith(("decoder_semantic", "fc1")) or name.endswith("embed_avg")]
    assert unused == []


def test_the_published_layout_has_527_tensors(tmp_path: Path) -> None:
    # A masking probability makes transformers expect one more tensor, which no file holds.
    config = PUBLISHED_CODEC | {"semantic_model_config": {"model_type": "hubert", "mask_time_prob": 0.05}}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    read = read_codec_config(path)
    with torch.device("meta"):
        network = CodecNetwork(read)
    shapes = tensor_shapes(network, read)
    assert len(shapes) == 527
    assert shapes["fc2.weight"] == (256, 1024)
    assert shapes["quantizer.quantizers.7.project_in.weight"] == (64, 1024)
    assert shapes["acoustic_decoder.conv1.weight"] == (1024, 256, 7)
    assert shapes["semantic_model.encoder.layers.11.attention.q_proj.weight"] == (768, 768)
