"""Ranges of windows give the same rows and series as a list of all of them."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qat_tft.data.window_index import WindowIndex

RANGES = st.lists(st.tuples(st.integers(0, 50), st.integers(-3, 20)), min_size=1, max_size=8)


@settings(max_examples=100, deadline=None)
@given(ranges=RANGES, stride=st.integers(1, 5))
def test_every_window_of_every_range_stands_once_and_in_order(ranges: list[tuple[int, int]], stride: int) -> None:
    naive = [
        (row, series) for series, (begin, length) in enumerate(ranges) for row in range(begin, begin + length, stride)
    ]
    begin = torch.tensor([begin for begin, _ in ranges])
    index = WindowIndex.of(begin, begin + torch.tensor([n for _, n in ranges]), torch.arange(len(ranges)), stride)
    windows = torch.arange(len(index))
    assert list(zip(index.rows(windows).tolist(), index.series_of(windows).tolist(), strict=True)) == naive


def test_windows_may_be_asked_for_in_any_order_and_more_than_once() -> None:
    index = WindowIndex.of(torch.tensor([0, 100]), torch.tensor([3, 102]), torch.tensor([4, 7]))
    asked = torch.tensor([4, 0, 4, 2])
    assert index.rows(asked).tolist() == [101, 0, 101, 2]
    assert index.series_of(asked).tolist() == [7, 4, 7, 4]
