"""Every way in which the benchmark writes a table is read as the same panel, and it tells a difference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from qat_tft.data.panel import Panel
from qat_tft.data.preparation import Preparation
from qat_tft.data.reading.parquet import read_panel


@pytest.fixture
def faults(benchmark_named):
    return benchmark_named("faults.representations")


def content(panel: Panel) -> tuple:
    """What a model sees of a panel, categories by their texts."""
    values = [panel.values[:, place].tolist() for place in range(panel.values.shape[1])]
    history = panel.schema.group("historical")
    for place, column in enumerate(history.category, start=len(history.real)):
        values[place] = [panel.dictionaries[column][int(code)] for code in values[place]]
    return panel.series_ids, panel.time.tolist(), values


@pytest.mark.parametrize("place", range(3))
def test_every_writing_of_a_table_is_the_same_panel(faults, tmp_path: Path, place: int) -> None:
    case, random = faults.cases()[place], np.random.default_rng(place)
    ways = dict(faults.writings(case))
    path = faults.write(case.table, ways.pop("the plain way"), tmp_path / "plain", random)
    plain = read_panel(path, case.schema, Preparation(calendar=case.calendar))
    expected = content(plain)
    assert len(ways) > 20
    unlike = []
    for name, writing in ways.items():
        path = faults.write(case.table, writing, tmp_path / name, random)
        if content(read_panel(path, case.schema, plain.preparation)) != expected:
            unlike.append(name)
    assert unlike == []


def test_another_value_is_told_from_another_representation(faults, tmp_path: Path, monkeypatch) -> None:
    found = iter([{"q0.5": [1.0]}, {"q0.5": [1.0]}, {"q0.5": [np.nextafter(1.0, 2.0)]}, *[{"q0.5": [1.0]}] * 10])
    monkeypatch.setattr(faults, "_model", lambda case, home: home / "model")
    monkeypatch.setattr(faults, "_forecast", lambda model, path: next(found))
    monkeypatch.setattr(faults, "cases", lambda: (faults._steps(),))
    tally = faults.measure(tmp_path, 0, 3 / len(list(faults.writings(faults._steps()))))
    assert tally.to_json() == {"tried": 3, "different": 1}
    assert tally.failures == ["steps, time as int16: other q0.5"]
