"""The small generator: the engine's own backbone, taught to guess masked codes from text, voice and what is not masked.

Layer matrices learn with Muon, all else with AdamW. Weights are float32; on a GPU the forward pass is in bfloat16.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from torch import Tensor

from omnivoice.attention import pick_attention
from omnivoice.model.backbone import Backbone, Layer
from omnivoice.model.config import ModelConfig
from omnivoice.model.tokenizer import CONTROL_TOKENS
from omnivoice.packing import Packing
from omnivoice.parameters import NUM_CODEBOOKS
from training.documents import IGNORED, MASK, Batch, Documents, batches
from training.recipe import CODEBOOK_WEIGHTS, SEED, GeneratorRecipe, Recipe
from training.replay import Replay, on_device
from training.stage import Stage

AUDIO_VOCAB = MASK + 1
END_OF_TEXT = "<|endoftext|>"
WARM_UP_STEPS = 200
MOMENTUM = 0.95
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 5


def write_config(folder: Path, recipe: GeneratorRecipe) -> ModelConfig:
    """Write `config.json` in the real layout, and the tokenizer; returns what the engine reads in it."""
    llm = {
        "model_type": "qwen3",
        "vocab_size": recipe.text_vocab,
        "hidden_size": recipe.hidden,
        "intermediate_size": recipe.ffn,
        "num_hidden_layers": recipe.layers,
        "num_attention_heads": recipe.heads,
        "num_key_value_heads": recipe.kv_heads,
        "head_dim": recipe.head_dim,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_theta": recipe.rope_theta, "rope_type": "default"},
        "use_cache": False,
        "dtype": "float32",
    }
    config = {
        "architectures": ["OmniVoice"],
        "model_type": "omnivoice",
        "audio_vocab_size": AUDIO_VOCAB,
        "audio_mask_id": MASK,
        "num_audio_codebook": NUM_CODEBOOKS,
        "audio_codebook_weights": list(CODEBOOK_WEIGHTS),
        "dtype": "float32",
        "llm_config": llm,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    _write_tokenizer(folder)
    return ModelConfig.from_folder(folder)


def _write_tokenizer(folder: Path) -> None:
    """Bytes, in lower case, and the control tokens behind them."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = (*CONTROL_TOKENS, END_OF_TEXT)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END_OF_TEXT,
        "pad_token": END_OF_TEXT,
        "model_max_length": 100_000,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))


def new_weights(config: ModelConfig) -> dict[str, Tensor]:
    """Float32 weights by their names in a checkpoint: norms of ones, matrices of variance 1/fan-in."""
    generator = torch.Generator().manual_seed(SEED)
    weights = {}
    for name, shape in config.tensor_shapes().items():
        if name == "codebook_layer_offsets":
            continue
        if len(shape) == 1:
            weights[name] = torch.ones(shape)
            continue
        scale = 0.5 if "embed" in name else shape[1] ** -0.5
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            scale *= (2 * config.num_layers) ** -0.5  # what is added to the residual stream, twice a layer
        weights[name] = torch.randn(shape, generator=generator) * scale
    return weights


class Muon:
    """Momentum whose update of a matrix has all singular values near one; matrices of one shape are one batch."""

    def __init__(self, matrices: Mapping[str, Tensor], rate: float) -> None:
        groups: dict[tuple[int, ...], list[Tensor]] = defaultdict(list)
        for matrix in matrices.values():
            groups[tuple(matrix.shape)].append(matrix)
        self.rate = rate
        self._groups = list(groups.values())
        self._momenta = [torch.zeros_like(torch.stack(group)) for group in self._groups]

    @torch.no_grad()
    def step(self, share: Tensor) -> None:
        """Move by `share` () of the rate."""
        for group, momentum in zip(self._groups, self._momenta, strict=True):
            gradient = torch.stack([matrix.grad for matrix in group if matrix.grad is not None])
            momentum.lerp_(gradient, 1 - MOMENTUM)
            update = orthogonal(gradient.lerp(momentum, MOMENTUM))
            rows, columns = group[0].shape
            size = self.rate * max(1.0, rows / columns) ** 0.5
            torch._foreach_sub_(group, list((update.to(gradient) * (size * share)).unbind()))

    def state(self) -> list[Tensor]:
        return self._momenta

    def restore(self, momenta: Iterable[Tensor]) -> None:
        for mine, saved in zip(self._momenta, momenta, strict=True):
            mine.copy_(saved)


def orthogonal(matrices: Tensor) -> Tensor:
    """The orthogonal matrices nearest to (batch, rows, columns), roughly: singular values from 0.7 to 1.2."""
    a, b, c = NEWTON_SCHULZ
    is_tall = matrices.shape[1] > matrices.shape[2]
    x: Tensor = matrices.mT if is_tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    if x.is_cuda:
        x = x.bfloat16()
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if is_tall else x


class TrainedBackbone(Backbone):
    """The engine's backbone with torch's own norm, which keeps less for the way back; on a GPU, its layers compiled.

    What a layer does beside its products is a third of a step where every operation is a kernel of its own.
    """

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self.config.rms_norm_eps)

    def _pass(self, layer: Layer, hidden: Tensor, cos: Tensor, sin: Tensor, packing: Packing) -> Tensor:
        run = compiled(Backbone._pass) if hidden.is_cuda else Backbone._pass
        return run(self, layer, hidden, cos, sin, packing)

    def cross_entropies(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """Of rows (frames, hidden) and what they should have said, (frames, 8); zeros where nothing is asked for."""
        run = compiled(_cross_entropies) if hidden.is_cuda else _cross_entropies
        return run(self, hidden, labels)


def _cross_entropies(backbone: Backbone, hidden: Tensor, labels: Tensor) -> Tensor:
    logits = backbone.logits(hidden, slice(None)).flatten(0, 1)
    return F.cross_entropy(logits, labels.flatten(), ignore_index=IGNORED, reduction="none").view_as(labels)


@cache
def compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`function`, compiled when first called with a phase's shapes; all layers are one function of their weights."""
    made: Callable[..., Tensor] = torch.compile(function, fullgraph=True, dynamic=False)
    return made


class Trainer:
    """Weights and both optimisers: what a restart needs."""

    def __init__(self, config: ModelConfig, recipe: GeneratorRecipe, device: torch.device) -> None:
        self.config, self.recipe, self.device = config, recipe, device
        self.dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.attention = pick_attention(device, self.dtype)
        self.weights = {name: weight.to(device).requires_grad_() for name, weight in new_weights(config).items()}
        tables = [weight for name, weight in self.weights.items() if "embed" in name]
        matrices = {name: weight for name, weight in self.weights.items() if "_proj." in name}
        others = [w for name, w in self.weights.items() if "embed" not in name and name not in matrices]
        self.muon = Muon(matrices, recipe.matrix_rate)
        self.rates = [torch.zeros((), device=device) for _ in range(2)]
        self.adam = torch.optim.AdamW(
            [{"params": tables, "lr": self.rates[0]}, {"params": others, "lr": self.rates[1]}],
            betas=(0.9, 0.95),
            weight_decay=0.0,
            **on_device(device),
        )
        self.book_weights = torch.tensor(CODEBOOK_WEIGHTS, device=device) / sum(CODEBOOK_WEIGHTS)
        self._lengths: tuple[int, ...] = ()
        self._replay = Replay(self.update, device)

    def state(self) -> dict[str, Any]:
        return {"weights": self.weights, "muon": self.muon.state(), "adam": self.adam.state_dict()}

    @torch.no_grad()
    def restore(self, state: Mapping[str, Any]) -> None:
        for name, weight in self.weights.items():
            weight.copy_(state["weights"][name])
        self.muon.restore(state["muon"])
        self.adam.load_state_dict(state["adam"])
        for group, rate in zip(self.adam.param_groups, self.rates, strict=True):
            group["lr"] = rate

    def step(self, index: int, batch: Batch) -> Callable[[], dict[str, Any]]:
        # A GPU's attention wants a bound on the lengths, the same for all batches of a phase; another's, each of them.
        longest = next(phase.longest for phase in self.recipe.phases if phase.tokens == len(batch.order))
        self._lengths = (longest,) if self.device.type == "cuda" else batch.lengths
        losses = self._replay(torch.tensor(self.share(index)), *batch.tensors(self.device))
        return lambda: {
            "loss": round(float((losses * self.book_weights).sum()), 5),
            "by_codebook": [round(x, 3) for x in losses.tolist()],
        }

    def update(self, share: Tensor, *batch: Tensor) -> Tensor:
        """Learn from a batch (`Batch.tensors`) at `share` () of the rates; returns the losses by codebook, (8,)."""
        for weight in self.weights.values():
            weight.grad = None
        losses = self.losses(*batch)
        (losses * self.book_weights).sum().backward()
        for mine, rate in zip(self.rates, (self.recipe.table_rate, self.recipe.other_rate), strict=True):
            mine.copy_(share * rate)
        self.adam.step()
        self.muon.step(share)
        return losses.detach()

    def losses(
        self,
        text: Tensor,
        audio: Tensor,
        order: Tensor,
        targets: Tensor,
        labels: Tensor,
        positions: Tensor,
        offsets: Tensor,
    ) -> Tensor:
        """Mean cross entropy of the masked cells of each codebook, (8,)."""
        weights = {name: weight.to(self.dtype) for name, weight in self.weights.items()}
        backbone = TrainedBackbone(self.config, weights, self.attention)
        rows = torch.cat([backbone.embed_text(text), backbone.embed_audio(audio)]).index_select(0, order)
        hidden = backbone.forward(rows, Packing(self._lengths, offsets, positions)).index_select(0, targets)
        cells = backbone.cross_entropies(hidden, labels)
        return cells.sum(0) / (labels != IGNORED).sum(0).clamp_min(1)

    def share(self, index: int) -> float:
        """Of the learning rates at a step: a warm-up, then all, and in the last phase down to nothing."""
        last = self.recipe.phases[-1].steps
        total = sum(phase.steps for phase in self.recipe.phases)
        return min(1.0, (index + 1) / min(WARM_UP_STEPS, total / 5), (total - index) / last)


def run(stage: Stage, recipe: Recipe, device: torch.device, processes: int) -> bool:
    """Train on `codes.npz`; True once all steps are done. `processes` make the batches."""
    config = write_config(stage.work, recipe.generator)
    trainer, documents = Trainer(config, recipe.generator, device), Documents(stage.work, recipe.generator)
    first = 0
    if state := stage.restore():
        trainer.restore(state)
        first = state["step"]
    source = iter(batches(documents, first, processes, pin=device.type == "cuda"))
    return stage.train(len(documents), first, lambda index: trainer.step(index, next(source)), trainer.state)
