"""The linear path of a run is the one with the lowest validation loss, or the one asked for; no run ends worse."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from qat_tft.config.run import RunConfig
from qat_tft.errors import ConfigError
from qat_tft.evaluation.linear_paths import LAST, MEAN, SEASON
from qat_tft.evaluation.window_forecasts import even_indices, validation_loss
from qat_tft.model.loss import loss_of
from qat_tft.runs.build import build_model
from qat_tft.runs.data import RunData, load_data
from qat_tft.runs.folder import RunFolder
from qat_tft.training.frame_choice import fit_frame, several_series
from qat_tft.training.job import train
from qat_tft.training.progress import Silent

ROUNDING = 1e-5


def changed(config: RunConfig, **sections: dict[str, object]) -> RunConfig:
    parts = {name: getattr(config, name).model_copy(update=update) for name, update in sections.items()}
    return config.model_copy(update=parts)


class Listener(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def drifting(config: RunConfig, schema, folder, steps: np.ndarray) -> tuple[RunConfig, RunData]:
    """Data whose target is what is given, in one series of which nothing else is known."""
    file = folder / "drifting.parquet"
    plain = schema.model_copy(update={"id": ()}).without({"plant", "wind", "phase"})
    time = (np.arange(len(steps)) * 3_600_000_000_000).astype("datetime64[ns]")
    pq.write_table(pa.table({"time": time, "load": steps}), file)
    config = changed(config, data={"parquet_files": (str(file),)})
    return config, load_data(config.data, config.model, plain)


def test_the_path_has_the_lowest_validation_loss_and_is_said(data, config):
    fitted = fit_frame(data, config)
    assert fitted.path is min(fitted.candidates, key=lambda one: one.validation_loss)
    (sentence,) = fitted.notes()
    assert f"validation loss of {fitted.path.validation_loss:.4g}" in sentence
    for name in ("ridge regression", "last value"):
        assert name in sentence


def test_the_ridge_regression_of_the_results_is_the_best_around_the_mean(data, config):
    fitted = fit_frame(data, config)
    ridges = [one.validation_loss for one in fitted.candidates if one.anchor == MEAN]
    assert fitted.ridge.forecast.validation_loss == min(ridges)


@pytest.mark.parametrize("wanted", [LAST, SEASON])
def test_the_configuration_can_name_a_simple_path(data, config, wanted):
    named = changed(config, model={"linear_path": wanted}, data={"season": 4})
    path = fit_frame(data, named).path
    assert (path.anchor, path.is_simple) == (wanted, True)


def test_ridge_is_the_best_ridge_regression_around_any_anchor(data, config):
    fitted = fit_frame(data, changed(config, model={"linear_path": "ridge"}, data={"season": 4}))
    ridges = [one.validation_loss for one in fitted.candidates if not one.is_simple]
    assert (fitted.path.is_simple, fitted.path.validation_loss) == (False, min(ridges))
    assert {one.anchor for one in fitted.candidates if not one.is_simple} == {MEAN, LAST, SEASON}


def test_a_season_that_the_history_does_not_hold_is_refused_by_name(data, config):
    with pytest.raises(ConfigError, match="a season of 24 rows gives no linear path over a history of 12"):
        fit_frame(data, changed(config, model={"linear_path": SEASON}))


def test_a_random_walk_gets_its_last_value_or_a_ridge_around_it(config, schema, tmp_path):
    walk = np.random.default_rng(0).normal(size=600).cumsum()
    config, data = drifting(config, schema, tmp_path, walk)
    assert fit_frame(data, config).path.anchor == LAST


@pytest.mark.parametrize("noise", [0.0, 0.1, 3.0])
def test_what_a_run_records_chooses_the_same_path_again(config, schema, tmp_path, noise):
    rng = np.random.default_rng(1)
    values = rng.normal(size=600).cumsum() + noise * rng.normal(size=600)
    config, data = drifting(config, schema, tmp_path, values)
    first = fit_frame(data, config)
    again = fit_frame(data, changed(config, model={"linear_path": first.choice(config.model)}))
    assert (again.path.anchor, again.path.strength) == (first.path.anchor, first.path.strength)
    assert torch.equal(again.path.weight, first.path.weight)


@pytest.mark.parametrize("normalize", ["window", "series"])
def test_a_new_models_loss_is_that_of_its_path(data, config, normalize):
    config = changed(config, model={"normalize": normalize})
    fitted = fit_frame(data, config)
    config = config.with_frame(linear_path=fitted.choice(config.model), scale_input=several_series(data))
    model = build_model(config.model, data.preprocessing, data.schema)
    fitted.put(model)
    indices = even_indices(len(data.validation), config.training.validation_windows)
    found = validation_loss(
        model,
        data.preprocessing.scaling(),
        data.validation,
        indices,
        loss=loss_of(config.model.quantiles),
        batch_size=16,
        device=torch.device("cpu"),
    )
    assert found == pytest.approx(fitted.path.validation_loss, rel=ROUNDING)


def test_floor_and_logarithms_are_those_of_training_windows(data, config):
    batch = data.training[list(range(len(data.training)))]
    statistics = data.preprocessing.statistics[data.schema.target]
    deviations = [
        float(history.double().std(correction=0)) / statistics.scale[int(code)]
        for history, code in zip(batch.historical[..., 0], batch.series, strict=True)
    ]
    scales = fit_frame(data, config).scales
    floor = 0.1 * math.sqrt(float(np.square(deviations).mean()))
    logarithms = np.log(np.sqrt(np.square(deviations) + floor**2))
    assert scales.floor == pytest.approx(floor, rel=ROUNDING)
    assert scales.log_center == pytest.approx(logarithms.mean(), abs=ROUNDING)
    assert scales.log_spread == pytest.approx(logarithms.std(), rel=ROUNDING)


def test_no_run_ends_worse_on_validation_than_its_path_and_says_where_nothing_was_gained(config, schema, tmp_path):
    hopeless = changed(config, training={"learning_rate": 3.0}, quantization={"use_qat": False})
    listener = Listener()
    run = train(hopeless, schema, runs_dir=tmp_path, progress=listener)
    path = fit_frame(load_data(config.data, config.model, schema), config).path
    assert run.results.validation_loss["fp32"] == pytest.approx(path.validation_loss)
    assert any("No FP32 epoch lowered the validation loss" in note for note in run.results.notes)
    model = run.folder.load_fp32_model()
    assert not model.head.weight.any()
    assert torch.equal(model.frame.weight, path.weight.float())
    assert sum("Linear path: " in note for note in listener.notes) == 1


def test_with_too_few_training_windows_the_path_is_left_out_and_that_is_said(config, schema, tmp_path, monkeypatch):
    monkeypatch.setattr("qat_tft.evaluation.linear_paths.LEAST_WINDOWS", 10**6)
    listener = Listener()
    run = train(changed(config, quantization={"use_qat": False}), schema, runs_dir=tmp_path, progress=listener)
    assert any(note.startswith("No linear path: ") for note in listener.notes)
    assert run.folder.load_config().model.linear_path == "off"
    assert "ridge" not in run.results.q_risk


def test_without_path_and_normalization_a_run_is_the_papers(config, schema, tmp_path):
    plain = changed(config, model={"linear_path": "off", "normalize": "series"}, quantization={"use_qat": False})
    model = train(plain, schema, runs_dir=tmp_path).folder.load_fp32_model()
    assert type(model).__name__ == "TemporalFusionTransformer"
    assert not [name for name in model.state_dict() if "frame" in name]


def test_a_run_of_an_earlier_version_has_no_frame(config, schema, tmp_path):
    plain = changed(config, model={"linear_path": "off", "normalize": "series"}, quantization={"use_qat": False})
    folder = train(plain, schema, runs_dir=tmp_path, name="mine").folder
    text = (folder.path / "config.toml").read_text()
    lines = [line for line in text.splitlines() if not line.startswith(("linear_path", "normalize", "scale_input"))]
    old = "\n".join(lines).replace("[data]", '[data]\nstandardize = "series"')
    (folder.path / "config.toml").write_text(old)
    config = RunFolder.open(folder.path).load_config()
    assert (config.model.linear_path, config.model.normalize) == ("off", "series")
    folder.load_fp32_model()


def test_the_seasonal_difference_of_earlier_versions_is_refused_for_new_runs(config, schema, tmp_path):
    old = changed(config, model={"linear_path": "off", "normalize": "series", "seasonal_difference": 2})
    with pytest.raises(ConfigError, match="is how earlier versions carried a season"):
        train(old, schema, runs_dir=tmp_path)


def test_histories_of_one_step_are_measured_by_the_deviation_of_their_series(config, schema, tmp_path):
    short = changed(config, model={"history": 1})
    assert fit_frame(load_data(short.data, short.model, schema), short).scales.floor == 1.0
    run = train(changed(short, quantization={"use_qat": False}), schema, runs_dir=tmp_path)
    assert math.isfinite(run.results.validation_loss["fp32"])
