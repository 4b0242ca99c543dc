"""What INT8 costs and what can be done about it: PTQ, calibrators, learned ranges and layers left in floating point."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from qat_tft.config.run import RunConfig
from qat_tft.errors import ConfigError
from qat_tft.evaluation.window_forecasts import even_indices, forecast_windows
from qat_tft.model.loss import q_risk
from qat_tft.quantization.learned import LearnedQuantizer
from qat_tft.quantization.ranges import Phase
from qat_tft.quantization.stored import StoredAffine, StoredLinear
from qat_tft.runs import sensitivity
from qat_tft.runs.data import load_data
from qat_tft.runs.folder import RunFolder
from qat_tft.runs.sensitivity import analyse
from qat_tft.schema import Columns, Schema
from qat_tft.training.job import train
from qat_tft.training.phases import NOT_BETTER

SCHEMA = Schema(time="time", target="load", known=Columns(real=("hour",), category=("shift",)))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    hours = np.arange(400)
    table = pa.table(
        {
            "time": (hours * 3_600_000_000_000).astype("datetime64[ns]"),
            "load": 40 + 5 * np.sin(hours / 4) + 0.3 * np.random.default_rng(0).normal(size=len(hours)),
            "hour": (hours % 24).astype(np.float64),
            "shift": ["day" if 6 <= hour % 24 < 18 else "night" for hour in hours],
        }
    )
    path = tmp_path_factory.mktemp("data") / "load.parquet"
    pq.write_table(table, path)
    return path


def train_small(data: Path, runs: Path, name: str, **quantization: object) -> RunFolder:
    config = RunConfig.checked(
        {
            "data": {"parquet_files": [str(data)]},
            "model": {"history": 8, "horizon": 3, "hidden": 8, "heads": 2, "linear_path": "off"},
            "training": {"epochs": 1, "batches_per_epoch": 3, "batch_size": 16},
            "quantization": {
                "use_qat": True,
                "products": "integer",
                "qat_epochs": 1,
                "calibration_batches": 3,
                **quantization,
            },
        },
        where="the test",
    )
    return train(config, SCHEMA, runs_dir=runs, name=name).folder


@pytest.fixture
def ptq(data: Path, tmp_path: Path) -> RunFolder:
    return train_small(data, tmp_path / "runs", "ptq", qat_epochs=0, calibrator="percentile")


def test_without_qat_epochs_the_calibrated_weights_are_the_result(ptq: RunFolder):
    results = ptq.load_results()
    assert set(results.q_risk) >= {"fp32", "ptq"}
    assert "qat" not in results.q_risk
    assert results.notes == ()
    quantizers = ptq.load_qat_model().quantizers().values()
    assert not any(quantizer.fault for quantizer in quantizers)
    assert {int(quantizer.batches.max()) for quantizer in quantizers} == {3}


def test_learned_scales_are_trained_kept_and_read_back(data: Path, tmp_path: Path):
    run = train_small(data, tmp_path / "runs", "learned", qat_ranges="learned", qat_learning_rate=0.05, frozen=0.0)
    calibrated = train_small(data, tmp_path / "runs", "start", qat_ranges="learned", qat_epochs=0)
    learned, start = (folder.load_qat_model().quantizers() for folder in (run, calibrated))
    assert all(isinstance(quantizer, LearnedQuantizer) for quantizer in learned.values())
    assert all(torch.equal(quantizer.zero_point, start[name].zero_point) for name, quantizer in learned.items())
    if NOT_BETTER in run.load_results().notes:
        pytest.fail("no epoch was better, so nothing that was learned is kept: make the test's data easier")
    assert not all(torch.equal(quantizer.scale, start[name].scale) for name, quantizer in learned.items())


def risk_with_float_layers(run: RunFolder, layers: tuple[str, ...], *, stored: bool = True) -> list[float]:
    """Mean q-risk per quantile on the validation windows, of a model built with those layers in floating point.

    Without `stored` the weights that are only stored as integers are not rounded either.
    """
    config = run.load_config()
    run.write_config(config.with_float_layers(layers))
    try:
        model = run.load_qat_model()
    finally:
        run.write_config(config)
    for module in model.modules():
        if isinstance(module, StoredLinear | StoredAffine) and not stored:
            module.phase = Phase.FLOAT
    data = load_data(config.data, config.model, run.load_schema(), preprocessing=run.load_preprocessing())
    indices, scaling = even_indices(len(data.validation), 20), run.load_preprocessing().scaling()
    found = forecast_windows(model, scaling, data.validation, indices, batch_size=7, device=torch.device("cpu"))
    return q_risk(found.quantiles, found.target, config.model.quantiles).tolist()


def test_every_layer_is_measured_as_if_all_others_were_left_out(ptq: RunFolder):
    found = analyse(ptq, windows=20)
    layers = ptq.load_qat_model().roundings()
    assert set(found.costs.alone) == set(layers)
    for layer in ("head", "lstm_decoder.cell", "future_selection.table"):
        others = tuple(name for name in layers if name != layer)
        assert found.costs.alone[layer] == pytest.approx(risk_with_float_layers(ptq, others, stored=False), rel=1e-5)
    assert found.rounded == pytest.approx(risk_with_float_layers(ptq, ()), rel=1e-5)
    assert found.choice is None
    assert ptq.load_config().quantization.float_layers == ()


def test_a_choice_is_measured_written_and_followed(ptq: RunFolder, call):
    every = list(ptq.load_qat_model().roundings())
    unlimited = analyse(ptq, windows=20)
    drops = [sum(risks) / sum(unlimited.fp32) - 1 for risks in (unlimited.costs.unrounded, unlimited.rounded)]
    limit = max(sum(drops) / 2, 1e-7)
    code, output, messages = call("sensitivity", ptq.path, "--windows", 20, "--max-drop", f"{limit:.9f}", "--json")
    assert code == 0, messages
    choice = json.loads(output)["choice"]
    assert choice["rise"] <= limit
    left = ptq.load_config().quantization.float_layers
    assert list(left) == choice["float_layers"]
    model = ptq.load_qat_model()
    assert list(model.roundings()) == [name for name in every if name not in left]
    assert set(model.left_out()) == set(left)
    assert list(choice["q_risk"].values()) == pytest.approx(risk_with_float_layers(ptq, left), rel=1e-5)
    code, _, _ = call("sensitivity", ptq.path, "--windows", 20, "--max-drop", "900%", "--json")
    assert code == 0
    assert ptq.load_config().quantization.float_layers == (), "a later choice begins with every layer INT8 again"


def test_a_run_without_qat_is_calibrated_for_it_and_stays_as_it_is(data: Path, tmp_path: Path, call):
    run = train_small(data, tmp_path / "runs", "fp32", use_qat=False)
    before = (run.path / "config.toml").read_text()
    code, output, messages = call("sensitivity", run.path, "--by", "segment", "--windows", 10, "--max-drop", "50%")
    assert code == 0, messages
    assert "temporal_attention" in output
    assert "FP32 weights, calibrated for this" in output
    assert (run.path / "config.toml").read_text() == before
    found = analyse(run, by="segment", windows=10)
    assert found.costs.unrounded == pytest.approx(found.fp32, rel=1e-5), "merging the gates changes nothing"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(("--max-drop", "half"), "--max-drop half is not a share", id="no number"),
        pytest.param(("--max-drop", "-1%"), "--max-drop -1% is not a share", id="negative"),
        pytest.param(("--max-drop", "nan"), "--max-drop nan is not a share", id="nan"),
    ],
)
def test_a_share_that_is_none_is_refused(words: tuple[str, ...], message: str, tmp_path: Path, call):
    code, output, messages = call("sensitivity", "--runs-dir", tmp_path, *words)
    assert (code, output) == (2, "")
    assert message in messages


def test_data_that_are_gone_are_named(ptq: RunFolder, call):
    config = ptq.load_config()
    gone = config.data.model_copy(update={"parquet_files": ("gone.parquet",)})
    ptq.write_config(config.model_copy(update={"data": gone}))
    code, _, messages = call("sensitivity", ptq.path)
    assert code == 2
    assert "gone.parquet" in messages


@pytest.mark.parametrize("json_option", [(), ("--json",)], ids=["tables", "json"])
def test_without_any_choice_the_exit_code_is_1_and_the_run_stays_as_it_is(json_option, ptq, call, monkeypatch):
    monkeypatch.setattr(sensitivity, "leave_float", lambda *given, **limits: None)
    code, output, messages = call("sensitivity", ptq.path, "--windows", 3, "--max-drop", "0.1%", *json_option)
    assert code == 1
    assert ('"choice": null' in output) if json_option else ("stays within --max-drop 0.1%" in messages)
    assert ptq.load_config().quantization.float_layers == ()


@pytest.mark.parametrize("risk", [0.0, float("nan"), float("inf")])
def test_a_risk_that_nothing_can_be_compared_with_is_refused(risk: float, ptq: RunFolder, call, monkeypatch):
    monkeypatch.setattr(sensitivity, "q_risk", lambda *given: torch.full((3,), risk))
    code, output, messages = call("sensitivity", ptq.path, "--windows", 3)
    assert (code, output) == (2, "")
    assert f"the q-risk of 3 validation windows is {risk}" in messages


def test_unknown_float_layers_are_refused_before_anything_is_trained(data: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match=r"quantization\.float_layers: there is no layer called 'tail' to leave out"):
        train_small(data, tmp_path / "runs", "bad", float_layers="head,tail")
    assert not (tmp_path / "runs").exists()


def test_layers_named_in_training_stay_float(data: Path, tmp_path: Path):
    run = train_small(data, tmp_path / "runs", "part", float_layers="head,lstm_encoder.cell")
    assert set(run.load_qat_model().left_out()) == {"head", "lstm_encoder.cell"}
    every = run.load_qat_model(every_layer=True)
    assert set(every.left_out()) == {"head", "lstm_encoder.cell"}, "no ranges were trained for them"
