import numpy as np
import pytest
import torch

from qat_tft.data.windows import Batch
from qat_tft.errors import DataError
from qat_tft.export.build.contract import RawForecaster, example_inputs
from qat_tft.export.inference.session import ForecastSession
from qat_tft.export.metadata import ModelMetadata
from qat_tft.export.verify.compare import window_inputs
from qat_tft.runs.folder import RunFolder

# Two float32 evaluations of one formula in another order; forecasts here are about 50.
ROUNDING = 1e-4


@pytest.fixture
def file(exported_run: RunFolder) -> ForecastSession:
    return ForecastSession(exported_run.onnx_file("fp32"))


@pytest.fixture
def forecaster(exported_run: RunFolder, file: ForecastSession) -> RawForecaster:
    scaling = exported_run.load_preprocessing().scaling()
    return RawForecaster(exported_run.load_fp32_model(), scaling, file.metadata).eval()


def by_hand(run: RunFolder, windows: Batch) -> torch.Tensor:
    """Scale, forecast, unscale: what the trainer does to a batch."""
    scaling = run.load_preprocessing().scaling()
    scaled = scaling.scale_inputs(windows.static, windows.historical, windows.future, windows.series)
    return scaling.unscale_target(run.load_fp32_model()(*scaled).quantiles, windows.series)


@torch.no_grad()
def test_raw_windows_give_what_scaling_and_model_give_by_hand(exported_run, file, forecaster) -> None:
    windows = exported_run.load_check_windows()
    inputs = window_inputs(windows, torch.arange(len(windows.target)), file.metadata)
    raw = forecaster(*(torch.from_numpy(inputs[spec.name]) for spec in file.inputs))
    assert torch.equal(raw, by_hand(exported_run, windows))
    assert np.allclose(file.forecast(inputs), raw.numpy(), atol=ROUNDING)


@torch.no_grad()
@pytest.mark.parametrize("code", [-1, 3, 2**40], ids=["negative", "just beyond", "huge"])
@pytest.mark.parametrize("name", ["static_category", "historical_category", "future_category", "series"])
def test_a_code_out_of_range_counts_as_unknown_in_torch_and_in_the_file(
    exported_run, file, forecaster, name: str, code: int
) -> None:
    windows = exported_run.load_check_windows()
    unknown = window_inputs(windows, torch.arange(2), file.metadata)
    unknown[name] = np.zeros_like(unknown[name])
    outside = {**unknown, name: np.full_like(unknown[name], code)}
    answers = [
        forecaster(*(torch.from_numpy(inputs[spec.name]) for spec in file.inputs)) for inputs in (unknown, outside)
    ]
    assert torch.equal(*answers)
    assert np.array_equal(file.forecast(unknown), file.forecast(outside))


def test_an_unknown_category_is_another_forecast_than_a_known_one(exported_run, file) -> None:
    known = window_inputs(exported_run.load_check_windows(), torch.arange(2), file.metadata)
    unknown = {**known, "static_category": np.zeros_like(known["static_category"])}
    assert not np.array_equal(file.forecast(known), file.forecast(unknown))


def test_made_up_inputs_have_the_shapes_of_the_file(file: ForecastSession) -> None:
    for spec, tensor in zip(file.inputs, example_inputs(file.inputs, 2), strict=True):
        assert tuple(tensor.shape) == (2, *spec.shape[1:])
        assert str(tensor.dtype) == f"torch.{spec.dtype}"


def test_a_category_code_that_is_not_finite_is_refused_by_its_column(metadata: ModelMetadata) -> None:
    groups = metadata.schema.groups
    leading = ((2,), (2, metadata.history), (2, metadata.horizon))
    static, historical, future = (torch.zeros(*s, len(g.columns)) for s, g in zip(leading, groups, strict=True))
    windows = Batch(static, historical, future, torch.zeros(2, metadata.horizon), torch.ones(2, dtype=torch.int64))
    assert window_inputs(windows, torch.arange(2), metadata)["historical_category"].dtype == np.int64
    windows.historical[1, 2, groups[1].columns.index("shift")] = torch.nan
    with pytest.raises(DataError, match="category column 'shift' holds a code that is NaN"):
        window_inputs(windows, torch.arange(2), metadata)


@torch.no_grad()
@pytest.mark.parametrize("shift", [0.0, 1e3, -1e5], ids=str)
def test_on_a_shifted_level_the_file_forecasts_what_torch_does(exported_run, file, forecaster, shift: float) -> None:
    windows = exported_run.load_check_windows()
    historical = windows.historical.clone()
    historical[..., 0] += shift
    inputs = window_inputs(windows._replace(historical=historical), torch.arange(5), file.metadata)
    raw = forecaster(*(torch.from_numpy(inputs[spec.name]) for spec in file.inputs))
    assert np.allclose(file.forecast(inputs), raw.numpy(), atol=ROUNDING * max(1.0, abs(shift) / 50))
    level = historical[:5, :, 0].mean(1).view(-1, 1, 1)
    assert float((raw - level).abs().max()) < 30.0  # deviations of the data, wherever they lie
