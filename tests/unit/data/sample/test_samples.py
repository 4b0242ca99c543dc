"""Sample data: the embedded set is what its notice says, simulated bars are labelled and have the shape."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from qat_tft.config.run import DEMO
from qat_tft.data.reading.parquet import read_panel
from qat_tft.data.sample.indicators import WARM_UP, indicators
from qat_tft.data.sample.samples import (
    describe_sample,
    embedded_rentals,
    schema_path,
    simulated_schema,
    write_sample,
)
from qat_tft.data.sample.simulation import CONTRACTS, simulate
from qat_tft.errors import SampleDataError
from qat_tft.schema import Schema

LIMIT_BYTES = 300_000
HOUR = 3_600_000_000_000


def test_the_embedded_set_is_small_and_is_one_series_of_17379_hours() -> None:
    path, schema = embedded_rentals()
    panel = read_panel(path, schema)
    assert path.stat().st_size < LIMIT_BYTES
    assert panel.lengths.tolist() == [17_379]
    assert panel.notes == (
        "the time step is 1 hour, and 75 gaps leave out 165 steps, the largest 36 steps until 2012-10-30T13:00:00 in "
        "the only series; the next row is taken for the next step (data.gaps = ignore).",
    )


def test_the_schema_uses_every_column_and_none_that_is_a_part_of_the_target() -> None:
    path, schema = embedded_rentals()
    assert set(pq.read_schema(path).names) == set(schema.used_columns)
    assert {"casual", "registered"}.isdisjoint(schema.used_columns)
    assert not schema.observed.names


def test_the_notice_of_the_embedded_set_gives_credit_licence_changes_and_gaps() -> None:
    path, schema = embedded_rentals()
    notice = " ".join((path.parent / "NOTICE").read_text(encoding="utf-8").split())
    assert path.name in notice
    assert "Hadi Fanaee-T and Joao Gama" in notice
    assert "doi:10.1007/s13748-013-0040-3" in notice
    assert "https://creativecommons.org/licenses/by/4.0/" in notice
    assert "Left out: casual and registered" in notice
    time = read_panel(path, schema).time
    steps = time.diff() // HOUR
    assert f"The {int((steps - 1).sum())} hours without a rental have no row" in notice
    longest = int(steps.argmax())
    begin = datetime.fromtimestamp((int(time[longest]) + HOUR) / 1e9, UTC)
    assert f"{int(steps[longest]) - 1} hours from {begin:%Y-%m-%d %H:%M}" in notice


def test_calendar_columns_of_the_embedded_set_follow_from_its_time() -> None:
    rows = pq.read_table(embedded_rentals()[0]).to_pylist()
    for row in rows:
        assert (row["hour"], row["month"]) == (row["time"].hour, row["time"].month)
        assert row["weekday"] == row["time"].isoweekday() % 7
        assert row["working_day"] == (row["weekday"] in range(1, 6) and not row["holiday"])


def test_every_category_of_the_demos_later_parts_occurs_in_its_training_part() -> None:
    path, schema = embedded_rentals()
    table = pq.read_table(path)
    training = table["time"].to_numpy() < np.datetime64(DEMO["data"]["validation_from"])
    for column in schema.category_columns:
        values = table[column].to_numpy()
        assert set(values[~training]) <= set(values[training])


def test_simulated_bars_have_5_static_210_observed_and_10_known_columns(tmp_path: Path) -> None:
    path = write_sample("tft225", 403, tmp_path / "bars.parquet")
    schema = Schema.read(schema_path(path))
    assert [group.size for group in schema.groups] == [5, 220, 10]
    assert len(schema.observed.real) + 1 == 210  # the target is one of the 210
    assert schema == simulated_schema()
    panel = read_panel(path, schema)
    assert panel.rows == 403
    assert panel.lengths.tolist() == [101, 101, 101, 100]


def test_simulated_bars_say_that_they_are_simulated_in_the_file_and_in_the_schema(tmp_path: Path) -> None:
    path = write_sample("tft225", 8, tmp_path / "bars.parquet")
    assert pq.read_metadata(path).metadata[b"simulated"] == b"true"
    assert "SIMULATED" in schema_path(path).read_text(encoding="utf-8").splitlines()[0]
    assert describe_sample(path).simulated


def test_the_same_seed_simulates_the_same_bars_and_another_seed_others(tmp_path: Path) -> None:
    first, same, other = (
        pq.read_table(write_sample("tft225", 40, tmp_path / f"{name}.parquet", seed=seed))
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert first.equals(same)
    assert not first["close"].equals(other["close"])


def test_simulated_prices_are_consistent_and_volume_is_positive() -> None:
    for bars in simulate(4_000, seed=3):
        found = bars.observed
        assert (found["low"] <= np.minimum(found["open"], bars.close)).all()
        assert (found["high"] >= np.maximum(found["open"], bars.close)).all()
        assert (found["volume"] >= 1).all()
        assert (bars.close > 0).all()
        assert len(np.unique(bars.time)) == len(bars.time)


def test_simulated_returns_have_fat_tails_and_clustered_volatility() -> None:
    returns = next(simulate(60_000, seed=4)).observed["return_lag_0"]
    scaled = (returns - returns.mean()) / returns.std()
    assert (scaled**4).mean() > 4  # 3 for a normal distribution
    size = np.abs(scaled)
    assert np.corrcoef(size[1:], size[:-1])[0, 1] > 0.1


def test_indicators_equal_plain_loops_over_the_bars() -> None:
    random = np.random.default_rng(0)
    count, at, window = WARM_UP + 60, WARM_UP + 40, 13
    close = 100 * np.exp(np.cumsum(random.normal(0, 0.01, count)))
    open_ = np.concatenate([[100.0], close[:-1]])
    high, low = np.maximum(open_, close) * 1.001, np.minimum(open_, close) * 0.999
    volume = random.integers(1, 100, count).astype(float)
    found = {name: values[at] for name, values in indicators(open_, high, low, close, volume).items()}
    assert len(found) == 209

    returns = [float(np.log(close[row] / close[row - 1])) for row in range(1, count)]
    last = returns[at - window : at]
    prices = close[at - window + 1 : at + 1]
    gains = sum(max(one, 0) for one in last)
    average = close[0]
    for price in close[1 : at + 1]:
        average = average + 2 / (window + 1) * (price - average)
    assert found["return_lag_4"] == pytest.approx(returns[at - 5])
    assert found["momentum_13"] == pytest.approx(np.log(close[at] / close[at - window]))
    assert found["sma_gap_13"] == pytest.approx(close[at] / (sum(prices) / window) - 1)
    assert found["ema_gap_13"] == pytest.approx(close[at] / average - 1)
    assert found["volatility_13"] == pytest.approx(np.std(last))
    assert found["rsi_13"] == pytest.approx(100 * gains / sum(map(abs, last)))
    assert found["stochastic_13"] == pytest.approx(
        100 * (close[at] - min(low[at - 12 : at + 1])) / (max(high[at - 12 : at + 1]) - min(low[at - 12 : at + 1]))
    )
    assert found["return_autocorrelation_13"] == pytest.approx(
        np.corrcoef(last, returns[at - window - 1 : at - 1])[0, 1]
    )
    third = np.mean((np.array(last) - np.mean(last)) ** 3) / np.std(last) ** 3
    assert found["skewness_13"] == pytest.approx(third)


def test_indicators_look_back_only() -> None:
    bars = np.abs(np.random.default_rng(0).normal(100, 1, (5, WARM_UP + 50)))
    whole, cut = indicators(*bars), indicators(*bars[:, :-20])
    for name, values in cut.items():
        np.testing.assert_array_equal(values, whole[name][:-20], err_msg=name)


def test_the_rentals_preset_is_a_copy_with_its_schema(tmp_path: Path) -> None:
    path = write_sample("rentals", None, tmp_path / "r.parquet")
    data, schema = embedded_rentals()
    assert path.read_bytes() == data.read_bytes()
    assert Schema.read(schema_path(path)) == schema


def test_existing_files_are_kept_unless_overwriting_is_allowed(tmp_path: Path) -> None:
    path = tmp_path / "bars.parquet"
    path.write_text("precious")
    with pytest.raises(SampleDataError, match="the file already exists"):
        write_sample("tft225", 8, path)
    assert path.read_text() == "precious"
    assert describe_sample(write_sample("tft225", 8, path, overwrite=True)).rows == 8


@pytest.mark.parametrize(
    ("preset", "rows", "message"),
    [
        ("stocks", 10, "there is no preset 'stocks'.*tft225, rentals"),
        ("tft225", len(CONTRACTS) - 1, "3 rows are too few.*at least 4"),
        ("rentals", 10, "Leave the number of rows out"),
    ],
)
def test_samples_that_cannot_be_are_refused(tmp_path: Path, preset: str, rows: int, message: str) -> None:
    with pytest.raises(SampleDataError, match=message):
        write_sample(preset, rows, tmp_path / "x.parquet")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SampleDataError, match=r"cannot be written: No such file.*Choose a folder that exists"):
        write_sample("tft225", 8, tmp_path / "missing" / "x.parquet")


def test_nothing_half_written_is_left_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("qat_tft.data.sample.samples._table", fail)
    with pytest.raises(SampleDataError, match="No space left on device"):
        write_sample("tft225", 8, tmp_path / "x.parquet")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("preset", ["tft225", "rentals"])
def test_a_full_disk_leaves_both_files_as_they_were(tmp_path: Path, full_disk: Any, preset: str) -> None:
    out = tmp_path / "x.parquet"
    write_sample("tft225", 8, out)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with full_disk(1000), pytest.raises(SampleDataError, match="the file cannot be written"):
        write_sample(preset, None, out, overwrite=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
