"""Batches in an order that seed and epoch alone decide, so that training can stop and go on anywhere.

Several processes that train together share every batch: each gathers its own windows of it.
"""

import multiprocessing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from qat_tft.data.loading.shuffle import Permutation
from qat_tft.data.windows import Batch, Mask, Windows
from qat_tft.device import visible_cores

_HELD = 2**20
"""Most windows whose order is held in memory."""


class Draw(NamedTuple):
    """What a process gathers of one batch.

    Attributes:
        indices: of the windows, int64.
        mask: draws what ``unknown_rate`` replaces.
        idle: whether there is none for this process, and its window does not count.
    """

    indices: torch.Tensor
    mask: Mask
    idle: bool = False


@dataclass(frozen=True)
class Batches:
    """The batches of one epoch for one process; iterating again gives the same ones.

    See ``batches`` for the attributes.
    """

    windows: Windows
    batch_size: int
    shuffle: bool = False
    seed: int = 0
    epoch: int = 0
    skip: int = 0
    rank: int = 0
    world: int = 1
    workers: int = 0

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.world < 1 or self.workers < 0 or self.skip < 0:
            raise ValueError("batch_size and world are at least 1, workers and skip at least 0")
        if not 0 <= self.rank < self.world:
            raise ValueError(f"rank {self.rank} is not one of {self.world} processes")

    def __len__(self) -> int:
        """Number of batches that iterating gives."""
        return max(0, -(-len(self.windows) // self.batch_size) - self.skip)

    def __iter__(self) -> Iterator[Batch]:
        """Gather one batch after the other, in ``workers`` processes where there are any."""
        plan = self.plan()
        if not self.workers:
            for draw in plan:
                yield _gathered(self.windows, draw)
            return
        # Workers that are forked inherit the panel's buffer or its mapped files; only batches travel.
        yield from DataLoader(
            _Gathering(self.windows),
            batch_size=None,
            sampler=plan,
            num_workers=min(self.workers, visible_cores()),
            collate_fn=_as_it_is,
            multiprocessing_context=_SHARING,
        )

    def plan(self) -> Iterator[Draw]:
        """What each batch consists of, without gathering any."""
        order, count = self._order(), len(self.windows)
        for number in range(self.skip, -(-count // self.batch_size)):
            first = number * self.batch_size
            places = torch.arange(first, min(first + self.batch_size, count))
            indices = places if order is None else order[places]
            own = indices.tensor_split(self.world)[self.rank]
            before = sum(map(len, indices.tensor_split(self.world)[: self.rank]))
            mask = Mask(mixed_seed(self.seed, self.epoch, number, 0), before, len(indices))
            yield Draw(own, mask) if len(own) else Draw(indices[:1], mask._replace(first=0), idle=True)

    def _order(self) -> torch.Tensor | Permutation | None:
        count = len(self.windows)
        if not self.shuffle:
            return None
        seed = mixed_seed(self.seed, self.epoch)
        if count > _HELD:
            return Permutation(count, seed)
        return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


def batches(
    windows: Windows,
    batch_size: int,
    *,
    shuffle: bool = False,
    seed: int = 0,
    epoch: int = 0,
    skip: int = 0,
    rank: int = 0,
    world: int = 1,
    workers: int = 0,
) -> Batches:
    """The batches of one epoch.

    Args:
        windows: what to draw from.
        batch_size: windows per batch, of all processes together; the last batch may be smaller.
        shuffle: a new order per epoch; without it the windows come in order. Either way each comes once.
        seed: with ``epoch`` it decides the order and what ``unknown_rate`` replaces.
        epoch: number of the pass over the data.
        skip: batches to leave out at the start, to go on where an epoch was interrupted.
        rank: number of this process, which gathers its share of each batch: a run of its windows, as long as the
            others' or shorter by one. Where that is none, it gets a window of the batch without its targets.
        world: number of processes.
        workers: processes that gather, at most one for each core that this process may use; the batches are the same
            for any number.
    """
    return Batches(windows, batch_size, shuffle, seed, epoch, skip, rank, world, workers)


_SHARING = "fork" if "fork" in multiprocessing.get_all_start_methods() else None


class _Gathering(Dataset[Batch]):
    """Lets a DataLoader ask for whole batches."""

    def __init__(self, windows: Windows) -> None:
        self.windows = windows

    def __getitem__(self, draw: Draw) -> Batch:
        return _gathered(self.windows, draw)


def _gathered(windows: Windows, draw: Draw) -> Batch:
    batch = windows.gather(draw.indices, draw.mask)
    return batch._replace(target=torch.full_like(batch.target, torch.nan)) if draw.idle else batch


def _as_it_is(batch: Any) -> Any:
    return batch


def mixed_seed(*numbers: int) -> int:
    """Return one well mixed seed below 2**63 from several numbers."""
    return int(np.random.SeedSequence([number % 2**64 for number in numbers]).generate_state(1, np.uint64)[0] >> 1)
