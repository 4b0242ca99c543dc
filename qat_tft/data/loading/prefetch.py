"""Batches gathered while the device computes, in memory that it copies from by itself."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from qat_tft.data.windows import Batch
from qat_tft.device import pinning_for

Item = TypeVar("Item")

_AHEAD = 2
"""Batches that are gathered or wait while one is worked on: the next, and one more for a step that is shorter."""


def prefetched(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """Return the same batches, ready for a device that computes beside the CPU: gathered in a thread, and pinned.

    They stay in the CPU's memory, where they can be looked at without waiting for the device. `Batch.to` copies a
    pinned batch, or some of its windows, while the CPU goes on. For the CPU itself they are returned as they come: it
    has no time to spare for a thread.

    Args:
        batches: nobody else may iterate over them.
        device: what will compute with them.
    """
    pin = pinning_for(device)
    return batches if pin is None else ahead(batches, lambda batch: batch.each(pin))


def ahead(items: Iterator[Item], prepare: Callable[[Item], Item], count: int = _AHEAD) -> Iterator[Item]:
    """Yield what `prepare` makes of each item, in order; a thread gets and prepares up to `count` items ahead.

    An error of the iterator or of `prepare` is raised in its item's place. The thread ends with the iterator that is
    returned, be it that it is dropped before its end.
    """
    thread = ThreadPoolExecutor(1, thread_name_prefix="prefetch")

    def get() -> tuple[Item, ...]:
        return tuple(prepare(item) for item in _next(items))

    try:
        waiting = deque(thread.submit(get) for _ in range(count))
        while found := waiting.popleft().result():
            waiting.append(thread.submit(get))
            yield found[0]
    finally:
        thread.shutdown(cancel_futures=True)


def _next(items: Iterator[Item]) -> Iterator[Item]:
    """Yield the next item, if there is one."""
    for item in items:
        yield item
        return
