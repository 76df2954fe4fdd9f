"""Loading is strict: whatever a checkpoint folder lacks, has too much or has wrong is named on one line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import golden_cases as golden
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from omnivoice import CheckpointError, Engine, EngineConfig, SamplingParams, SynthesisRequest
from omnivoice.hub import checkpoint_folder, file_sha256, verify
from omnivoice.model.config import ModelConfig
from omnivoice.model.tokenizer import CONTROL_TOKENS, PromptTokenizer

PUBLISHED_LLM = {
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "vocab_size": 151_676,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    copy = tmp_path / "checkpoint"
    shutil.copytree(golden.CHECKPOINT, copy)
    return copy


def load(folder: Path | str) -> Engine:
    return Engine.from_checkpoint(folder, EngineConfig(device="cpu", dtype="float32"))


def refusal(folder: Path | str) -> str:
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    message = str(caught.value)
    assert "\n" not in message
    return message


def change_config(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


def change_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def test_the_published_layout_has_313_tensors_and_its_parameters(tmp_path: Path) -> None:
    config = {"model_type": "omnivoice", "audio_vocab_size": 1025, "audio_mask_id": 1024, "num_audio_codebook": 8}
    (tmp_path / "config.json").write_text(json.dumps(config | {"llm_config": PUBLISHED_LLM}))
    shapes = ModelConfig.from_folder(tmp_path).tensor_shapes()
    assert len(shapes) == 313
    assert sum(int(np.prod(shape)) for name, shape in shapes.items() if name != "codebook_layer_offsets") == 612_577_280


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda t: t.pop("llm.layers.1.self_attn.q_norm.weight"), "llm.layers.1.self_attn.q_norm.weight"),
        (lambda t: t.update({"lm_head.weight": torch.zeros(2)}), "lm_head.weight"),
        (lambda t: t.update({"llm.norm.weight": torch.zeros(31)}), "llm.norm.weight has shape [31]"),
        (lambda t: t.update({"llm.norm.weight": torch.zeros(32, dtype=torch.int8)}), "llm.norm.weight is torch.int8"),
        (lambda t: t["codebook_layer_offsets"].add_(1), "codebook_layer_offsets"),
    ],
    ids=["missing", "extra", "misshapen", "integer", "offsets"],
)
def test_a_wrong_tensor_is_named(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any], named: str) -> None:
    change_tensors(folder, change)
    message = refusal(folder)
    assert named in message
    assert "model.safetensors" in message


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "audio_tokenizer/config.json"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert f"{name}: no such file" in refusal(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
@pytest.mark.parametrize("content", [b"", b"\xff\x00 not this at all", b"[1, 2]"], ids=["empty", "garbage", "list"])
def test_an_unreadable_file_is_named(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    assert name in refusal(folder)


def test_a_truncated_file_is_named(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    assert "model.safetensors" in refusal(folder)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda c: c.update(model_type="llama"), "model_type"),
        (lambda c: c.pop("llm_config"), "llm_config"),
        (lambda c: c["llm_config"].pop("head_dim"), "head_dim"),
        (lambda c: c["llm_config"].update(hidden_size="32"), "hidden_size"),
        (lambda c: c["llm_config"].pop("rope_parameters"), "rope_theta"),
        (lambda c: c["llm_config"].update(attention_bias=True), "attention_bias"),
        (lambda c: c["llm_config"]["rope_parameters"].update(rope_type="yarn"), "rotary"),
        (lambda c: c.update(audio_mask_id=3), "audio_mask_id"),
        (lambda c: c["llm_config"].update(num_key_value_heads=3), "num_key_value_heads"),
    ],
)
def test_a_bad_config_entry_is_named(folder: Path, change: Callable[[dict[str, Any]], Any], named: str) -> None:
    change_config(folder, change)
    assert named in refusal(folder)


def test_the_older_place_of_rope_theta_is_read(folder: Path) -> None:
    def flatten(config: dict[str, Any]) -> None:
        config["llm_config"]["rope_theta"] = config["llm_config"].pop("rope_parameters")["rope_theta"]

    newer = ModelConfig.from_folder(folder)
    change_config(folder, flatten)
    assert ModelConfig.from_folder(folder) == newer
    assert newer.rope_theta == 1e6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_files_are_cast(folder: Path, dtype: torch.dtype) -> None:
    change_tensors(
        folder, lambda tensors: tensors.update({k: v.to(dtype) for k, v in tensors.items() if v.is_floating_point()})
    )
    result = load(folder).generate([SynthesisRequest("Hello.", seed=1, params=SamplingParams(num_step=2))])[0]
    assert result.error is None


@pytest.mark.parametrize("token", CONTROL_TOKENS)
def test_a_missing_control_token_is_named(folder: Path, token: str) -> None:
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["added_tokens"] = [entry for entry in content["added_tokens"] if entry["content"] != token]
    path.write_text(json.dumps(content))
    assert token in refusal(folder)


def test_no_folder_and_no_hub_id() -> None:
    assert "no such folder" in refusal("/nowhere/at/all")
    assert "no such folder" in refusal("./nowhere")


def test_a_hub_id_that_cannot_be_had_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert "someone/something: cannot be downloaded" in refusal("someone/something")


def test_a_local_folder_is_taken_as_it_is(folder: Path) -> None:
    assert checkpoint_folder(folder) == folder
    assert checkpoint_folder(str(folder)) == folder


def test_verify_tells_files_that_are_not_the_published_ones(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    differences = verify(folder)
    assert len(differences) == 3
    assert any("tokenizer.json: no such file" in line for line in differences)
    assert any(file_sha256(folder / "model.safetensors") in line for line in differences)


def control_ids(tokenizer: PromptTokenizer) -> set[int]:
    return set(tokenizer._control_ids.values())


@pytest.mark.parametrize("checkpoint", [golden.CHECKPOINT, golden.GOLDEN.parents[1] / "checkpoints" / "demo"])
@pytest.mark.parametrize(
    "text", ["hi<|text_end|><|denoise|>", "<|lang_start|>", "a <|endoftext|> b", "".join(CONTROL_TOKENS) * 3]
)
def test_user_text_never_yields_a_control_id(checkpoint: Path, text: str) -> None:
    tokenizer = PromptTokenizer.from_folder(checkpoint, text_vocab_size=1_100)
    special = control_ids(tokenizer) | {tokenizer._tokenizer.token_to_id("<|endoftext|>")}
    assert not special & set(tokenizer.encode(text))
    prompt = tokenizer.prompt(text, language=text, instruct=text, denoise=False)
    assert sum(index in special for index in prompt) == 6  # a start and an end for each of the three fields


def test_a_tag_has_the_same_ids_wherever_it_stands() -> None:
    tokenizer = PromptTokenizer.from_folder(golden.CHECKPOINT, text_vocab_size=1_100)
    tag = tokenizer.encode("[laughter]")
    for before, after in (("Wait ", " no"), ("x", "y"), ("", ".")):
        expected = (tokenizer.encode(before) if before else []) + tag + tokenizer.encode(after)
        assert tokenizer.encode(f"{before}[laughter]{after}") == expected
