"""Batches that are got ahead of time are the same ones, and the thread that gets them ends with them."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from qat_tft.data.loading.prefetch import ahead, prefetched
from qat_tft.data.windows import Batch

SECONDS = 10.0
"""Far more than a thread needs to get an item."""


def as_it_is(number: int) -> int:
    return number


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("prefetch")]


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("length", [0, 1, 7])
def test_items_come_prepared_in_order_and_once(length, count):
    assert list(ahead(iter(range(length)), lambda number: number * number, count)) == [n * n for n in range(length)]
    assert threads() == []


def test_the_next_items_are_got_while_one_is_worked_on_and_no_more_than_those():
    got: list[int] = []
    third = threading.Event()

    def items() -> Iterator[int]:
        for number in range(10):
            got.append(number)
            if number == 2:
                third.set()
            yield number

    numbers = ahead(items(), as_it_is, 2)
    assert next(numbers) == 0
    assert third.wait(SECONDS)
    assert got == [0, 1, 2]
    numbers.close()
    assert threads() == []


def test_an_error_is_raised_in_its_item_s_place():
    def broken() -> Iterator[int]:
        yield 0
        yield 1
        raise ValueError("the third item")

    numbers = ahead(broken(), as_it_is)
    assert [next(numbers), next(numbers)] == [0, 1]
    with pytest.raises(ValueError, match="the third item"):
        next(numbers)
    assert threads() == []


def test_nothing_runs_ahead_for_the_cpu():
    batches = iter([Batch(*torch.zeros(5, 1))])
    assert prefetched(batches, torch.device("cpu")) is batches


def test_a_batch_for_a_device_of_its_own_is_pinned_and_stays_in_the_cpu_s_memory(monkeypatch):
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pinned.append(tensor) or tensor + 0)
    batch = Batch(*torch.randn(6, 3, 2, generator=torch.Generator().manual_seed(0)))
    (found,) = prefetched(iter([batch]), torch.device("cuda"))
    assert [one.data_ptr() for one in pinned] == [one.data_ptr() for one in batch]
    assert all(map(torch.equal, found, batch))
    assert all(one.device.type == "cpu" for one in found)
