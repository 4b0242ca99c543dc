"""Every model forecasts the same windows, scores are what they say, and what is kept is only used where it fits."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROUNDING = 1e-5
"""Rows are kept in single precision."""


@pytest.fixture
def script(benchmark_named):
    return benchmark_named("forecasts")


@pytest.fixture
def sides(script):
    names = ("sets", "rows", "scores", "simple", "kept", "options", "ours", "times")
    return SimpleNamespace(**{name: import_module(f"sides.forecast_{name}") for name in names})


def small_set(sides, **changes):
    values = {
        "time": "time",
        "target": "y",
        "series": ("shop",),
        "history": 3,
        "horizon": 2,
        "validation_from": "2020-01-11",
        "test_from": "2020-01-15",
        "test_until": "2020-01-21",
        "season": 2,
        "known_reals": ("price",),
        "known_categories": ("weather",),
        "known_cycles": {"slot": (1, 4)},
        "calendar": ("day_of_week",),
    }
    return sides.sets.ForecastSet("small", **{**values, **changes})


@pytest.fixture
def table():
    """Two series of different length, out of order; the second begins five days later."""
    days = {"b": range(22), "a": range(5, 22)}
    rows = [(shop, day) for shop, own in days.items() for day in reversed(own)]
    return pa.table(
        {
            "shop": [shop for shop, _ in rows],
            "time": pa.array([np.datetime64("2020-01-01", "us") + np.timedelta64(day, "D") for _, day in rows]),
            "y": [float((100 if shop == "a" else 0) + day) for shop, day in rows],
            "price": [day / 2 for _, day in rows],
            "weather": ["rain" if day % 3 else "sun" for _, day in rows],
            "slot": [day % 4 + 1 for _, day in rows],
        }
    )


@pytest.fixture
def read(sides, table, tmp_path):
    """Read the rows of a set that is changed so."""
    pq.write_table(table, tmp_path / "small.parquet")
    return lambda **changes: sides.rows.read_rows(small_set(sides, **changes), tmp_path)


def targets_of(rows, windows):
    return [(str(rows.columns["shop"][row]), *rows.target[row : row + 2].astype(int).tolist()) for row in windows]


def test_rows_stand_in_the_order_of_series_and_time_and_know_their_part(sides, read):
    rows = read()
    assert rows.starts.tolist() == [0, 17, 39]
    assert rows.target[[0, 16, 17, 38]].tolist() == [105, 121, 0, 21]
    assert rows.part[:17].tolist() == [0] * 5 + [1] * 4 + [2] * 6 + [3] * 2
    assert rows.step[[0, 16, 17]].tolist() == [0, 16, 0]


def test_a_window_belongs_to_the_part_that_holds_its_targets_and_may_look_back_beyond_it(sides, read):
    rows = read()
    found = {part: targets_of(rows, rows.windows(part)) for part in range(3)}
    assert found[sides.rows.VALIDATION] == [
        *[("a", day, day + 1) for day in (110, 111, 112)],
        *[("b", day, day + 1) for day in (10, 11, 12)],
    ]
    assert [one[1] for one in found[sides.rows.TEST]] == [*range(114, 119), *range(14, 19)]
    assert [one[1] for one in found[sides.rows.TRAINING]] == [108, *range(3, 9)]  # a history of its own series


def test_windows_inside_the_test_part_do_not_look_back_beyond_it(read):
    rows = read(inside=True)
    assert [one[1] for one in targets_of(rows, rows.scored)] == [117, 118, 17, 18]


def test_places_in_cycles_stand_on_a_circle_and_categories_become_columns(read):
    rows = read()
    angle = 2 * np.pi * (np.arange(22) % 4) / 4
    np.testing.assert_allclose(rows.columns["slot_sin"][17:], np.sin(angle), atol=ROUNDING)
    wednesday = 2 * np.pi * 2 / 7  # the first of January 2020
    assert rows.columns["calendar_day_of_week_cos"][17] == pytest.approx(np.cos(wednesday), abs=ROUNDING)
    assert rows.known[0] == "price"
    assert {*rows.known[1:]} == {
        f"{name}_{wave}" for name in ("slot", "calendar_day_of_week") for wave in ("sin", "cos")
    }
    assert rows.one_hot("weather")["weather_sun"][17:21].tolist() == [1, 0, 0, 1]


def test_windows_are_thinned_out_evenly_and_never_to_more_than_asked(sides):
    thinned = sides.rows.evenly(np.arange(1300), 640)
    assert thinned.tolist() == list(range(0, 1300, 3))
    assert sides.rows.evenly(np.arange(5), 640).tolist() == [0, 1, 2, 3, 4]


def test_a_score_is_the_loss_written_out(sides, read):
    rows = read()
    actual = rows.actual(rows.scored)
    quantiles = actual[..., None] + np.array([3.0, -1.0, 0.5])  # cross: put in order they are -1, 0.5, 3
    found = sides.scores.score(rows, quantiles)
    total = np.abs(actual).sum()
    losses = {"0.1": 0.1 * 1.0, "0.5": 0.5 * 0.5, "0.9": 0.1 * 3.0}
    for level, loss in losses.items():
        assert found.q_risk[level] == pytest.approx(2 * loss * actual.size / total)
    assert found.coverage == {"0.1": 0.0, "0.5": 1.0, "0.9": 1.0}
    assert (found.mae, found.windows) == (0.5, 10)
    assert found.mase == pytest.approx(0.5 / 2)  # over a season of 2 the target changes by 2
    assert found.risk == pytest.approx(np.mean(list(found.q_risk.values())))


def test_forecasts_of_other_windows_or_that_are_not_numbers_have_no_score(sides, read):
    rows = read()
    with pytest.raises(ValueError, match="shape"):
        sides.scores.score(rows, np.zeros((3, 2, 3)))
    with pytest.raises(ValueError, match="not finite"):
        sides.scores.score(rows, np.full((10, 2, 3), np.nan))


def test_naive_forecasts_repeat_what_is_known_and_add_quantiles_of_the_change(sides, read):
    rows = read()
    last, seasonal = sides.simple.naive(rows, 1), sides.simple.naive(rows, 2)
    origin = rows.target[rows.scored - 1].astype(float)
    np.testing.assert_array_equal(last[..., 1], np.stack([origin, origin], axis=1))
    np.testing.assert_array_equal(last[..., 2], np.stack([origin + 1, origin + 2], axis=1))  # a day adds 1 always
    np.testing.assert_array_equal(seasonal[..., 1], np.stack([origin - 1, origin], axis=1))
    np.testing.assert_array_equal(seasonal[..., 0], seasonal[..., 1] + 2)


def test_ridge_finds_a_linear_law_and_its_weights_are_those_of_weighted_least_squares(sides, read):
    rows = read()
    found = sides.simple.ridge(rows)
    assert np.abs(found[..., 1] - rows.actual(rows.scored)).max() < 0.5  # a line goes on, but for the penalty

    windows = rows.windows(sides.rows.TRAINING)
    known = sides.simple.histories(rows, windows)
    wanted = (rows.actual(windows) - known.mean) / known.deviation
    importance = known.deviation / np.sqrt(np.mean(known.deviation**2))
    penalty = np.sqrt(7.0) * np.eye(4)[:3]
    stacked = np.vstack([known.values * importance, penalty])
    expected = np.linalg.lstsq(stacked, np.vstack([wanted * importance, np.zeros((3, 2))]), rcond=None)[0]
    np.testing.assert_allclose(sides.simple.fitted(known, wanted, 7.0), expected, atol=1e-8)


def score_of(sides, risk, **changes):
    levels = dict.fromkeys(sides.scores.LEVELS, risk)
    return replace(sides.scores.Score(levels, levels, mae=2.0, mase=1.0, windows=7), **changes)


def found_on(script, sides, *, peers=(0.4, 0.8), ours=(0.2, 0.4)):
    simple = {"last_value": score_of(sides, 0.6), "ridge": score_of(sides, 0.5)}
    models = tuple(
        {
            "fp32": score_of(sides, risk),
            "ptq": score_of(sides, 2 * risk),
            "qat": score_of(sides, risk),
            "int8": score_of(sides, 1.5 * risk),
        }
        for risk in ours
    )
    kept = {
        name: sides.kept.Kept(score_of(sides, risk), "1.2.3", 60.0, 1.0)
        for name, risk in zip("xy", peers, strict=False)
    }
    return script.SetScores(simple, models, kept)


def test_ratios_are_ours_quantized_over_the_best_of_the_others(script, sides):
    found = {"one": found_on(script, sides), "two": found_on(script, sides, peers=(0.1, 0.075))}
    result = script.figures(found, sides.times.TimeRatios(1.25, {"b1": 1.5}))
    assert result["ratio_to_best_peer"] == {"one": pytest.approx(0.75), "two": pytest.approx(4.0)}
    assert result["geometric_mean_ratio_to_peers"] == pytest.approx(3.0**0.5)
    assert result["ratio_to_best_simple"]["one"] == pytest.approx(0.6)
    assert result["int8_ratio"]["one"] == {level: pytest.approx(1.5) for level in ("0.1", "0.5", "0.9")}
    assert result["q_risk"]["one"]["qat"]["0.5"] == pytest.approx(0.3)
    assert result["spread"]["one"]["ptq"] == [pytest.approx(0.4), pytest.approx(0.8)]
    assert result["step_time_ratio"] == 1.25
    text = "\n".join([*script.model_tables(found), *script.figure_table(result)])
    assert "| x 1.2.3 | 0.4000 |" in text
    assert "| q-risk, ours (QAT) / best peer, two | `ratio_to_best_peer` | 4 |" in text
    json.dumps({**result, "peers": script.peers_of(found)})


def test_without_peers_their_ratios_are_null_and_the_tables_still_print(script, sides):
    found = {"one": found_on(script, sides, peers=())}
    result = script.figures(found)
    assert result["ratio_to_best_peer"] == {"one": None}
    assert result["geometric_mean_ratio_to_peers"] is result["file_time_ratio"] is None
    assert sum("not measured" in line for line in script.figure_table(result)) == 4
    assert any("| ridge |" in line for line in script.model_tables(found))


@pytest.fixture
def keeping(sides, read, tmp_path, monkeypatch):
    """A keeper with pretended environments of one version, and the trainings that it asked for."""
    read()  # writes the file
    asked = []

    def trained(wanted, python):
        asked.append(wanted)
        return sides.kept.Kept(score_of(sides, 0.25), python.name, 60.0, 1.0)

    monkeypatch.setattr(sides.kept, "trained", trained)
    monkeypatch.setattr(sides.kept, "_python", lambda environments, peer: environments)
    monkeypatch.setattr(sides.kept, "_version", lambda python, peer: python.name)

    def keeper(version):
        return sides.kept.Keeper(tmp_path / "kept", None if version is None else tmp_path / version)

    return SimpleNamespace(keeper=keeper, asked=asked, wanted=sides.kept.Wanted("darts", small_set(sides), tmp_path))


def test_a_score_is_kept_and_comes_back_without_training_or_environments(keeping):
    first = keeping.keeper("1.0.0").result(keeping.wanted)
    assert keeping.keeper("1.0.0").result(keeping.wanted) == first
    assert keeping.keeper(None).result(keeping.wanted) == first
    assert len(keeping.asked) == 1


def test_without_environments_the_newest_version_counts(keeping):
    for version in ("1.9.0", "1.10.0", "1.2.0"):
        keeping.keeper(version).result(keeping.wanted)
    assert keeping.keeper(None).result(keeping.wanted).version == "1.10.0"


@pytest.mark.parametrize("change", ["version", "set", "steps", "seed", "data"])
def test_what_a_result_depends_on_is_its_key(sides, keeping, change):
    keeping.keeper("1.0.0").result(keeping.wanted)
    others = {
        "set": {"of": small_set(sides, hidden=8)},
        "steps": {"steps": 7},
        "seed": {"seed": 1},
    }
    if change == "data":
        file = keeping.wanted.data / "small.parquet"
        pq.write_table(pq.read_table(file).slice(1), file)
    wanted = replace(keeping.wanted, **others.get(change, {}))
    assert change == "version" or keeping.keeper(None).result(wanted) is None
    keeping.keeper("2.0.0" if change == "version" else "1.0.0").result(wanted)
    assert len(keeping.asked) == 2


def test_our_runs_get_the_set_as_options_and_as_many_steps_as_the_peers(sides, tmp_path):
    one = sides.sets.FORECAST_SETS["ett_h1"]
    options = sides.ours.set_options(one, tmp_path)
    assert options[options.index("--test-until") + 1] == "2018-02-21"
    assert "--schema" not in options, "its roles are among the options"
    beverages = sides.ours.set_options(sides.sets.FORECAST_SETS["stallion_beverages"], tmp_path)
    assert beverages[beverages.index("--schema") + 1].endswith("examples/stallion_beverages.toml")
    assert "--test-until" not in sides.ours.set_options(sides.sets.FORECAST_SETS["bike_sharing_hourly"], tmp_path)
    assert {*sides.options.OURS} == {*sides.sets.FORECAST_SETS}
    with pytest.raises(ValueError, match="550 training steps; the peers make 600"):
        sides.options.Ours(epochs=9)


def test_windows_that_a_run_does_not_have_are_noticed(sides):
    assert sides.ours.places_of(np.array([4, 9]), np.array([2, 4, 9])).tolist() == [1, 2]
    for missing in (3, 10):
        with pytest.raises(ValueError, match="none of the run's test windows"):
            sides.ours.places_of(np.array([4, missing]), np.array([2, 4, 9]))


def test_unknown_sets_and_missing_files_and_environments_are_named(script, sides, tmp_path):
    with pytest.raises(ValueError, match="there is no set weather"):
        script.check_sets(["weather"], tmp_path)
    with pytest.raises(FileNotFoundError, match=r"holds no ett_h1\.parquet"):
        script.check_sets(["ett_h1"], tmp_path)
    with pytest.raises(FileNotFoundError, match="no environment of pytorch-forecasting"):
        sides.kept.Keeper(tmp_path, tmp_path)


def test_without_data_nothing_is_measured(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["forecasts.py"])
    script.main()
    assert "without --data" in capsys.readouterr().out


def test_every_kept_score_is_of_a_set_as_it_is_defined_now(script, sides):
    for file in script.KEPT.glob("*.json"):
        value = json.loads(file.read_text())
        one = sides.sets.FORECAST_SETS[value["key"]["set"]["name"]]
        assert value["key"]["set"] == json.loads(json.dumps(asdict(one))), file.name
