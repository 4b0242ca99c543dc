"""Ridge regressions around simple forecasts: against a plain second implementation, window by window."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from qat_tft.evaluation.linear_paths import (
    LAST,
    MEAN,
    SEASON,
    NormalEquations,
    TargetWindows,
    anchors,
    fit_linear_forecasts,
    raw_forecasts,
    target_windows,
    weighted_quantiles,
)
from qat_tft.model.frame import FrameShape
from qat_tft.training.frame_choice import frame_for

EXACT = 1e-9
LEVELS = (0.1, 0.5, 0.9)


@pytest.fixture
def frame(data):
    made = frame_for(data, FrameShape(window=True))
    made.least_variance.fill_(0.01)
    return made


def candidates(data, frame, **changes):
    arguments = {"levels": LEVELS, "season": 4, "validation_windows": 10**6, **changes}
    scaling = data.preprocessing.scaling()
    return fit_linear_forecasts(data.training, data.validation, scaling, frame, **arguments)


def in_numpy(windows, preprocessing) -> tuple[np.ndarray, ...]:
    """Scaled history and target, mean and scale of every window, computed one by one."""
    batch = windows[list(range(len(windows)))]
    rows = []
    for history, target, code in zip(batch.historical[..., 0], batch.target, batch.series, strict=True):
        statistics = preprocessing.statistics[preprocessing.schema.target]
        center, deviation = np.float32(statistics.center[code]), np.float32(statistics.scale[code])
        past, coming = (
            np.float64(center - center) + (one.double().numpy() - center) / deviation for one in (history, target)
        )
        mean = past.mean()
        scale = math.sqrt(((past - mean) ** 2).mean() + np.float64(np.float32(0.01)))
        rows.append(((past - mean) / scale, (coming - mean) / scale, mean, scale))
    return tuple(map(np.array, zip(*rows, strict=True)))


def test_windows_are_in_their_own_units(data, frame):
    history, target, mean, scale = in_numpy(data.training, data.preprocessing)
    indices = torch.arange(len(data.training))
    blocks = list(target_windows(data.training, indices, data.preprocessing.scaling(), frame, size=7))
    assert len(blocks) > 3
    found = TargetWindows(*(torch.cat(parts) for parts in zip(*blocks, strict=True)))
    assert np.allclose(found.history.numpy(), history, atol=EXACT)
    assert np.allclose(found.target.numpy(), target, atol=EXACT)
    assert np.allclose(found.mean.squeeze(1).numpy(), mean, atol=EXACT)
    assert np.allclose(found.scale.squeeze(1).numpy(), scale, atol=EXACT)


def test_every_candidate_is_the_ridge_regression_around_its_anchor(data, frame):
    z, t, _, scale = in_numpy(data.training, data.preprocessing)
    held = anchors(z.shape[1], t.shape[1], 4)
    root = np.sqrt(scale[:, None] ** 2)
    design = np.hstack([z, np.ones((len(z), 1))])
    diagonal = ((design * scale[:, None] ** 2) * design).sum(0)[:-1].mean()
    found = candidates(data, frame)
    assert {one.anchor for one in found} == {MEAN, LAST, SEASON}
    for one in found:
        anchor = held[one.anchor].numpy()
        if one.is_simple:
            assert np.array_equal(one.weight.numpy(), anchor)
            assert not one.offsets[:, 1].any(), "its median is what it says"
            assert bool((one.offsets[:, 0] <= 0).all() & (one.offsets[:, 2] >= 0).all())
            continue
        penalty = np.hstack([math.sqrt(one.strength * diagonal) * np.eye(z.shape[1]), np.zeros((z.shape[1], 1))])
        rest = t - z @ anchor.T
        solution = np.linalg.lstsq(
            np.vstack([design * root, penalty]),
            np.vstack([rest * root, np.zeros((len(penalty), t.shape[1]))]),
            rcond=None,
        )[0]
        assert np.allclose(one.weight.numpy(), anchor + solution[:-1].T, atol=1e-7), (one.anchor, one.strength)


def test_offsets_and_validation_loss_are_those_of_the_windows(data, frame):
    one = next(one for one in candidates(data, frame) if one.anchor == MEAN and one.strength == 1e-2)
    z, t, _, scale = in_numpy(data.training, data.preprocessing)
    errors = t - z @ one.weight.numpy().T
    for place, level in enumerate(LEVELS):
        for step in range(errors.shape[1]):
            order = np.argsort(errors[:, step])
            reached = np.cumsum(scale[order])
            expected = errors[order, step][np.searchsorted(reached, level * reached[-1])]
            assert float(one.offsets[step, place]) == pytest.approx(expected, abs=EXACT)
    z, t, _, scale = in_numpy(data.validation, data.preprocessing)
    total = 0.0
    for place, level in enumerate(LEVELS):
        error = scale[:, None] * (t - (z @ one.weight.numpy().T + one.offsets[:, place].numpy()))
        total += np.maximum(level * error, (level - 1) * error).mean()
    assert one.validation_loss == pytest.approx(total, rel=1e-9)


def test_raw_forecasts_are_in_the_unit_of_the_data(data, frame):
    one = candidates(data, frame)[2]
    indices = torch.tensor([0, 5, len(data.test) - 1])
    found = raw_forecasts(one, data.test, indices, data.preprocessing.scaling(), frame)
    z, _, mean, scale = in_numpy(data.test, data.preprocessing)
    statistics = data.preprocessing.statistics[data.schema.target]
    for row, window in enumerate(indices.tolist()):
        code = int(data.test[window].series)
        scaled = mean[window] + scale[window] * ((z[window] @ one.weight.numpy().T)[:, None] + one.offsets.numpy())
        expected = np.sort(scaled * statistics.scale[code] + statistics.center[code], -1)
        assert np.allclose(found[row].numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize(("season", "names"), [(1, {MEAN, LAST}), (12, {MEAN, LAST, SEASON}), (13, {MEAN, LAST})])
def test_a_season_needs_two_rows_and_to_fit_the_history(season, names):
    assert set(anchors(12, 4, season)) == names


def test_the_seasonal_anchor_repeats_the_last_season():
    found = anchors(8, 5, 3)[SEASON] @ torch.arange(8.0, dtype=torch.float64)
    assert found.tolist() == [5.0, 6.0, 7.0, 5.0, 6.0]


def test_a_window_with_missing_targets_counts_for_the_steps_that_it_has():
    generator = torch.Generator().manual_seed(0)
    history = torch.randn(40, 3, dtype=torch.float64, generator=generator)
    target = torch.randn(40, 2, dtype=torch.float64, generator=generator)
    scale = torch.rand(40, 1, dtype=torch.float64, generator=generator) + 0.5
    target[5:20, 0] = torch.nan
    equations = NormalEquations(3, 2)
    for some in torch.arange(40).split(8):  # the first block is complete
        equations.add(TargetWindows(history[some], target[some], scale[some], scale[some]))
    found = equations.solve(torch.zeros(2, 3, dtype=torch.float64), 1e-3)
    for step in range(2):
        there = ~target[:, step].isnan()
        alone = NormalEquations(3, 1)
        alone.add(TargetWindows(history[there], target[there, step : step + 1], scale[there], scale[there]))
        expected = alone.solve(torch.zeros(1, 3, dtype=torch.float64), 1e-3)
        assert torch.allclose(found[step], expected[0], atol=EXACT)


def test_quantiles_leave_missing_values_out_and_weigh_the_others():
    values = torch.tensor([[1.0, torch.nan], [3.0, torch.nan], [2.0, torch.nan], [torch.nan, torch.nan]])
    weights = torch.tensor([[1.0], [1.0], [8.0], [100.0]])
    assert weighted_quantiles(values, weights, (0.05, 0.5, 0.95)).tolist() == [[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]


def test_too_few_windows_give_nothing(data, frame, monkeypatch):
    monkeypatch.setattr("qat_tft.evaluation.linear_paths.LEAST_WINDOWS", len(data.training) + 1)
    assert candidates(data, frame) == []


def test_histories_that_never_move_give_weights_of_zero():
    still, ones = torch.zeros(30, 1, dtype=torch.float64), torch.ones(30, 1, dtype=torch.float64)
    equations = NormalEquations(1, 2)
    equations.add(TargetWindows(still, torch.randn(30, 2, dtype=torch.float64), still, ones))
    anchor = torch.ones(2, 1, dtype=torch.float64)
    assert torch.equal(equations.solve(anchor, 1e-5), anchor)
