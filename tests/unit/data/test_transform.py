"""Transforms of a positive target: undone by their inverse, in order, and refused where they cannot be made."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from qat_tft.data.panel import Panel
from qat_tft.data.preparation import Preparation
from qat_tft.data.preprocessing import Preprocessing
from qat_tft.data.reading.parquet import read_panel
from qat_tft.data.split import Split
from qat_tft.data.transform import TargetTransform, softplus_inverse
from qat_tft.errors import ConfigError, DataError
from qat_tft.schema import Columns, Schema

TRANSFORMS = [transform for transform in TargetTransform if transform is not TargetTransform.NONE]
ROUNDING = 2e-6  # of float32 through a logarithm and back, relative to 1 or the value
SCHEMA = Schema(time="t", target="y", id=("s",), observed=Columns(real=("wind",)))


def file_of(write: Callable[..., Path], target: list[float | None]) -> Path:
    rows = len(target) // 2
    columns = {"s": ["a"] * rows + ["b"] * rows, "t": list(range(rows)) * 2, "y": target}
    return write(columns | {"wind": [float(row % 5) - 2 for row in range(2 * rows)]})


def growth(rows: int = 20) -> list[float]:
    return [1.1**row for row in range(rows)] + [50 + 3.0 * row for row in range(rows)]


@pytest.fixture
def panel(write: Callable[..., Path]) -> Panel:
    return read_panel(file_of(write, growth()), SCHEMA)


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_a_transform_is_undone_from_tiny_to_large_values(transform: TargetTransform) -> None:
    values = torch.logspace(-12, 12, 200)
    back = transform.invert(transform.apply(values))
    tolerance = ROUNDING * 30 * values if transform is TargetTransform.LOG else ROUNDING * (1 + 30 * values)
    assert ((back - values).abs() <= tolerance).all()
    assert (transform.apply(values).diff() >= 0).all()


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_a_missing_target_stays_missing(transform: TargetTransform) -> None:
    assert transform.apply(torch.tensor([torch.nan, 1.0])).isnan().tolist() == [True, False]


def test_the_inverse_of_softplus_is_exact_on_both_sides_of_its_seam() -> None:
    values = torch.cat([torch.logspace(-30, 2, 400), torch.linspace(0.09, 0.11, 100)])
    expected = values.double().expm1().log()
    assert torch.allclose(softplus_inverse(values).double(), expected, rtol=ROUNDING, atol=ROUNDING)
    assert torch.isfinite(softplus_inverse(torch.tensor([1e30]))).all()


@pytest.mark.parametrize("mode", ["series", "global"])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_scaling_standardizes_the_transformed_target_and_takes_quantiles_back(
    panel: Panel, mode: str, transform: TargetTransform
) -> None:
    preprocessing = Preprocessing.fit(panel, Split(20, 21), mode, transform)
    scaling, encoded = preprocessing.scaling(), preprocessing.encode(panel)
    target, series = panel.target.view(2, 20), encoded.series_code
    scaled = scaling.scale_target(target, series)
    of = [scaled] if mode == "global" else scaled.unbind(0)
    for values in of:
        assert values.mean().item() == pytest.approx(0, abs=1e-5)
        assert values.std(correction=0).item() == pytest.approx(1, abs=1e-5)
    history = torch.stack([target, torch.ones_like(target)], -1)
    _, historical, _ = scaling.scale_inputs(torch.zeros(2, 0), history, torch.zeros(2, 20, 0), series)
    assert torch.equal(historical[..., 0], scaled)
    back = scaling.unscale_target(torch.stack([scaled - 1, scaled, scaled + 1], -1), series)
    assert torch.allclose(back[..., 1], target, rtol=1e-5)
    assert (back.diff(dim=-1) > 0).all()
    assert (back > transform.above).all()


def test_fitting_reads_back_the_transform(panel: Panel) -> None:
    fitted = Preprocessing.fit(panel, Split(12, 16), "series", "log")
    again = Preprocessing.from_json(fitted.to_json())
    assert again == fitted
    assert again.scaling().transform is TargetTransform.LOG
    old = {key: value for key, value in fitted.to_json().items() if key != "target_transform"}
    assert Preprocessing.from_json(old).transform is TargetTransform.NONE


@pytest.mark.parametrize(
    ("transform", "value", "allowed"),
    [("log", 0.0, "numbers above 0"), ("softplus", -2.5, "numbers above 0"), ("log1p", -1.0, "numbers above -1")],
)
@pytest.mark.parametrize("row", [3, 18], ids=["training row", "later row"])
def test_a_target_that_cannot_be_transformed_is_refused_with_time_and_series(
    write: Callable[..., Path], transform: str, value: float, allowed: str, row: int
) -> None:
    target = growth()
    target[20 + row] = value
    panel = read_panel(file_of(write, target), SCHEMA)
    with pytest.raises(DataError, match=rf"'y' is {value:g} at {row} \(s=b\).*{allowed}"):
        Preprocessing.fit(panel, Split(12, 16), "series", transform)


def test_a_file_to_forecast_is_held_to_the_same_numbers(write: Callable[..., Path], panel: Panel) -> None:
    fitted = Preprocessing.fit(panel, Split(12, 16), "series", "log")
    with pytest.raises(DataError, match="log cannot take"):
        fitted.encode(read_panel(file_of(write, [-1.0, *growth()[1:]]), SCHEMA))


@pytest.mark.parametrize("mode", ["series", "global"])
def test_a_missing_target_is_filled_with_the_mean_of_the_transformed_values_taken_back(
    write: Callable[..., Path], mode: str
) -> None:
    target: list[float | None] = [None, 1.0, 4.0, None] * 5 + [2.0, 8.0, None, 2.0] * 5
    panel = read_panel(file_of(write, target), SCHEMA, Preparation(missing=("y=mean",)))
    encoded = Preprocessing.fit(panel, Split(20, 21), mode, "log").encode(panel)
    filled = encoded.gather(torch.tensor([0, 22]))[:, 0].tolist()
    expected = [2.0, (2 * 8 * 2) ** (1 / 3)] if mode == "series" else [(4.0**5 * 32.0**5) ** (1 / 25)] * 2
    assert filled == pytest.approx(expected)


@pytest.mark.parametrize("transform", ["log", "softplus"])
def test_zero_cannot_stand_for_a_missing_target_that_is_transformed(write: Callable[..., Path], transform: str) -> None:
    panel = read_panel(file_of(write, [None, *growth()[1:]]), SCHEMA, Preparation(missing=("y=zero",)))
    with pytest.raises(ConfigError, match=r"replaces missing targets with zero.*log1p"):
        Preprocessing.fit(panel, Split(12, 16), "series", transform)
    Preprocessing.fit(panel, Split(12, 16), "series", "log1p")
