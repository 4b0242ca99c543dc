"""From the same raw rows file and model forecast alike: missing values, unknown categories, short series included.

The FP32 file is compared to rounding. Where file and model round on either side of a quantization step, INT8
forecasts differ by what one step is worth, so the INT8 file is compared with room for a few.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from qat_tft.config.run import RunConfig
from qat_tft.data.preparation import Preparation
from qat_tft.data.preprocessing import Preprocessing
from qat_tft.data.reading.parquet import read_panel
from qat_tft.data.split import Split
from qat_tft.data.windows import Windows, batch_from
from qat_tft.export.build.contract import RawForecaster
from qat_tft.export.build.run_export import build_graph, write_files
from qat_tft.export.inference.predict import forecast_parquet
from qat_tft.export.inference.session import ForecastSession
from qat_tft.export.metadata import ModelMetadata
from qat_tft.quantization.calibrate import calibrate
from qat_tft.quantization.integer import integer_model
from qat_tft.runs.build import build_model, build_qat_model
from qat_tft.schema import Columns, Schema

pytestmark = pytest.mark.slow  # it exports a model

HISTORY, HORIZON, SHORTEST = 6, 2, 2
SCHEMA = Schema(
    time="t",
    target="y",
    id=("s",),
    static=Columns(real=("size",), category=("s",)),
    observed=Columns(real=("wind", "rain"), category=("sky",)),
    known=Columns(real=("price",), category=("day",)),
)
PREPARATION = Preparation(missing=("forward", "wind=mean", "rain=zero", "size=zero"), min_history=SHORTEST)
TOLERANCE = {
    "fp32": 1e-4,  # float32 through some twenty layers and an exponential, relative to 1 or the value
    "int8": 0.05,  # one step moves these forecasts by up to a hundredth; a wrong scale, fill or category by far more
}


def rows_of(series: dict[str, int], *, seed: int, missing: float, skies: str = "abc") -> pa.Table:
    """Series of these lengths with a positive target; every value but time and id may be missing."""
    random = np.random.default_rng(seed)
    tables = []
    for name, rows in series.items():
        numbers = {
            "y": np.exp(random.normal(size=rows)),
            "wind": random.normal(size=rows),
            "rain": random.normal(size=rows) ** 2,
            "price": random.normal(3, 2, size=rows),
        }
        columns = {column: pa.array(v, mask=random.random(rows) < missing) for column, v in numbers.items()}
        size = None if random.random() < missing else random.normal()
        columns["size"] = pa.array([size] * rows, pa.float64())
        columns["sky"] = pa.array(random.choice([*skies, None], rows).tolist(), pa.string())
        columns["day"] = pa.array(np.arange(rows) % 7, mask=random.random(rows) < missing)
        tables.append(pa.table({"s": [name] * rows, "t": np.arange(rows), **columns}))
    return pa.concat_tables(tables)


@dataclass(frozen=True)
class Exported:
    file: ForecastSession
    model: nn.Module
    preprocessing: Preprocessing

    def torch_forecasts(self, path: Path) -> np.ndarray:
        """By the run's own preprocessing and windows, without anything that the file says about itself."""
        panel = self.preprocessing.encode(read_panel(path, SCHEMA, PREPARATION, checked=False))
        first = []
        for begin, end in zip(panel.series_start[:-1].tolist(), panel.series_start[1:].tolist(), strict=True):
            known = [row for row in range(begin, end) if not panel.target[row].isnan()]
            first.append(min(known[-1] + 1, end - HORIZON) - HISTORY)
        batch = batch_from(panel, torch.tensor(first), HISTORY, HORIZON)
        scaling = self.preprocessing.scaling()
        with torch.no_grad():
            inputs = scaling.scale_inputs(batch.static, batch.historical, batch.future, batch.series)
            return scaling.unscale_target(self.model(*inputs).quantiles, batch.series).numpy()


@pytest.fixture(scope="module", params=["fp32", "int8"])
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """A file scaled by series, with a transformed target and seasonal differences."""
    kind = request.param
    folder = tmp_path_factory.mktemp("raw")
    pq.write_table(rows_of({"a": 60, "b": 50, "c": 40}, seed=0, missing=0.2), folder / "train.parquet")
    raw = read_panel(folder / "train.parquet", SCHEMA, PREPARATION)
    split = Split(45, 50)
    preprocessing = Preprocessing.fit(raw, split, "series", "softplus")
    config = RunConfig.checked(
        {"model": {"hidden": 8, "heads": 2, "history": HISTORY, "horizon": HORIZON}},
        where="the test",
    )
    torch.manual_seed(0)
    model = build_model(config.model, preprocessing, raw.schema)
    windows = Windows(preprocessing.encode(raw), history=HISTORY, horizon=HORIZON, split=split, part="train")
    batch, scaling = windows[range(len(windows))], preprocessing.scaling()
    if kind == "int8":
        model = build_qat_model(model, "x86")
        calibrate(model, [scaling.scale_inputs(batch.static, batch.historical, batch.future, batch.series)])
        model.set_phase("frozen")
    model.eval()
    metadata = ModelMetadata(
        kind=kind,
        schema=raw.schema,
        vocabularies={column: known.values for column, known in preprocessing.vocabularies.items()},
        series=preprocessing.series,
        quantiles=config.model.quantiles,
        history=HISTORY,
        horizon=HORIZON,
        target="x86" if kind == "int8" else "",
        preparation=preprocessing.preparation,
        fills=preprocessing.fill_values(),
        target_transform="softplus",
    )
    computed = integer_model(model) if kind == "int8" else model.folded()
    graph = build_graph(RawForecaster(computed, scaling, metadata).eval(), metadata)
    write_files({folder / "model.onnx": graph.SerializeToString()})
    return Exported(ForecastSession(folder / "model.onnx", threads=1), model, preprocessing)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(SHORTEST + HORIZON, 14), min_size=1, max_size=4),
    seed=st.integers(0, 2**31),
    missing=st.sampled_from([0.0, 0.3, 0.7]),
)
def test_the_file_forecasts_raw_rows_as_torch_does(
    exported: Exported, tmp_path: Path, lengths: list[int], seed: int, missing: float
) -> None:
    names = ("a", "new", "b", "newer")  # two that training never saw
    series = dict(zip(names, lengths, strict=False))
    table = rows_of(series, seed=seed, missing=missing, skies="axyz")
    first_targets = pa.array([row["t"] < SHORTEST and row["y"] is None for row in table.to_pylist()])
    if any(first_targets.to_pylist()):  # a series has a target in its first rows, so that every one is forecast
        filled = [1.5 if at else y for at, y in zip(first_targets.to_pylist(), table["y"].to_pylist(), strict=True)]
        table = table.set_column(table.column_names.index("y"), "y", pa.array(filled))
    path = tmp_path / "rows.parquet"
    pq.write_table(table.take(np.random.default_rng(seed).permutation(len(table))), path)
    found = forecast_parquet(exported.file, path)
    quantiles = np.stack([found.table[f"q{level:g}"].to_numpy() for level in exported.file.metadata.quantiles], -1)
    expected = exported.torch_forecasts(path).reshape(quantiles.shape)
    assert found.series == len(series)
    assert np.isfinite(quantiles).all()
    tolerance = TOLERANCE[exported.file.metadata.kind]
    np.testing.assert_allclose(quantiles, expected, rtol=tolerance, atol=tolerance)


def test_a_series_too_short_for_the_shortest_history_is_named_and_skipped(exported: Exported, tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(rows_of({"new": SHORTEST + HORIZON - 1, "a": 9}, seed=1, missing=0.0), path)
    found = forecast_parquet(exported.file, path)
    assert found.series == 1
    assert [note for note in found.notes if note.startswith("1 series skipped") and "s=new" in note]
