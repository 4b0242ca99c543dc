"""Moments merged block by block equal those of numpy over all rows at once."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qat_tft.data import panel as panels
from qat_tft.data.moments import Moments, training_blocks
from qat_tft.data.panel import Panel
from qat_tft.schema import Columns, Schema

ROUNDING = 1e-9  # float64, after sums in another order
CANCELLATION = 1e-6  # of a deviation among numbers of up to 1e6
NUMBERS = st.floats(-1e6, 1e6, width=32) | st.just(float("nan"))


def panel_of(series: list[list[tuple[float, float]]]) -> Panel:
    rows = [row for one in series for row in one]
    starts = torch.tensor([0, *np.cumsum([len(one) for one in series]).tolist()])
    return Panel(
        schema=Schema(time="t", target="y", id=("s",), observed=Columns(real=("x",))),
        values=torch.tensor(rows),
        static=torch.zeros(len(series), 0),
        time=torch.cat([torch.arange(len(one)) for one in series]),
        series_start=starts,
        series_ids=[(str(place),) for place in range(len(series))],
        series_code=torch.zeros(len(series), dtype=torch.int64),
    )


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    series=st.lists(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=9), min_size=1, max_size=5),
    block=st.integers(1, 12),
    before=st.integers(0, 9),
)
def test_moments_do_not_depend_on_the_blocks(
    monkeypatch: pytest.MonkeyPatch, series: list[list[tuple[float, float]]], block: int, before: int
) -> None:
    panel = panel_of(series)
    ends = panel.series_start[:-1] + panel.lengths.clamp(max=before)
    monkeypatch.setattr(panels, "_BLOCK_VALUES", block)
    found = Moments.zeros(len(series), 2)
    for owner, values in training_blocks(panel, ends):
        found.add(owner, values.astype(np.float64))
    trained = [one[:before] for one in series]
    for place, rows_of in enumerate([*trained, [row for rows in trained for row in rows]]):
        rows = np.array(rows_of, np.float64).reshape(-1, 2)
        moments, at = (found, place) if place < len(series) else (found.over_all(), 0)
        for column in range(2):
            there = rows[~np.isnan(rows[:, column]), column]
            assert moments.count[at, column] == len(there)
            if len(there):
                assert moments.mean[at, column] == pytest.approx(there.mean(), rel=ROUNDING, abs=ROUNDING)
                assert moments.deviation[at, column] == pytest.approx(there.std(), rel=CANCELLATION, abs=CANCELLATION)
