"""What a captured step reads of its batch: one int32 block on the device, filled on the host when membership changes.

A graph holds addresses, so every table has its place for ever; how much of it counts is in `sizes`.
"""

from __future__ import annotations

from collections.abc import ItemsView, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from omnivoice.chunk_run import ChunkRun
from omnivoice.parameters import BOUNDS, NUM_CODEBOOKS
from omnivoice.philox import split_seed

MAX_STEPS = int(BOUNDS["num_step"].high)
NOWHERE = -1
FEWEST_QUERIES = 8
"""Positions of a sequence that an item of attention covers, at least."""

_ALIGNMENT = 4
"""Tables start at multiples of 16 bytes, which kernels may then rely on."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """Packed rows and requests that the tables have room for."""

    rows: int
    requests: int

    def items(self, rows: int, queries: int) -> int:
        """Most items of attention, of `queries` positions each, that `rows` packed rows make.

        Beside the full ones there is a part-filled one for each sequence.
        """
        return rows // queries + 2 * self.requests


class Tables:
    """Named views of one int32 block, on the host or on the device.

    R stands for target rows, T for packed rows, B for requests. Float parameters lie among them bit by bit.
    """

    def __init__(self, capacity: Capacity, device: torch.device) -> None:
        rows, requests = capacity.rows, capacity.requests
        shapes: dict[str, tuple[int, ...]] = {
            "sizes": (4,),  # packed rows, target rows, items, requests
            "first_target": (requests,),
            "frames": (requests,),
            "chunk": (requests,),
            "step": (requests,),
            "key": (requests, 2),
            "params": (4, requests),  # float32: guidance, layer penalty, position and class temperature
            "counts": (requests, MAX_STEPS + 1),
            "items": (capacity.items(rows, FEWEST_QUERIES), 3),
            "row_target": (rows,),
            "position": (rows,),
            "cond_row": (rows,),
            "uncond_row": (rows,),
            "target_request": (rows,),
            "target_frame": (rows,),
            "source": (rows,),
            "row_ids": (rows, NUM_CODEBOOKS),
        }
        starts, end = {}, 0
        for name, shape in shapes.items():
            starts[name] = end
            end += -(-int(np.prod(shape)) // _ALIGNMENT) * _ALIGNMENT
        # Pinned, so that the copy to the device waits for nothing.
        pinned = device.type == "cpu" and torch.cuda.is_available()
        self.block = torch.zeros(end, dtype=torch.int32, device=device, pin_memory=pinned)
        self._views = {
            name: self.block[start : start + int(np.prod(shapes[name]))].view(shapes[name])
            for name, start in starts.items()
        }

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._views[name]

    def items(self) -> ItemsView[str, torch.Tensor]:
        return self._views.items()

    def size(self, index: int) -> torch.Tensor:
        """One of the four sizes, as an int32 (1,) that a kernel reads."""
        return self._views["sizes"][index : index + 1]

    def params(self, index: int) -> torch.Tensor:
        """One of the float32 parameters (B,)."""
        return self._views["params"].view(torch.float32)[index]


class HostTables:
    """The host's copy: NumPy views over pinned memory, and the rules that fill them."""

    def __init__(self, capacity: Capacity) -> None:
        self.tables = Tables(capacity, torch.device("cpu"))
        self._views: dict[str, NDArray[np.int32]] = {name: table.numpy() for name, table in self.tables.items()}
        self._params: NDArray[np.float32] = self._views["params"].view(np.float32)

    def fill(self, runs: Sequence[ChunkRun], places: dict[int, int], queries: int) -> int:
        """Lay out `runs`; return the number of target rows.

        `places` says where, in the codes of the batch before, those of a run begin (by `id`); a run that is not there
        begins masked. `queries` is what an item of attention covers.
        """
        view = self._views
        row = target = item = 0
        for index, run in enumerate(runs):
            params, frames = run.params, run.frames
            view["first_target"][index], view["frames"][index] = target, frames
            view["chunk"][index], view["step"][index] = run.chunk, run.step
            view["key"][index] = np.array(split_seed(run.seed), dtype=np.uint32).view(np.int32)
            self._params[:, index] = (
                params.guidance_scale,
                params.layer_penalty_factor,
                params.position_temperature,
                params.class_temperature,
            )
            view["counts"][index] = 0
            view["counts"][index, : len(run.schedule)] = run.schedule

            targets = slice(target, target + frames)
            numbers = np.arange(target, target + frames)
            view["target_request"][targets] = index
            view["target_frame"][targets] = np.arange(frames)
            place = places.get(id(run), NOWHERE)
            view["source"][targets] = NOWHERE if place == NOWHERE else np.arange(place, place + frames)

            prompt = run.prompt_rows
            view["row_ids"][row : row + len(prompt)] = prompt
            view["row_target"][row : row + len(prompt)] = NOWHERE
            start = row + len(prompt)
            view["row_target"][start : start + frames] = numbers
            view["cond_row"][targets] = np.arange(start, start + frames)
            item = self._add_items(item, row, run.cond_length, queries)
            row = start + frames
            if run.uncond_length:
                view["row_target"][row : row + frames] = numbers
                view["uncond_row"][targets] = np.arange(row, row + frames)
                item = self._add_items(item, row, frames, queries)
                row += frames
            else:
                view["uncond_row"][targets] = NOWHERE
            target += frames
        view["sizes"][:] = row, target, item, len(runs)
        return target

    def _add_items(self, item: int, start: int, length: int, queries: int) -> int:
        self._views["position"][start : start + length] = np.arange(length)
        offsets = np.arange(0, length, queries)
        end = item + len(offsets)
        self._views["items"][item:end, 0] = start
        self._views["items"][item:end, 1] = length
        self._views["items"][item:end, 2] = offsets
        return end
