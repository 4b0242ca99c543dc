"""Batches in an order that seed and epoch alone decide, so that training can stop and go on anywhere."""

import multiprocessing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from qat_tft.data.shuffle import Permutation
from qat_tft.data.windows import Batch, Windows
from qat_tft.device import visible_cores

_HELD = 2**20
"""Most windows whose order is held in memory."""


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
        return max(0, -(-self._share() // self.batch_size) - self.skip)

    def __iter__(self) -> Iterator[Batch]:
        """Gather one batch after the other, in ``workers`` processes where there are any."""
        plan = self.plan()
        if not self.workers:
            for indices, mask_seed in plan:
                yield self.windows.gather(indices, mask_seed)
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

    def plan(self) -> Iterator[tuple[torch.Tensor, int]]:
        """Window indices and mask seed of each batch, without gathering any."""
        order, share = self._order(), self._share()
        for number in range(self.skip, -(-share // self.batch_size)):
            first = number * self.batch_size
            places = torch.arange(first, min(first + self.batch_size, share)) * self.world + self.rank
            # Processes that train together must take equally many steps: the first windows fill the last round.
            places %= len(self.windows)
            yield places if order is None else order[places], self._mask_seed(number)

    def _order(self) -> torch.Tensor | Permutation | None:
        count = len(self.windows)
        if not self.shuffle:
            return None
        seed = _mixed(self.seed, self.epoch)
        if count > _HELD:
            return Permutation(count, seed)
        return torch.randperm(count, generator=torch.Generator().manual_seed(seed))

    def _share(self) -> int:
        count = len(self.windows)
        return -(-count // self.world) if self.shuffle else len(range(self.rank, count, self.world))

    def _mask_seed(self, number: int) -> int:
        return _mixed(self.seed, self.epoch, number, self.rank)


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
        batch_size: windows per batch and process; the last batch may be smaller.
        shuffle: a new order per epoch; every window once, and with several processes a few twice so that all
            have equally many. Without it the windows come in order and each once.
        seed: with ``epoch`` it decides the order and what ``unknown_rate`` replaces.
        epoch: number of the pass over the data.
        skip: batches to leave out at the start, to go on where an epoch was interrupted.
        rank: number of this process.
        world: number of processes.
        workers: processes that gather, at most one for each core that this process may use; the batches are the same
            for any number.
    """
    return Batches(windows, batch_size, shuffle, seed, epoch, skip, rank, world, workers)


_SHARING = "fork" if "fork" in multiprocessing.get_all_start_methods() else None


class _Gathering(Dataset[Batch]):
    """Lets a DataLoader ask for whole batches by key."""

    def __init__(self, windows: Windows) -> None:
        self.windows = windows

    def __getitem__(self, key: tuple[torch.Tensor, int]) -> Batch:
        return self.windows.gather(*key)


def _as_it_is(batch: Any) -> Any:
    return batch


def _mixed(*numbers: int) -> int:
    """One well mixed seed below 2**63 from several numbers."""
    return int(np.random.SeedSequence([number % 2**64 for number in numbers]).generate_state(1, np.uint64)[0] >> 1)
