"""Sizes of the language model, read from a checkpoint's `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omnivoice.errors import CheckpointError
from omnivoice.model.checkpoint import read_json

GATE_GROUP = 8
"""Rows of the gate's and of the up projection's weight that take turns in one (`backbone.in_turns`)."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Qwen3 backbone plus the audio tables around it; every tensor's shape follows from these numbers."""

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    text_vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    audio_vocab_size: int
    audio_mask_id: int
    num_codebooks: int

    @classmethod
    def from_folder(cls, folder: Path) -> ModelConfig:
        """Read `folder/config.json`; raise `CheckpointError` naming the entry that is missing or not supported."""
        path = folder / "config.json"
        content = read_json(path)
        if content.get("model_type") != "omnivoice":
            raise CheckpointError(f"{path}: model_type must be omnivoice, not {content.get('model_type')!r}")
        llm = content.get("llm_config")
        if not isinstance(llm, dict):
            raise CheckpointError(f"{path}: llm_config is missing")
        reader = _Reader(path, llm)
        if llm.get("attention_bias"):
            raise CheckpointError(f"{path}: llm_config.attention_bias is not supported")
        audio = _Reader(path, content)
        config = cls(
            hidden_size=reader.integer("hidden_size"),
            num_layers=reader.integer("num_hidden_layers"),
            num_heads=reader.integer("num_attention_heads"),
            num_kv_heads=reader.integer("num_key_value_heads"),
            head_dim=reader.integer("head_dim"),
            intermediate_size=reader.integer("intermediate_size"),
            text_vocab_size=reader.integer("vocab_size"),
            rms_norm_eps=float(llm.get("rms_norm_eps", 1e-6)),
            rope_theta=_rope_theta(path, llm),
            audio_vocab_size=audio.integer("audio_vocab_size"),
            audio_mask_id=audio.integer("audio_mask_id"),
            num_codebooks=audio.integer("num_audio_codebook"),
        )
        if config.audio_mask_id != config.audio_vocab_size - 1:
            raise CheckpointError(f"{path}: audio_mask_id must be the last of audio_vocab_size")
        if config.num_heads % config.num_kv_heads:
            raise CheckpointError(f"{path}: num_attention_heads must be a multiple of num_key_value_heads")
        if config.intermediate_size % GATE_GROUP:
            raise CheckpointError(f"{path}: llm_config.intermediate_size must be a multiple of {GATE_GROUP}")
        return config

    @property
    def query_width(self) -> int:
        """Columns of all query heads together, and of what attention returns."""
        return self.num_heads * self.head_dim

    @property
    def key_width(self) -> int:
        """All key heads side by side; values have as many."""
        return self.num_kv_heads * self.head_dim

    @property
    def qkv_width(self) -> int:
        """Columns of query, key and value heads together."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor in `model.safetensors` (313 for the published sizes)."""
        hidden, ffn, dim = self.hidden_size, self.intermediate_size, self.head_dim
        layer = {
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
            "self_attn.q_proj": (self.num_heads * dim, hidden),
            "self_attn.k_proj": (self.num_kv_heads * dim, hidden),
            "self_attn.v_proj": (self.num_kv_heads * dim, hidden),
            "self_attn.o_proj": (hidden, self.num_heads * dim),
            "self_attn.q_norm": (dim,),
            "self_attn.k_norm": (dim,),
            "mlp.gate_proj": (ffn, hidden),
            "mlp.up_proj": (ffn, hidden),
            "mlp.down_proj": (hidden, ffn),
        }
        audio_rows = self.num_codebooks * self.audio_vocab_size
        shapes: dict[str, tuple[int, ...]] = {
            "llm.embed_tokens.weight": (self.text_vocab_size, hidden),
            "llm.norm.weight": (hidden,),
            "audio_embeddings.weight": (audio_rows, hidden),
            "audio_heads.weight": (audio_rows, hidden),
            "codebook_layer_offsets": (self.num_codebooks,),
        }
        for index in range(self.num_layers):
            shapes |= {f"llm.layers.{index}.{name}.weight": shape for name, shape in layer.items()}
        return shapes


@dataclass(frozen=True, slots=True)
class _Reader:
    path: Path
    content: Mapping[str, Any]

    def integer(self, name: str) -> int:
        value = self.content.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise CheckpointError(f"{self.path}: {name} must be a positive whole number, not {value!r}")
        return value


def _rope_theta(path: Path, llm: Mapping[str, Any]) -> float:
    """Newer files nest the base frequency under `rope_parameters`, older ones hold it flat."""
    parameters = llm.get("rope_parameters") or {}
    theta = parameters.get("rope_theta", llm.get("rope_theta"))
    if not isinstance(theta, int | float) or theta <= 0:
        raise CheckpointError(f"{path}: llm_config has no rope_theta")
    if parameters.get("rope_type", "default") != "default" or llm.get("rope_scaling"):
        raise CheckpointError(f"{path}: only the default rotary embedding is supported")
    return float(theta)
