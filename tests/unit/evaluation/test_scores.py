"""Scores against plain loops over the targets, whatever batches they came in."""

import math

import pytest
import torch

from qat_tft.evaluation.scores import Scores, Tally, nearest_to_median

LEVELS = (0.1, 0.5, 0.9)
CLOSE = 1e-6  # float32 forecasts, summed in double precision in another order


def forecasts(count: int = 60, cells: int = 3) -> dict[str, torch.Tensor]:
    """Random forecasts, some targets missing and some of a series without a scale."""
    generator = torch.Generator().manual_seed(0)
    target = torch.randn(count, generator=generator) * 4
    target[::7] = torch.nan
    scale = torch.rand(count, generator=generator) + 0.5
    scale[::5] = torch.nan
    scale[::11] = 0.0
    return {
        "cell": torch.randint(0, cells, (count,), generator=generator),
        "quantiles": torch.randn(count, 3, generator=generator).sort(-1).values * 4,
        "target": target,
        "scale": scale.double(),
    }


def plain(rows: list[tuple[list[float], float, float]]) -> Scores:
    """The scores of quantiles, target and scale, one target at a time."""
    rows = [row for row in rows if not math.isnan(row[1])]
    count, size = len(rows), sum(abs(target) for _, target, _ in rows)
    risk, share = [], []
    for place, level in enumerate(LEVELS):
        losses = [max(level * (y - q[place]), (level - 1) * (y - q[place])) for q, y, _ in rows]
        risk.append(2 * sum(losses) / size)
        share.append(sum(y <= q[place] for q, y, _ in rows) / count)
    errors = [q[1] - y for q, y, _ in rows]
    scaled = [abs(q[1] - y) / scale for q, y, scale in rows if scale > 0]
    return Scores(
        targets=count,
        q_risk=tuple(risk),
        coverage=tuple(share),
        interval=sum(q[0] <= y <= q[2] for q, y, _ in rows) / count,
        mae=sum(map(abs, errors)) / count,
        mase=sum(scaled) / len(scaled),
        bias=sum(errors) / count,
    )


def assert_close(found: Scores, expected: Scores) -> None:
    assert found.targets == expected.targets
    for name in ("q_risk", "coverage", "interval", "mae", "mase", "bias"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=CLOSE), name


@pytest.mark.parametrize("size", [60, 7, 1], ids=lambda size: f"batches-of-{size}")
def test_scores_equal_those_of_a_plain_loop_in_any_batches(size: int) -> None:
    data, tally = forecasts(), Tally(3, LEVELS)
    for rows in torch.arange(60).split(size):
        tally.add(*(values[rows] for values in data.values()))
    listed = list(zip(*(data[name].tolist() for name in ("quantiles", "target", "scale")), strict=True))
    for cell, found in enumerate(tally.scores()):
        assert_close(found, plain([row for row, own in zip(listed, data["cell"].tolist(), strict=True) if own == cell]))
    assert_close(tally.overall(), plain(listed))


def test_a_cell_without_targets_has_no_scores() -> None:
    tally = Tally(2, LEVELS)
    tally.add(torch.tensor([1]), torch.zeros(1, 3), torch.tensor([torch.nan]), torch.ones(1))
    assert tally.scores() == [Scores(0, (None,) * 3, (None,) * 3, None, None, None, None)] * 2


def test_targets_that_are_all_zero_have_errors_but_no_risk() -> None:
    tally = Tally(1, LEVELS)
    tally.add(torch.zeros(2, dtype=torch.int64), torch.ones(2, 3), torch.zeros(2), torch.zeros(2))
    (found,) = tally.scores()
    assert (found.q_risk, found.mae, found.mase) == ((None,) * 3, 1.0, None)


def test_the_point_forecast_is_the_quantile_nearest_to_the_median() -> None:
    assert [nearest_to_median(levels) for levels in ((0.1, 0.5, 0.9), (0.05, 0.4, 0.95), (0.9,))] == [1, 1, 0]


def test_json_has_one_key_per_quantile() -> None:
    tally = Tally(1, LEVELS)
    tally.add(torch.zeros(1, dtype=torch.int64), torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([2.0]), torch.ones(1))
    found = tally.overall().to_json(LEVELS)
    assert found["coverage"] == {"0.1": 0.0, "0.5": 1.0, "0.9": 1.0}
    assert set(found["q_risk"]) == {"0.1", "0.5", "0.9"}
    assert (found["targets"], found["interval"], found["bias"]) == (1, 1.0, 0.0)
