"""What is learnt before training comes from training rows alone; scaling undoes itself and spares categories."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from qat_tft.data.panel import Panel
from qat_tft.data.preprocessing import Preprocessing, ScalingMode
from qat_tft.data.reading.parquet import read_panel
from qat_tft.data.scaling import Affine, Scaling
from qat_tft.data.split import Split
from qat_tft.errors import DataError, SchemaError
from qat_tft.schema import Columns, GroupSize, Schema

Write = Callable[..., Path]
Cities = Callable[..., dict[str, Any]]

ROUNDING = 1e-4  # float32 after a subtraction and a division of numbers of order 10


@pytest.fixture
def panel(write: Write, cities: Cities, city_schema: Schema) -> Panel:
    return read_panel(write(cities(30)), city_schema)


def split_at(panel: Panel, row: int) -> Split:
    """Training is the first ``row`` rows of each of the two cities."""
    return Split(int(panel.time[row]), int(panel.time[row]) + 1)


@pytest.mark.parametrize("mode", list(ScalingMode))
def test_nothing_after_the_cut_changes_what_is_learnt(
    write: Write, cities: Cities, city_schema: Schema, mode: ScalingMode
) -> None:
    columns, cut = cities(30), 20
    clean = read_panel(write(columns), city_schema)
    for row in [*range(cut, 30), *range(30 + cut, 60)]:
        columns["y"][row] += 1e4
        columns["wind"][row] -= 1e3
        columns["sky"][row] = "storm"
    spoilt = read_panel(write(columns), city_schema)
    first = Preprocessing.fit(clean, split_at(clean, cut), mode)
    second = Preprocessing.fit(spoilt, split_at(spoilt, cut), mode)
    assert first == second
    assert "storm" not in second.vocabularies["sky"].values


def test_a_change_before_the_cut_does_change_what_is_learnt(write: Write, cities: Cities, city_schema: Schema) -> None:
    columns = cities(30)
    clean = read_panel(write(columns), city_schema)
    columns["y"][3] += 1e4
    spoilt = read_panel(write(columns), city_schema)
    assert Preprocessing.fit(clean, split_at(clean, 20)) != Preprocessing.fit(spoilt, split_at(spoilt, 20))


def test_statistics_equal_those_of_numpy_over_training_rows(panel: Panel, cities: Cities) -> None:
    found = Preprocessing.fit(panel, split_at(panel, 20), "series").statistics["y"]
    y = np.asarray(cities(30)["y"], dtype=np.float32).astype(float).reshape(2, 30)[:, :20]
    assert found.center == pytest.approx([y.mean(), *y.mean(axis=1)])
    assert found.scale == pytest.approx([y.std(), *y.std(axis=1)])


def test_a_static_column_is_measured_over_series_not_rows(write: Write, cities: Cities, city_schema: Schema) -> None:
    columns = cities(30)
    fewer = {
        name: values[:30] + values[50:] if isinstance(values, list) else np.r_[values[:30], values[50:]]
        for name, values in columns.items()
    }
    panel = read_panel(write(fewer), city_schema)
    found = Preprocessing.fit(panel, Split(int(panel.time.max()) + 1, int(panel.time.max()) + 1), "series")
    assert found.statistics["height"].center == (175.0,)
    assert found.statistics["height"].scale == (75.0,)


@pytest.mark.parametrize("mode", list(ScalingMode))
def test_scaled_training_rows_have_mean_0_and_deviation_1_and_codes_are_untouched(
    panel: Panel, mode: ScalingMode
) -> None:
    fitted = Preprocessing.fit(panel, split_at(panel, 30 - 1), mode)
    encoded, scaling = fitted.encode(panel), fitted.scaling()
    history = encoded.values.view(2, 30, -1)
    known = [panel.schema.group("historical").columns.index(name) for name in ("hour_sin", "hour")]
    static, scaled, future = scaling.scale_inputs(encoded.static, history, history[..., known], encoded.series_code)
    y = scaled[:, :29, 0].double()
    means = y.mean(dim=1) if mode is ScalingMode.SERIES else y.mean()
    assert torch.as_tensor(means).abs().max() < ROUNDING
    deviations = y.std(dim=1, correction=0) if mode is ScalingMode.SERIES else y.std(correction=0)
    assert (torch.as_tensor(deviations) - 1).abs().max() < ROUNDING
    assert torch.equal(scaled[..., 3:], history[..., 3:])
    assert torch.equal(future[..., 1], history[..., known[1]])
    assert torch.equal(future[..., 0], scaled[..., known[0]])
    assert torch.equal(static[:, 1], encoded.static[:, 1])


@pytest.mark.parametrize("mode", list(ScalingMode))
def test_unscaling_undoes_scaling_of_the_target_for_every_series_and_quantile(panel: Panel, mode: ScalingMode) -> None:
    scaling = Preprocessing.fit(panel, split_at(panel, 20), mode).scaling()
    target, series = torch.randn(3, 5) * 20, torch.tensor([0, 1, 2])
    scaled = scaling.scale_target(target, series)
    back = scaling.unscale_target(torch.stack([scaled, scaled + 1], dim=-1), series)
    assert (back[..., 0] - target).abs().max() < ROUNDING
    step = scaling.historical_scale[series, 0] if mode is ScalingMode.SERIES else scaling.historical_scale[:, 0]
    assert (back[..., 1] - back[..., 0] - step[:, None]).abs().max() < ROUNDING


def test_the_target_is_scaled_as_the_first_column_of_the_history(panel: Panel) -> None:
    fitted = Preprocessing.fit(panel, split_at(panel, 20), "series")
    encoded, scaling = fitted.encode(panel), fitted.scaling()
    history = encoded.values.view(2, 30, -1)
    _, scaled, _ = scaling(encoded.static, history, history[..., :0], encoded.series_code)
    assert torch.equal(scaled[..., 0], scaling.scale_target(history[..., 0], encoded.series_code))


def test_a_column_constant_in_training_is_not_blown_up(write: Write) -> None:
    schema = Schema(time="time", target="y", observed=Columns(real=("flat", "nearly")))
    columns = {
        "time": list(range(10)),
        "y": np.arange(10.0),
        "flat": [7.0] * 8 + [9.0] * 2,
        "nearly": [1000.0 + (row % 2) * 1e-4 for row in range(8)] + [1003.0] * 2,
    }
    panel = read_panel(write(columns), schema)
    statistics = Preprocessing.fit(panel, Split(8, 9)).statistics
    assert statistics["flat"].scale == statistics["nearly"].scale == (1.0,)


def test_a_series_that_stood_still_in_training_is_scaled_by_all_series(write: Write) -> None:
    schema = Schema(time="time", target="y", id=("shop",))
    columns = {
        "shop": ["a"] * 5 + ["b"] * 5,
        "time": [0, 1, 2, 3, 4] * 2,
        "y": [5.0, 5.0, 5.0, 5.0, 80.0, 0.0, 100.0, 0.0, 100.0, 0.0],
    }
    found = Preprocessing.fit(read_panel(write(columns), schema), Split(4, 5), "series").statistics["y"]
    assert found.center[1] == 5.0
    assert found.scale[1] == found.scale[0] > 1


def scaled_targets(write: Write, series: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """The targets of these series, each scaled by its own statistics of all rows but the last."""
    rows = len(next(iter(series.values())))
    columns = {
        "t": np.tile(np.arange(rows), len(series)),
        "id": np.repeat(list(series), rows),
        "y": np.concatenate(list(series.values())),
    }
    panel = read_panel(write(columns), Schema(time="t", target="y", id=("id",)))
    fitted = Preprocessing.fit(panel, Split(rows - 1, rows), ScalingMode.SERIES)
    encoded = fitted.encode(panel)
    scaled = fitted.scaling().scale_target(encoded.target.view(len(series), rows), encoded.series_code)
    return {name: scaled[place] for place, (name,) in enumerate(encoded.series_ids)}


def test_series_of_any_size_in_one_panel_move_by_their_own_deviation(write: Write) -> None:
    wave = np.sin(np.arange(40.0))
    scaled = scaled_targets(write, {"large": 1e12 * wave, "usual": 500 + 20 * wave, "small": 1 + wave})
    torch.testing.assert_close(scaled["large"], scaled["usual"], rtol=0, atol=ROUNDING)
    torch.testing.assert_close(scaled["large"], scaled["small"], rtol=0, atol=ROUNDING)
    assert 0.9 < float(scaled["small"][:-1].std()) < 1.1


def test_what_rounding_leaves_is_no_movement(write: Write) -> None:
    wave = np.sin(np.arange(40.0))
    scaled = scaled_targets(write, {"moving": wave, "rounding": 1e-17 * wave, "denormal": 1e-42 * wave})
    assert float(scaled["rounding"].abs().max()) < ROUNDING
    assert float(scaled["denormal"].abs().max()) < ROUNDING


def test_a_series_that_is_zero_but_for_its_last_row_is_scaled_by_all(write: Write) -> None:
    wave, last = np.sin(np.arange(40.0)), np.append(np.zeros(39), 3.0)
    scaled = scaled_targets(write, {"moving": wave, "zero": last, "negative zero": -last})
    for name, end in (("zero", 3.0), ("negative zero", -3.0)):
        assert set(scaled[name][:-1].tolist()) == {0.0}
        assert float(scaled[name][-1]) == pytest.approx(end / wave[:-1].std() / np.sqrt(1 / 3), rel=0.05)


def test_a_series_without_training_rows_has_code_0_is_scaled_by_all_and_is_noted(
    write: Write, cities: Cities, city_schema: Schema
) -> None:
    columns = {name: list(values)[:30] + list(values)[50:] for name, values in cities(30).items()}
    panel = read_panel(write(columns), city_schema)
    fitted = Preprocessing.fit(panel, split_at(panel, 20), "series")
    encoded = fitted.encode(panel)
    assert encoded.series_code.tolist() == [1, 0]
    assert encoded.static[:, 1].tolist() == [1, 0]
    assert any("1 series have no training row" in note and "city=B" in note for note in encoded.notes)
    assert fitted.statistics["y"].center[0] == fitted.statistics["y"].center[1]


def test_a_category_first_seen_after_training_gets_code_0_and_one_counted_note(
    write: Write, cities: Cities, city_schema: Schema
) -> None:
    columns = cities(30)
    columns["sky"] = ["a", "b"] * 10 + ["c"] * 10 + ["a", "b"] * 15
    panel = read_panel(write(columns), city_schema)
    encoded = Preprocessing.fit(panel, split_at(panel, 20)).encode(panel)
    place = panel.schema.group("historical").columns.index("sky")
    assert encoded.gather(torch.arange(60))[:, place].tolist() == [1, 2] * 10 + [0] * 10 + [1, 2] * 15
    notes = [note for note in encoded.notes if "'sky'" in note]
    assert notes == ["column 'sky' holds 1 value that no training row has, read as unknown in 10 rows: c."]


def test_encoding_leaves_the_panel_as_it_was(panel: Panel) -> None:
    before = panel.values.clone()
    Preprocessing.fit(panel, split_at(panel, 20)).encode(panel)
    assert torch.equal(panel.values, before)
    assert not panel.encoded


def test_encoding_a_file_whose_dictionary_differs_gives_the_same_codes(
    write: Write, cities: Cities, city_schema: Schema
) -> None:
    columns = cities(30)
    panel = read_panel(write(columns), city_schema)
    fitted = Preprocessing.fit(panel, split_at(panel, 30 - 1))
    tail = read_panel(write({name: list(values)[57:] for name, values in columns.items()}), city_schema)
    first, second = fitted.encode(tail), fitted.encode(panel)
    assert torch.equal(first.gather(torch.arange(3)), second.gather(torch.arange(57, 60)))


def test_without_category_columns_the_buffer_is_shared_not_copied(write: Write) -> None:
    panel = read_panel(write({"time": [0, 1, 2], "y": [1.0, 2.0, 4.0]}), Schema(time="time", target="y"))
    encoded = Preprocessing.fit(panel, Split(2, 2)).encode(panel)
    assert encoded.values.data_ptr() == panel.values.data_ptr()


def test_group_sizes_follow_the_schema_and_the_vocabularies(panel: Panel) -> None:
    fitted = Preprocessing.fit(panel, split_at(panel, 29))
    assert fitted.group_sizes(panel.schema) == (GroupSize(1, (3,)), GroupSize(3, (4, 25)), GroupSize(1, (25,)))


def test_another_schema_than_the_fitted_one_is_refused(panel: Panel) -> None:
    fitted = Preprocessing.fit(panel, split_at(panel, 20))
    with pytest.raises(SchemaError, match="not the one that the preprocessing was fitted for"):
        fitted.group_sizes(Schema(time="time", target="y"))


@pytest.mark.parametrize("mode", list(ScalingMode))
def test_preprocessing_survives_json_to_the_bit(panel: Panel, mode: ScalingMode) -> None:
    fitted = Preprocessing.fit(panel, split_at(panel, 20), mode)
    read = Preprocessing.from_json(json.loads(json.dumps(fitted.to_json())))
    assert read == fitted
    for name, buffer in fitted.scaling().state_dict().items():
        assert torch.equal(buffer, read.scaling().state_dict()[name])


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda value: value.pop("statistics"), id="a part is missing"),
        pytest.param(lambda value: value["statistics"].pop("y"), id="a column is missing"),
        pytest.param(lambda value: value.update(format=99), id="a later format"),
        pytest.param(lambda value: value["statistics"]["y"].update(scale=[0.0]), id="a scale of 0"),
        pytest.param(lambda value: value["statistics"]["y"].update(scale=[float("nan")]), id="a scale of NaN"),
        pytest.param(lambda value: value.update(vocabularies=3), id="a wrong type"),
    ],
)
def test_spoilt_json_is_a_value_error_and_nothing_else(panel: Panel, spoil: Callable[[Any], Any]) -> None:
    value = Preprocessing.fit(panel, split_at(panel, 20)).to_json()
    spoil(value)
    with pytest.raises(ValueError, match=r"."):
        Preprocessing.from_json(value)


def test_a_cut_before_the_first_row_is_refused(panel: Panel) -> None:
    first = int(panel.time.min())
    with pytest.raises(DataError, match="there is no row before 2020-01-01T00:00:00, where validation begins"):
        Preprocessing.fit(panel, Split(first, first))


@pytest.mark.parametrize("per_series", [False, True])
def test_scaling_is_exported_by_torch_export_and_gives_the_same(panel: Panel, per_series: bool) -> None:
    scaling = Preprocessing.fit(panel, split_at(panel, 20), "series" if per_series else "global").scaling()
    inputs = (torch.randn(4, 2), torch.randn(4, 7, 5), torch.randn(4, 3, 2), torch.tensor([0, 1, 2, 1]))
    batch = torch.export.Dim("batch")
    exported = torch.export.export(scaling, inputs, dynamic_shapes=[{0: batch}] * 4)
    larger = (torch.randn(9, 2), torch.randn(9, 7, 5), torch.randn(9, 3, 2), torch.randint(0, 3, (9,)))
    for ours, theirs in zip(scaling(*larger), exported.module()(*larger), strict=True):
        assert torch.equal(ours, theirs)


def test_scaling_has_buffers_and_no_parameters() -> None:
    one = Affine(torch.zeros(1, 2), torch.ones(1, 2))
    scaling = Scaling(one, one, one)
    assert list(scaling.parameters()) == []
    assert len(scaling.state_dict()) == 6


@pytest.mark.parametrize(
    ("affine", "message"),
    [
        pytest.param(Affine(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]])), "scales positive", id="zero"),
        pytest.param(Affine(torch.zeros(1, 2), torch.tensor([[1.0, torch.nan]])), "scales positive", id="NaN"),
        pytest.param(Affine(torch.zeros(2, 2), torch.ones(2, 2)), r"must both be \[1, columns\]", id="rows"),
    ],
)
def test_scaling_refuses_statistics_that_cannot_be(affine: Affine, message: str) -> None:
    good = Affine(torch.zeros(1, 2), torch.ones(1, 2))
    with pytest.raises(ValueError, match=message):
        Scaling(good, affine, good)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda value: value["series"].pop(), id="one series fewer"),
        pytest.param(lambda value: value["series"].append(value["series"][0]), id="a series twice"),
        pytest.param(lambda value: value.update(mode="global"), id="other mode"),
        pytest.param(lambda value: value["preparation"].update(step=["fortnight", 1]), id="unit of the step"),
        pytest.param(lambda value: value["preparation"].update(step=["clock", 0]), id="size of the step"),
    ],
)
def test_preprocessing_whose_parts_do_not_go_together_is_refused(panel: Panel, change: Callable[[Any], Any]) -> None:
    split = Split.by_fraction(panel, 0.2, 0.2)
    value = json.loads(json.dumps(Preprocessing.fit(panel, split, ScalingMode.SERIES).to_json()))
    change(value)
    with pytest.raises(ValueError):  # noqa: PT011 - of several places
        Preprocessing.from_json(value)
