"""What the generator learns from: documents of one or more utterances, masked at random and packed end to end."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from omnivoice.model.tokenizer import PromptTokenizer
from omnivoice.parameters import CODEBOOK_SIZE, NUM_CODEBOOKS, SamplingParams
from omnivoice.text import combine_text
from omnivoice.text.schedule import revealed_share
from training.corpus import Corpus
from training.recipe import DEFAULT_VOICE, SEED, VOICES, GeneratorRecipe, Phase

MASK = CODEBOOK_SIZE
IGNORED = -100
"""Label of a cell that is not asked for."""
GENERATION = SamplingParams()
GENERATION_SHARE = 0.8
"""Of the documents that are masked as at a step of generation with its usual parameters."""
UNCONDITIONAL_SHARE = 0.12
LANGUAGE_SHARE = 0.6
PACE_TOLERANCE = 1.01
"""The utterances of a document, and of its reference, are within this factor of one pace: how much of its text is said
when is then what the length rule tells, as it is where the model is asked to speak."""
INSTRUCT_SHARE = 0.6
"""Of the documents without a reference in the default voice; the other voices always need telling."""


@dataclass(frozen=True, slots=True)
class Document:
    """`prompt` are text ids, `reference` and `target` codes (frames, 8); `masked` (frames, 8) is what is asked for."""

    prompt: list[int]
    reference: NDArray[np.int16]
    target: NDArray[np.int16]
    masked: NDArray[np.bool_]

    @property
    def num_rows(self) -> int:
        return len(self.prompt) + self.num_frames

    @property
    def num_frames(self) -> int:
        return len(self.reference) + len(self.target)


@dataclass(frozen=True, slots=True)
class Batch:
    """Documents packed into the `tokens` rows of a phase, the same shapes for every batch of the phase.

    `order` (tokens,) brings text ids (tokens,) and behind them audio codes (frames, 8) into their places. `targets`
    (frames,) are the packed rows that `labels` (frames, 8) belong to. Documents are sequences, and rows that are left
    belong to more of them, which nothing asks for; `offsets` (sequences + 1,) ends in empty ones. `lengths` has those
    that are not empty. Small integers until they are on the device.
    """

    text: Tensor
    audio: Tensor
    order: Tensor
    targets: Tensor
    labels: Tensor
    positions: Tensor
    offsets: Tensor
    lengths: tuple[int, ...]

    def tensors(self, device: torch.device) -> tuple[Tensor, ...]:
        """All tensors in the order of the fields, int64 on the device but for `offsets`, which stays int32."""
        named = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "lengths"}
        moved = {name: tensor.to(device, non_blocking=True) for name, tensor in named.items()}
        return tuple(tensor if name == "offsets" else tensor.long() for name, tensor in moved.items())

    def pin_memory(self) -> Batch:
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        pinned: dict[str, Any] = {name: value.pin_memory() for name, value in values if isinstance(value, Tensor)}
        return replace(self, **pinned)


class Documents(Dataset[Batch]):
    """Batch `step` of a run, made from the seed and the step alone, so that any process may make it."""

    def __init__(self, work: Path, recipe: GeneratorRecipe) -> None:
        self._work, self._recipe = work, recipe

    def __getitem__(self, step: int) -> Batch:
        phase, rng = self.phase(step), np.random.default_rng((SEED, step))
        documents: list[Document] = []
        rows, frames = phase.tokens, phase.frames
        while True:
            document = self.document(phase, rng)
            if document.num_rows > phase.longest:
                continue
            rows, frames = rows - document.num_rows, frames - document.num_frames
            if min(rows, frames) < 0 or len(documents) == phase.sequences - phase.num_filling:
                return pack(documents, phase)
            documents.append(document)

    def __len__(self) -> int:
        return sum(phase.steps for phase in self._recipe.phases)

    def phase(self, step: int) -> Phase:
        for phase in self._recipe.phases:
            if step < phase.steps:
                return phase
            step -= phase.steps
        raise IndexError(step)

    def document(self, phase: Phase, rng: np.random.Generator) -> Document:
        """Draw a voice and a pace, what it says, what it is told beforehand, and how much of it is masked."""
        voice = int(rng.integers(len(VOICES)))
        alike = self.of_one_pace(voice, rng)
        text, target = self._joined(alike, phase, rng)
        masked = rng.random(target.shape) < masked_shares(rng)
        masked[rng.integers(len(masked)), rng.integers(NUM_CODEBOOKS)] = True
        if rng.random() < UNCONDITIONAL_SHARE:
            return Document([], target[:0], target, masked)
        language = "en" if rng.random() < LANGUAGE_SHARE else None
        if rng.random() < phase.referenced:
            ref_text, reference = self._joined(alike, phase, rng)
            ids = self._tokenizer.prompt(combine_text(text, ref_text), language, None, denoise=True)
            return Document(ids, reference, target, masked)
        instruct = self._instruct(voice, rng)
        ids = self._tokenizer.prompt(combine_text(text), language, instruct, denoise=False)
        return Document(ids, target[:0], target, masked)

    def of_one_pace(self, voice: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """The utterances of a voice whose pace is that of one that is drawn."""
        utterances, paces = self._by_pace[voice]
        pace = paces[rng.integers(len(paces))]
        first, end = np.searchsorted(paces, (pace / PACE_TOLERANCE, pace * PACE_TOLERANCE))
        return utterances[first:end]

    def _joined(
        self, utterances: NDArray[np.int64], phase: Phase, rng: np.random.Generator
    ) -> tuple[str, NDArray[np.int16]]:
        """Up to `max_utterances` of these, as a speaker would join them: text, codes (frames, 8)."""
        number = number_of_utterances(phase.max_utterances, rng)
        chosen = [int(utterance) for utterance in rng.choice(utterances, number)]
        frames = np.cumsum(self._corpus.table[chosen, 2])
        chosen = chosen[: max(1, int((frames <= phase.max_frames).sum()))]
        codes = [self._corpus.of(one, is_last=index == len(chosen) - 1) for index, one in enumerate(chosen)]
        return " ".join(self._corpus.line(one).written for one in chosen), np.concatenate(codes)

    def _instruct(self, voice: int, rng: np.random.Generator) -> str | None:
        """Some of the voice's items in any order; those that fit several voices alone as well, and often none."""
        name, items = list(VOICES)[voice], list(VOICES.values())[voice]
        if name == DEFAULT_VOICE and rng.random() >= INSTRUCT_SHARE:
            return None
        number = 1 if rng.random() < 0.4 else len(items)
        return ", ".join(rng.permutation(items)[:number])

    @cached_property
    def _corpus(self) -> Corpus:
        return Corpus.read(self._work)

    @cached_property
    def _by_pace(self) -> list[tuple[NDArray[np.int64], NDArray[np.float64]]]:
        """Of each voice its utterances and their paces, the slowest last."""
        return [self._corpus.by_pace(voice) for voice in range(len(VOICES))]

    @cached_property
    def _tokenizer(self) -> PromptTokenizer:
        return PromptTokenizer.from_folder(self._work, self._recipe.text_vocab)


def number_of_utterances(most: int, rng: np.random.Generator) -> int:
    """From 1 to `most`, the more the more seldom: all numbers bring about as many rows to learn from."""
    return int((most + 1) ** rng.random())


def masked_shares(rng: np.random.Generator) -> NDArray[np.float64]:
    """How much of each codebook of a document is masked, (8,): as at some step of generation, or as much of each.

    Two thirds of the steps see little but a part of the first book, and choose the words; where each share of all cells
    is as likely, and of each book alike, few documents are like that.
    """
    if rng.random() >= GENERATION_SHARE:
        return np.full(NUM_CODEBOOKS, rng.random())
    return 1 - unmasked_shares(float(revealed_share(np.float32(rng.random()), GENERATION.t_shift)))


def unmasked_shares(total: float) -> NDArray[np.float64]:
    """How much of each codebook generation has unmasked, (8,), once it has `total` of all cells.

    It takes the cells of the highest confidence, less a penalty that grows with the book, and with Gumbel noise: of
    cells of one confidence, one whose score is lower by a temperature is taken e times as seldom.
    """
    rates, times, totals = _unmasking()
    found: NDArray[np.float64] = 1 - np.exp(-np.interp(total, totals, times) * rates)
    return found


@cache
def _unmasking() -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """How fast each codebook's cells go, (8,); points in time, and the share of all cells that is unmasked by then."""
    rates = np.exp(-np.arange(NUM_CODEBOOKS) * GENERATION.layer_penalty_factor / GENERATION.position_temperature)
    times = np.geomspace(1e-4, 1e6, 2_000)
    return rates, times, (1 - np.exp(-times[:, None] * rates)).mean(1)


def pack(documents: list[Document], phase: Phase) -> Batch:
    """Lay documents end to end; positions start at 0 in each."""
    text = np.zeros(phase.tokens, dtype=np.int32)
    audio = np.full((phase.frames, NUM_CODEBOOKS), MASK, dtype=np.int16)
    labels = np.full((phase.frames, NUM_CODEBOOKS), IGNORED, dtype=np.int16)
    targets = np.zeros(phase.frames, dtype=np.int32)
    order = np.zeros(phase.tokens, dtype=np.int32)
    num_text = num_audio = num_targets = row = 0
    for document in documents:
        prompt, heard, asked = len(document.prompt), len(document.reference), len(document.target)
        text[num_text : num_text + prompt] = document.prompt
        order[row : row + prompt] = np.arange(num_text, num_text + prompt)
        num_text, row = num_text + prompt, row + prompt
        audio[num_audio : num_audio + heard] = document.reference
        audio[num_audio + heard : num_audio + heard + asked] = np.where(document.masked, MASK, document.target)
        order[row : row + heard + asked] = phase.tokens + np.arange(num_audio, num_audio + heard + asked)
        num_audio, row = num_audio + heard + asked, row + heard + asked
        labels[num_targets : num_targets + asked] = np.where(document.masked, document.target, IGNORED)
        targets[num_targets : num_targets + asked] = np.arange(row - asked, row)
        num_targets += asked
    left = phase.tokens - row
    filling = [min(phase.longest, left - start) for start in range(0, left, phase.longest)]
    lengths = (*(document.num_rows for document in documents), *filling)
    offsets = np.full(phase.sequences + 1, phase.tokens, dtype=np.int32)
    offsets[: len(lengths) + 1] = np.cumsum([0, *lengths])
    positions = np.concatenate([np.arange(length, dtype=np.int32) for length in lengths])
    return Batch(
        text=torch.from_numpy(text),
        audio=torch.from_numpy(audio),
        order=torch.from_numpy(order),
        targets=torch.from_numpy(targets),
        labels=torch.from_numpy(labels),
        positions=torch.from_numpy(positions),
        offsets=torch.from_numpy(offsets),
        lengths=lengths,
    )


def batches(documents: Documents, first: int, processes: int, pin: bool) -> DataLoader[Batch]:
    """The batches from step `first` on, made ahead by other processes (0: here, when asked for)."""
    return DataLoader(
        documents,
        batch_size=None,
        sampler=range(first, len(documents)),
        num_workers=processes,
        pin_memory=pin,
        prefetch_factor=4 if processes else None,
        multiprocessing_context="spawn" if processes else None,
    )
