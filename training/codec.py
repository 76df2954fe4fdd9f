"""The small codec: the engine's own network, taught to say again what it hears through eight codebooks.

The semantic model stays as it was drawn.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor, nn

from omnivoice.audio.resample import resampling_taps
from omnivoice.model.codec.codec import EXACT
from omnivoice.model.codec.config import read_codec_config
from omnivoice.model.codec.loading import load_network
from omnivoice.model.codec.network import CodecNetwork, tensor_shapes
from omnivoice.parameters import HOP_LENGTH, NUM_CODEBOOKS, SAMPLE_RATE
from training.corpus import wait_for, write_codes
from training.losses import SpectralLoss
from training.quantiser import Averages, quantise
from training.recipe import SEED, CodecPhase, CodecRecipe, Recipe
from training.replay import Replay, on_device
from training.speech import part_paths
from training.stage import Stage

COMMITMENT_WEIGHT = 0.25
"""Of what a book's centres leave over in its own space."""
WARM_UP_STEPS = 100
RESIDUAL_END = re.compile(r"acoustic_.*res_unit\d\.conv2\.weight$")
RESIDUAL_GAIN, OUTPUT_GAIN = 0.2, 0.1
"""Of the start: how much a residual unit adds, and the decoder's loudness, that of speech at RMS 0.1."""
ENCODE_FRAMES, ENCODE_MULTIPLE = 16_384, 8
"""Frames that are encoded together; and what utterances are filled up to, with silence, so that few lengths differ."""

CONFIG = {
    "architectures": ["HiggsAudioV2TokenizerModel"],
    "model_type": "higgs_audio_v2_tokenizer",
    "dtype": "float32",
    "target_bandwidths": [0.5, 1, 1.5, 2],
    "sample_rate": SAMPLE_RATE,
}
SEMANTIC = {
    "model_type": "hubert",
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "conv_dim": [16] * 7,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "mask_time_prob": 0.0,
    "mask_feature_prob": 0.0,
}
PREPROCESSOR = {
    "feature_extractor_type": "DacFeatureExtractor",
    "feature_size": 1,
    "hop_length": HOP_LENGTH,
    "padding_side": "right",
    "padding_value": 0.0,
    "return_attention_mask": True,
    "sampling_rate": SAMPLE_RATE,
}


def write_configs(folder: Path, recipe: CodecRecipe) -> None:
    acoustic = {
        "model_type": "dac",
        "encoder_hidden_size": recipe.encoder_hidden,
        "decoder_hidden_size": recipe.decoder_hidden,
        "hidden_size": recipe.hidden,
        "downsampling_ratios": recipe.down,
        "upsampling_ratios": recipe.up,
        "sampling_rate": SAMPLE_RATE,
    }
    config = CONFIG | {
        "codebook_dim": recipe.codebook_dim,
        "acoustic_model_config": acoustic,
        "semantic_model_config": SEMANTIC,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR, indent=1))


def new_network(folder: Path) -> CodecNetwork:
    """The network of `folder/config.json` with weights of variance 1/fan-in, at which signals keep their size."""
    torch.manual_seed(SEED)
    network = CodecNetwork(read_codec_config(folder / "config.json"))
    for module in network.modules():
        if isinstance(module, nn.Conv1d | nn.Linear | nn.ConvTranspose1d):
            fan_in = module.weight[0].numel()
            if isinstance(module, nn.ConvTranspose1d):  # (in, out, kernel); `stride` outputs share a kernel
                fan_in = module.in_channels * module.kernel_size[0] // module.stride[0]
            if not hasattr(module, "parametrizations"):
                nn.init.normal_(module.weight, std=1 / math.sqrt(fan_in))
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    for name, parameter in network.named_parameters():
        if RESIDUAL_END.search(name):
            # Fifteen in a row, each adding as much as it is given, would make signals a hundred times as large.
            parameter.data.mul_(RESIDUAL_GAIN)
    network.acoustic_decoder.conv2.weight.data.mul_(OUTPUT_GAIN)
    for layer in network.quantizer.layers():
        # What a codebook takes away is then a part of what is left, and not something beside it.
        nn.init.orthogonal_(layer.project_in.weight)
        layer.project_out.weight.data.copy_(layer.project_in.weight.T)
    network.train()
    network.semantic_model.requires_grad_(False).eval()
    return network


def to_semantic(waveform: Tensor, semantic_rate: int) -> Tensor:
    """(batch, samples) at 24 kHz → at `semantic_rate`, as `omnivoice.audio.resample` does it."""
    divisor = math.gcd(SAMPLE_RATE, semantic_rate)
    old, new = SAMPLE_RATE // divisor, semantic_rate // divisor
    width, offsets, kernels = _kernels(old, new, waveform.device)
    padded = F.pad(waveform, (width, width + old))[:, None]
    num_frames = waveform.shape[1] // old
    phases = [
        F.conv1d(padded[..., offset:], kernels[phase][None, None], stride=old)[:, 0, :num_frames]
        for phase, offset in enumerate(offsets)
    ]
    return torch.stack(phases, dim=-1).flatten(1)


@cache
def _kernels(old: int, new: int, device: torch.device) -> tuple[int, list[int], Tensor]:
    width, offsets, taps = resampling_taps(old, new)
    return width, [int(offset) for offset in offsets], torch.from_numpy(taps).float().to(device)


class Trainer:
    """Network, averages and optimiser: what a restart needs. It learns from what `begin` gives it."""

    def __init__(self, folder: Path, recipe: CodecRecipe, device: torch.device) -> None:
        self.recipe, self.device = recipe, device
        self.network = new_network(folder).to(device)
        if device.type == "cuda":
            from training.snake import fuse_snakes  # noqa: PLC0415 - Triton is there where CUDA is

            fuse_snakes(self.network)
        self.averages = Averages(*self.network.quantizer.layers()[0].codebook.embed.shape).to(device)
        self.loss = SpectralLoss().to(device)
        self.rate = torch.zeros((), device=device)
        learnt = [parameter for parameter in self.network.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(learnt, lr=self.rate, betas=(0.8, 0.99), **on_device(device))
        self._is_first = False

    def begin(self, phase: CodecPhase, first: int, samples: Tensor) -> None:
        """Learn from `samples`, int16 on the device, in the steps from `first` on."""
        self._phase, self._first, self._samples = phase, first, samples
        self._replay = Replay(self.update, self.device)

    def state(self) -> dict[str, Any]:
        return {
            "network": self.network.state_dict(),
            "averages": self.averages.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.network.load_state_dict(state["network"])
        self.averages.load_state_dict(state["averages"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.optimizer.param_groups[0]["lr"] = self.rate

    def step(self, index: int) -> Callable[[], dict[str, float]]:
        """Learn from clips cut at random; returns a reader of the losses."""
        recipe, phase, generator = self.recipe, self._phase, torch.Generator().manual_seed(SEED + index)
        starts = torch.randint(len(self._samples) - recipe.frames * HOP_LENGTH, (recipe.batch,), generator=generator)
        books = torch.randint(1, NUM_CODEBOOKS + 1, (recipe.batch,), generator=generator)
        books[round(recipe.batch * phase.spared) :] = NUM_CODEBOOKS
        size = (NUM_CODEBOOKS, self.averages.size.shape[1])
        drawn = torch.randint(recipe.batch * recipe.frames, size, generator=generator)
        done = index - self._first
        share = min(1.0, (done + 1) / min(WARM_UP_STEPS, phase.steps / 5), (1 - done / phase.steps) / (1 - phase.hold))
        self._is_first = index == 0
        losses = self._replay(
            torch.tensor(share * phase.learning_rate), *(x.to(self.device) for x in (starts, books, drawn))
        )
        return lambda: {
            "loss": round(float(losses[0]), 5),
            "commitment": round(float(losses[1]), 5),
            "residual": round(float(losses[2]), 5),
            "perplexity": round(self.averages.perplexity(), 1),
        }

    def update(self, rate: Tensor, starts: Tensor, books: Tensor, drawn: Tensor) -> Tensor:
        """Learn from the clips at `starts` (batch,) at the learning rate `rate` (); its losses, (3,)."""
        network, length = self.network, self.recipe.frames * HOP_LENGTH
        self.optimizer.zero_grad(set_to_none=True)
        self.rate.copy_(rate)
        clips = self._samples[starts[:, None] + torch.arange(length, device=self.device)].float() / 2**15
        with torch.no_grad():
            semantic = network.semantic_features(to_semantic(clips, network.semantic_sample_rate))
        acoustic = network.acoustic_encoder(clips[:, None])
        hidden = network.fc(torch.cat([acoustic, network.encoder_semantic(semantic.mT)], dim=1).mT)
        hidden, commitment, residual = quantise(network, self.averages, hidden, books, drawn, self._is_first)
        heard = network.acoustic_decoder(network.fc2(hidden).mT)[:, 0]
        spectral = self.loss(heard, clips)
        (spectral + COMMITMENT_WEIGHT * commitment).backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        self.optimizer.step()
        return torch.stack([spectral, commitment, residual]).detach()


def write_codec(folder: Path, network: CodecNetwork, averages: Averages) -> None:
    """Write `folder/model.safetensors` in the real layout, in float16; what only training needs is there too."""
    tensors = {name: tensor.detach().cpu() for name, tensor in network.state_dict().items()}
    for index in range(NUM_CODEBOOKS):
        prefix = f"quantizer.quantizers.{index}.codebook."
        tensors[prefix + "inited"] = torch.ones(1)
        tensors[prefix + "cluster_size"] = averages.size[index].cpu()
        tensors[prefix + "embed_avg"] = averages.total[index].cpu()
    for name, shape in tensor_shapes(network, read_codec_config(folder / "config.json")).items():
        # The decoder of semantic features, which nothing uses.
        tensors.setdefault(name, torch.zeros(shape))
    save_file({name: tensor.half().contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")


def read_speech(paths: Sequence[Path], device: torch.device) -> tuple[Tensor, NDArray[np.int32]]:
    """All utterances of these parts end to end, int16 on the device, and their table.

    Each part goes there on its own: the host would take minutes to lay out memory for hours of speech.
    """
    parts = [np.load(path) for path in paths]
    samples = torch.cat([torch.from_numpy(part["samples"]).to(device) for part in parts])
    return samples, np.concatenate([part["table"] for part in parts])


@torch.inference_mode()
def encode(network: CodecNetwork, samples: Tensor, frames: NDArray[np.int32]) -> NDArray[np.int16]:
    """Codes (frames of all, 8) of every utterance in `samples`, each as if silence followed up to `ENCODE_MULTIPLE`."""
    starts = np.concatenate([[0], np.cumsum(frames, dtype=np.int64)])
    codes = np.empty((int(starts[-1]), NUM_CODEBOOKS), dtype=np.int16)
    filled = -(-frames // ENCODE_MULTIPLE) * ENCODE_MULTIPLE
    for length in np.unique(filled):
        alike = np.flatnonzero(filled == length)
        span = torch.arange(length * HOP_LENGTH, device=samples.device)
        rows = max(1, ENCODE_FRAMES // int(length))
        for first in range(0, len(alike), rows):
            # Always as many, the first again where there are fewer: another number would be another shape.
            chosen = np.resize(alike[first : first + rows], rows) if len(alike) > rows else alike
            begins, ends = (torch.from_numpy(at[chosen] * HOP_LENGTH).to(span.device) for at in (starts, starts[1:]))
            at = begins[:, None] + span
            waveform = samples[at.clamp_max(len(samples) - 1)] * (at < ends[:, None]) / 2**15
            found = network.encode(waveform, to_semantic(waveform, network.semantic_sample_rate)).mT.cpu().numpy()
            for one, found_of_one in zip(chosen, found, strict=True):
                codes[starts[one] : starts[one + 1]] = found_of_one[: frames[one]]
    return codes


def run(stage: Stage, recipe: Recipe, device: torch.device) -> bool:
    """Train, write `audio_tokenizer/`, then encode all speech into `codes.npz`; True once all of it is done."""
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    folder, paths = stage.work / "audio_tokenizer", part_paths(stage.work, recipe)
    write_configs(folder, recipe.codec)
    trainer = Trainer(folder, recipe.codec, device)
    first, end = 0, 0
    if state := stage.restore():
        trainer.restore(state)
        first = state["step"]
    for phase in recipe.codec.phases:
        begin, end = end, end + phase.steps
        if first >= end:
            continue
        if not wait_for(paths[: phase.num_parts], stage):
            return False
        trainer.begin(phase, begin, read_speech(paths[: phase.num_parts], device)[0])
        if not stage.train(end, max(first, begin), trainer.step, trainer.state):
            return False
    write_codec(folder, trainer.network, trainer.averages)
    if not wait_for(paths, stage):
        return False
    torch.backends.cuda.matmul.allow_tf32 = False
    with torch.backends.cudnn.flags(**EXACT):
        samples, table = read_speech(paths, device)
        # With the rounded weights, as whoever loads the checkpoint has them.
        codes = encode(load_network(folder, device, torch.float32), samples, table[:, 2])
    write_codes(stage.work / "codes.npz", codes, table)
    stage.log(utterances=len(table), hours=round(len(codes) / 25 / 3600, 3))
    return True
