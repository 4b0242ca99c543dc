"""Shifts of quantiles come from one late slice of the validation part and are kept where another one agrees."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from qat_tft.model.frame import FramedTemporalFusionTransformer, FrameShape
from qat_tft.training import quantile_offsets
from qat_tft.training.job import train
from qat_tft.training.quantile_offsets import shift_quantiles

LEVELS = (0.1, 0.5, 0.9)
DEVICE = torch.device("cpu")


@pytest.fixture(autouse=True)
def _few_windows_suffice(monkeypatch):
    monkeypatch.setattr(quantile_offsets, "LEAST_WINDOWS", 3)


@pytest.fixture
def model(data) -> FramedTemporalFusionTransformer:
    """Forecasts the mean of the window for every quantile until it is shifted."""
    sizes = data.preprocessing.group_sizes(data.schema)
    shape = {"history": 12, "horizon": 4, "hidden": 8, "heads": 2, "quantiles": LEVELS}
    made = FramedTemporalFusionTransformer(*sizes, frame=FrameShape(window=True, offsets=True), **shape).eval()
    nn.init.zeros_(made.head.weight)
    nn.init.zeros_(made.head.bias)
    return made


def shifted(model: FramedTemporalFusionTransformer, data) -> quantile_offsets.Shift:
    scaling = data.preprocessing.scaling()
    return shift_quantiles(model, model, model.frame.offsets, scaling, data.validation, batch_size=7, device=DEVICE)


def errors(data, model) -> tuple[Tensor, Tensor, Tensor]:
    """In units of the window: errors of its mean, its scale, and when its first target is."""
    batch = data.validation[list(range(len(data.validation)))]
    scaling = data.preprocessing.scaling()
    history = scaling.scale_target(batch.historical[..., 0], batch.series).double()
    target = scaling.scale_target(batch.target, batch.series).double()
    mean = history.mean(1, keepdim=True)
    scale = (history.var(1, correction=0, keepdim=True) + float(model.frame.least_variance)).sqrt()
    first = data.panel.time[data.validation.target_rows(torch.arange(len(target)))[:, 0]]
    return (target - mean) / scale, scale, first


def test_a_shift_is_the_quantile_of_the_errors_and_kept_where_later_windows_agree(data, model):
    left, scale, first = errors(data, model)
    half, last = (first.sort().values[len(first) * quarter // 4] for quarter in (2, 3))
    step = int(first.sort().values.diff().clamp(min=0).max())
    fit, judge = (first >= half) & (first + 3 * step < last), first >= last
    report = shifted(model, data)
    kept = 0
    for place, level in enumerate(LEVELS):
        for at in range(4):
            order = left[fit, at].argsort()
            reached = scale[fit, 0][order].cumsum(0)
            wanted = left[fit, at][order][torch.searchsorted(reached, level * reached[-1])]
            risk = [
                float((scale[judge, 0] * torch.maximum(level * error, (level - 1) * error)).sum())
                for error in (left[judge, at], left[judge, at] - wanted)
            ]
            expected = float(wanted) if risk[1] < risk[0] else 0.0
            kept += expected != 0.0
            assert float(model.frame.offsets[at, place]) == pytest.approx(expected, abs=1e-5)
    assert (report.kept, report.cells) == (kept, 12)
    assert kept > 0
    assert f"shifted at {kept} of 12" in report.sentence("FP32")


def test_what_does_not_help_on_later_windows_is_not_kept(data, model, monkeypatch):
    wrong = torch.full((4, 1), 1e3, dtype=torch.float64)
    monkeypatch.setattr(quantile_offsets, "weighted_quantiles", lambda *_: wrong)
    assert shifted(model, data).kept == 0
    assert not model.frame.offsets.any()


def test_too_few_windows_change_nothing_and_are_said(data, model, monkeypatch):
    monkeypatch.setattr(quantile_offsets, "LEAST_WINDOWS", 10**6)
    report = shifted(model, data)
    assert report.cells == 0
    assert "fewer than" in report.sentence("QAT")
    assert not model.frame.offsets.any()


@pytest.mark.parametrize("path", ["auto", "off"])
def test_a_run_shifts_each_of_its_models_and_says_so(config, schema, tmp_path, path):
    shape = config.model.model_copy(update={"calibrate_quantiles": True, "linear_path": path})
    run = train(config.model_copy(update={"model": shape}), schema, runs_dir=tmp_path)
    said = [note for note in run.results.notes if "are shifted at" in note]
    assert [note.split()[3] for note in said] == ["FP32", "QAT"]
    fp32, qat = run.folder.load_fp32_model(), run.folder.load_qat_model()
    assert not np.array_equal(fp32.frame.offsets.numpy(), qat.model.frame.offsets.numpy())
