"""One packed batch and its step: embed, run the backbone once over all branches, unmask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

import torch

from omnivoice.chunk_run import ChunkRun
from omnivoice.model.backbone import Backbone
from omnivoice.packing import Packing
from omnivoice.philox import split_seed
from omnivoice.sampling import RowParams, draw_tokens, guide, pick_cells, position_scores, token_log_probs

CPU_TILE_ROWS = 512


class Tile(NamedTuple):
    """Target rows and codebooks whose cells are scored at a time."""

    rows: slice
    codebooks: slice


class Batch:
    """Runs packed together. Membership is fixed: when a run joins or leaves, a new batch is made from the runs.

    T is the number of packed rows, R that of target rows; everything a step reads lies on the device.
    """

    def __init__(self, backbone: Backbone, runs: Sequence[ChunkRun]) -> None:
        self.runs = tuple(runs)
        self._backbone = backbone
        self._device = backbone.heads.device
        lengths = [length for run in runs for length in (run.cond_length, run.uncond_length)]
        self._packing = Packing.of(lengths, self._device)
        self._codes = torch.cat([self._stored_codes(run) for run in runs])
        self._step = self._tensor([run.step for run in runs])
        schedules = [run.schedule for run in runs]
        longest = max(map(len, schedules))
        self._counts = self._tensor([[*counts, *[0] * (longest - len(counts))] for counts in schedules])
        self._rows = self._row_params()
        self._draws_classes = any(run.params.class_temperature > 0 for run in runs)
        self._place_targets()
        self._tiles = self._cut_tiles()
        self._prompts = self._embed_prompts()

    @torch.inference_mode()
    def step(self) -> None:
        """Unmask the next cells of every run. On an exception nothing has changed, so the step can be repeated."""
        guided = self._guide(self._backbone.forward(self._embed(), self._packing))
        step = self._step[self._rows.segment]
        confidence = torch.empty_like(self._codes, dtype=self._backbone.score_dtype)
        tokens = torch.empty_like(self._codes)
        team = self._backbone.team

        def score(part: int, meet: Callable[[], None]) -> None:
            for tile in self._tiles[part :: team.size]:
                confidence[tile], tokens[tile] = self._choose_tokens(guided, tile, step)

        team.run(score)
        # A cell whose scores are not finite keeps the mask: the request that owns it fails when it ends, alone.
        tokens = tokens.masked_fill(~confidence.isfinite(), self._mask_id)
        scores = position_scores(confidence, self._rows, step)
        scores = scores.masked_fill(self._codes != self._mask_id, -torch.inf)
        counts = self._counts.gather(1, self._step[:, None])[:, 0]
        chosen = pick_cells(scores, self._rows.segment, counts)
        self._codes = torch.where(chosen, tokens, self._codes)
        self._step = self._step + 1

    def store(self) -> None:
        """Hand the codes back to the runs, where they outlive this batch."""
        for run, codes in zip(self.runs, torch.split(self._codes, [run.frames for run in self.runs]), strict=True):
            run.codes = codes

    def _stored_codes(self, run: ChunkRun) -> torch.Tensor:
        if run.codes is not None:
            return run.codes.long()
        return torch.full((run.frames, self._backbone.config.num_codebooks), self._mask_id, device=self._device)

    @cached_property
    def _mask_id(self) -> int:
        return self._backbone.config.audio_mask_id

    def _tensor(self, values: Sequence[object], dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=self._device)

    def _row_params(self) -> RowParams:
        frames = self._tensor([run.frames for run in self.runs])
        scores = self._backbone.score_dtype

        def rows(value: Callable[[ChunkRun], float], dtype: torch.dtype = scores) -> torch.Tensor:
            return self._tensor([value(run) for run in self.runs], dtype).repeat_interleave(frames)

        return RowParams(
            segment=torch.arange(len(self.runs), device=self._device).repeat_interleave(frames),
            frame=torch.cat([torch.arange(run.frames) for run in self.runs]).to(self._device),
            chunk=rows(lambda run: run.chunk, torch.int64),
            key_low=rows(lambda run: split_seed(run.seed)[0], torch.int64),
            key_high=rows(lambda run: split_seed(run.seed)[1], torch.int64),
            guidance_scale=rows(lambda run: run.params.guidance_scale),
            layer_penalty_factor=rows(lambda run: run.params.layer_penalty_factor),
            position_temperature=rows(lambda run: run.params.position_temperature),
            class_temperature=rows(lambda run: run.params.class_temperature),
        )

    def _place_targets(self) -> None:
        """Find the packed rows of each target frame in both branches, and which target rows have a second branch."""
        cond, uncond, guided = [], [], []
        start = target = 0
        for run in self.runs:
            end = start + run.cond_length
            cond.append(torch.arange(end - run.frames, end))
            if run.uncond_length:
                uncond.append(torch.arange(end, end + run.frames))
                guided.append(torch.arange(target, target + run.frames))
            start = end + run.uncond_length
            target += run.frames
        empty = torch.zeros(0, dtype=torch.int64)
        self._cond_rows = torch.cat(cond).to(self._device)
        self._uncond_rows = torch.cat([*uncond, empty]).to(self._device)
        self._guided = torch.cat([*guided, empty]).to(self._device)

    def _embed_prompts(self) -> torch.Tensor:
        """Return (T, hidden) with the rows that no step changes filled in: text and reference voices."""
        hidden = self._backbone.heads.new_zeros(self._packing.num_rows, self._backbone.config.hidden_size)
        start = 0
        for run in self.runs:
            text_end = start + len(run.prompt_ids)
            hidden[start:text_end] = self._backbone.embed_text(self._tensor(run.prompt_ids))
            if run.voice_codes is not None:
                voice = torch.from_numpy(run.voice_codes.T).to(self._device)
                hidden[text_end : text_end + len(voice)] = self._backbone.embed_audio(voice)
            start += run.num_tokens
        return hidden

    def _embed(self) -> torch.Tensor:
        hidden = self._prompts.clone()
        targets = self._backbone.embed_audio(self._codes)
        hidden[self._cond_rows] = targets
        hidden[self._uncond_rows] = targets[self._guided]
        return hidden

    def _guide(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return (R, hidden): the target rows with guidance applied. The heads are linear: it may come before them."""
        cond, uncond = hidden[self._cond_rows], hidden[self._uncond_rows]
        if len(uncond) < len(cond):
            uncond = torch.zeros_like(cond).index_copy(0, self._guided, uncond)
        return guide(cond, uncond, self._rows.guidance_scale).to(hidden.dtype)

    def _choose_tokens(self, guided: torch.Tensor, tile: Tile, step: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the largest log-probability and the token of each of the tile's cells."""
        logits = self._backbone.logits(guided[tile.rows], tile.codebooks)
        log_probs = token_log_probs(logits, self._mask_id)
        confidence, tokens = log_probs.max(dim=-1)
        if self._draws_classes:
            rows = self._rows.at(tile.rows)
            tokens = draw_tokens(log_probs, tokens, rows, step[tile.rows], first_codebook=tile.codebooks.start)
        return confidence, tokens

    def _cut_tiles(self) -> list[Tile]:
        """Cut the cells into what the heads and the scoring see at a time.

        A GPU takes all in one go. On a CPU the logits of a whole batch fall out of the caches, and every fresh
        megabyte is paid in page faults, while a head's weights stay: a codebook of some hundred rows at a time.
        """
        num_rows, num_codebooks = self._codes.shape
        is_cpu = self._device.type == "cpu"
        rows, codebooks = (CPU_TILE_ROWS, 1) if is_cpu else (num_rows, num_codebooks)
        return [
            Tile(slice(row, row + rows), slice(codebook, codebook + codebooks))
            for codebook in range(0, num_codebooks, codebooks)
            for row in range(0, num_rows, rows)
        ]
