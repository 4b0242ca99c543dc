"""Whole runs on targets that something is wrong with: the run says so, or forecasts what there is to forecast."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from qat_tft.data.preprocessing import Statistics
from qat_tft.evaluation.window_forecasts import raw_quantiles
from qat_tft.runs.folder import RunFolder

STEPS = 30
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(table, training, call: Call, tmp_path: Path) -> Callable[..., tuple[RunFolder, str]]:
    """Train on two series with this target, given by step, and return the run and what was said."""

    def train(target: Callable[[int], float | None], *options: str) -> tuple[RunFolder, str]:
        data = tmp_path / "data.parquet"
        pq.write_table(table(y=[target(row // 2) for row in range(2 * STEPS)]), data)
        code, out, err = call(*training(data, *options))
        assert code == 0, err
        return RunFolder.latest(tmp_path / "runs"), " ".join((out + err).split())

    return train


def test_a_test_part_of_zeros_has_no_q_risk_and_the_run_ends_and_says_so(run) -> None:
    split = "--validation-from", "2024-01-01T16:00", "--test-from", "2024-01-01T22:00"
    folder, said = run(lambda step: float(step % 5) if step < 22 else 0.0, *split, "--use-qat", "--qat-epochs", "1")
    assert "q-risk is undefined on this test part, whose targets are all zero" in said
    risks = json.loads((folder.path / "results.json").read_text())["q_risk"]
    assert {model for model in risks if set(risks[model].values()) == {None}} == set(risks) >= {"fp32", "qat"}


def test_a_history_shorter_than_the_horizon_trains(run) -> None:
    shape = "--history", "2", "--horizon", "4", "--season", "5", "--validation", "0.2", "--test", "0.2"
    folder, said = run(lambda step: float(step % 5), *shape)
    assert "Linear path: " in said
    assert "value of 5 rows before" not in said  # no history holds a season
    assert folder.load_fp32_model().frame.weight.shape == (4, 2)


def test_too_few_windows_for_a_ridge_regression_leave_the_path_out_and_are_said(run) -> None:
    split = "--validation-from", "2024-01-01T10:00", "--test-from", "2024-01-01T20:00"
    folder, said = run(lambda step: float(step % 5), *split)
    assert "No linear path: 4 training windows are fewer than the 20 that a ridge regression is fitted to" in said
    assert folder.load_config().model.linear_path == "off"


def test_a_last_value_that_stands_in_for_a_missing_target_is_what_the_path_goes_on_from(run) -> None:
    def target(step: int) -> float | None:
        return None if step % 4 == 1 else 100.0 + 10.0 * step

    folder, _ = run(target, "--missing", "forward", "--linear-path", "last-value", "--epochs", "0")
    assert "y.missing" not in folder.load_effective_schema().group("historical").real
    windows, model = folder.load_check_windows(), folder.load_fp32_model()
    found = raw_quantiles(model, folder.load_preprocessing().scaling(), windows)[..., 1]
    assert torch.allclose(found, windows.historical[:, -1:, 0].expand_as(found), rtol=1e-5)


@pytest.mark.parametrize("policy", ["mean", "zero"])
def test_missing_targets_are_marked_and_left_out_of_the_level(run, policy: str) -> None:
    folder, said = run(lambda step: None if step % 4 == 1 else 100.0 + step % 5, "--missing", policy)
    assert "y.missing" in folder.load_effective_schema().group("historical").real
    assert folder.load_preprocessing().statistics["y.missing"] == Statistics((0.0,), (1.0,)), "it is read as it is"
    model = folder.load_fp32_model()
    assert model.frame.missing is not None
    assert "Linear path: " in said
    risk = folder.load_results().q_risk["fp32"]
    assert all(0 < one < 0.1 for one in risk)  # zeros among the history would put the level far below 100


def test_a_target_without_variation_in_training_is_refused_by_name(table, training, call: Call, tmp_path: Path) -> None:
    data = tmp_path / "data.parquet"
    pq.write_table(table(y=[3.0] * 50 + [float(row) for row in range(10)]), data)
    code, _, err = call(*training(data))
    assert code == 2
    assert "real columns with the same value in every training row: y" in " ".join(err.split())
