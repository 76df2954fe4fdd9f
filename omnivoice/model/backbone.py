"""The Qwen3 backbone over packed rows, with the audio tables around it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch.nn import functional

from omnivoice.attention import Attention
from omnivoice.errors import CheckpointError
from omnivoice.model.checkpoint import load_tensors
from omnivoice.model.config import GATE_GROUP, ModelConfig
from omnivoice.packing import Packing
from omnivoice.team import Team


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one transformer layer; products that read the same rows are fused along their output.

    The rows of `gate_up` are those of the gate and of the up projection in turns (`in_turns`).
    """

    input_norm: torch.Tensor
    qkv: torch.Tensor
    q_norm: torch.Tensor
    k_norm: torch.Tensor
    out: torch.Tensor
    ffn_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor

    @classmethod
    def of(cls, tensors: Mapping[str, torch.Tensor], index: int) -> Layer:
        def weight(*names: str) -> torch.Tensor:
            parts = [tensors[f"llm.layers.{index}.{name}.weight"] for name in names]
            return parts[0] if len(parts) == 1 else torch.cat(parts)

        return cls(
            input_norm=weight("input_layernorm"),
            qkv=weight("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            q_norm=weight("self_attn.q_norm"),
            k_norm=weight("self_attn.k_norm"),
            out=weight("self_attn.o_proj"),
            ffn_norm=weight("post_attention_layernorm"),
            gate_up=in_turns(weight("mlp.gate_proj"), weight("mlp.up_proj")),
            down=weight("mlp.down_proj"),
        )


class Backbone:
    """Embeddings, layers and heads. Holds weights only: every call is a pure function of its arguments."""

    team = Team()

    def __init__(self, config: ModelConfig, tensors: Mapping[str, torch.Tensor], attention: Attention) -> None:
        self.config = config
        self.attention = attention
        self.text_table = tensors["llm.embed_tokens.weight"]
        self.audio_table = tensors["audio_embeddings.weight"]
        self.heads = tensors["audio_heads.weight"]
        self.norm = tensors["llm.norm.weight"]
        self.layers = tuple(Layer.of(tensors, index) for index in range(config.num_layers))
        self.offsets = torch.arange(config.num_codebooks, device=self.heads.device) * config.audio_vocab_size

    @property
    def score_dtype(self) -> torch.dtype:
        """Logits and scores are float32 whatever the weights are; a float64 engine stays float64 throughout."""
        return torch.float64 if self.heads.dtype == torch.float64 else torch.float32

    @classmethod
    def from_folder(cls, folder: Path, device: torch.device, dtype: torch.dtype, attention: Attention) -> Backbone:
        """Load `config.json` and `model.safetensors` strictly; raise `CheckpointError` naming what is wrong."""
        config = ModelConfig.from_folder(folder)
        path = folder / "model.safetensors"
        tensors = load_tensors(path, config.tensor_shapes())
        offsets = tensors.pop("codebook_layer_offsets").tolist()
        if offsets != [index * config.audio_vocab_size for index in range(config.num_codebooks)]:
            raise CheckpointError(f"{path}: codebook_layer_offsets holds {offsets}")
        tensors = {name: tensor.to(device, dtype) for name, tensor in tensors.items()}
        return cls(config, tensors, attention)

    def folded(self) -> Backbone:
        """The same function with every norm's weight multiplied into the product that follows it, and ones left."""

        def fold(weight: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
            return (weight.to(self.score_dtype) * norm.to(self.score_dtype)).to(weight.dtype)

        folded = copy.copy(self)
        folded.heads = fold(self.heads, self.norm)
        folded.norm = torch.ones_like(self.norm)
        folded.layers = tuple(
            replace(
                layer,
                qkv=fold(layer.qkv, layer.input_norm),
                gate_up=fold(layer.gate_up, layer.ffn_norm),
                input_norm=folded.norm,
                ffn_norm=folded.norm,
            )
            for layer in self.layers
        )
        return folded

    def embed_text(self, ids: torch.Tensor) -> torch.Tensor:
        """Return (rows, hidden) for text ids (rows,)."""
        return functional.embedding(ids, self.text_table)

    def embed_audio(self, codes: torch.Tensor) -> torch.Tensor:
        """Return (frames, hidden) for codes (frames, 8): the sum over codebooks, each with its own table."""
        return functional.embedding(codes + self.offsets, self.audio_table).sum(dim=1)

    def forward(self, hidden: torch.Tensor, packing: Packing) -> torch.Tensor:
        """Run all layers and the last norm over packed rows (T, hidden)."""
        cos, sin = (angles[:, None] for angles in self.rotary(packing.positions, self.norm.dtype))
        for layer in self.layers:
            hidden = self._pass(layer, hidden, cos, sin, packing)
        return self._normed(hidden, self.norm)

    def rotary(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and sines (rows, head_dim / 2) of the rotary embedding's angles."""
        dim = self.config.head_dim
        exponents = torch.arange(0, dim, 2, device=positions.device).float() / dim
        angles = positions.float()[:, None] * self.config.rope_theta**-exponents
        return angles.cos().to(dtype), angles.sin().to(dtype)

    def logits(self, hidden: torch.Tensor, codebooks: slice) -> torch.Tensor:
        """Return (rows, codebooks, 1025) for rows (rows, hidden), in float32 (float64 in a float64 engine)."""
        vocab = self.config.audio_vocab_size
        heads = self.heads.view(-1, vocab, hidden.shape[1])[codebooks]
        return functional.linear(hidden, heads.flatten(0, 1)).to(self.score_dtype).view(len(hidden), -1, vocab)

    def _pass(
        self, layer: Layer, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, packing: Packing
    ) -> torch.Tensor:
        hidden = hidden + self._attend(layer, self._normed(hidden, layer.input_norm), cos, sin, packing)
        gate, up = apart(functional.linear(self._normed(hidden, layer.ffn_norm), layer.gate_up))
        return hidden + functional.linear(functional.silu(gate) * up, layer.down)

    def _attend(
        self, layer: Layer, rows: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, packing: Packing
    ) -> torch.Tensor:
        config = self.config
        heads = functional.linear(rows, layer.qkv).view(len(rows), -1, config.head_dim)
        query, key, value = torch.split(heads, [config.num_heads, config.num_kv_heads, config.num_kv_heads], dim=1)
        query = _rotate(self._normed(query, layer.q_norm), cos, sin)
        key = _rotate(self._normed(key, layer.k_norm), cos, sin)
        return functional.linear(self.attention(query, key, value, packing).flatten(1), layer.out)

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Root-mean-square norm over the last axis, in float32 where the rows are shorter floats."""
        wide = x.to(self.score_dtype)
        scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.config.rms_norm_eps)
        return (wide * scale).to(x.dtype) * weight


def in_turns(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Lay the rows of two weights (rows, depth) in one, 2 · rows: 8 of the first, 8 of the second, and so on.

    So the kernel that multiplies by it finds what belongs together in one tile. `apart` undoes it, in columns.
    """
    return torch.stack([gate.view(-1, GATE_GROUP, gate.shape[1]), up.view(-1, GATE_GROUP, up.shape[1])], 1).flatten(
        0, 2
    )


def apart(columns: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gate's and the up projection's columns (rows, ffn) of a product (rows, 2 · ffn)."""
    gate, up = columns.view(len(columns), -1, 2, GATE_GROUP).unbind(2)
    return gate.flatten(1), up.flatten(1)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding of (T, heads, head_dim): the halves of the last axis are the planes' two axes."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
