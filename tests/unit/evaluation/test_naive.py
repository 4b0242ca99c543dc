"""The seasonal naive forecast against a plain loop, and the season that a time step suggests."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from qat_tft.data.panel import Panel
from qat_tft.data.preparation import Preparation, TimeMeaning
from qat_tft.data.time.kind import TimeKind
from qat_tft.data.time.season import LAST_VALUE
from qat_tft.data.time.steps import DAY
from qat_tft.evaluation.naive import SeasonalNaive, in_sample_error, season_of
from qat_tft.schema import Schema

HOUR = DAY // 24
LEVELS = (0.1, 0.5, 0.9)


def panel(lengths: tuple[int, ...], step: int = HOUR, kind: TimeKind = TimeKind.TIMESTAMP) -> Panel:
    generator = torch.Generator().manual_seed(0)
    starts = torch.tensor([0, *lengths]).cumsum(0)
    return Panel(
        schema=Schema(time="t", target="y", id=("s",)),
        values=torch.randn(int(starts[-1]), 1, generator=generator),
        static=torch.zeros(len(lengths), 0),
        time=torch.cat([torch.arange(length) * step for length in lengths]),
        series_start=starts,
        series_ids=[(str(place),) for place in range(len(lengths))],
        series_code=torch.arange(len(lengths)) + 1,
        time_kind=kind,
    )


def plain_point(data: Panel, first: int, horizon: int, season: int) -> list[float]:
    """The point forecast, one step at a time."""
    series = next(s for s in range(len(data.series_ids)) if first < data.series_start[s + 1])
    found = []
    for step in range(horizon):
        row = first + step - season
        while row >= first:
            row -= season
        found.append(float(data.target[row if row >= data.series_start[series] else first - 1]))
    return found


@pytest.mark.parametrize("season", [1, 3, 5, 40], ids=lambda season: f"season-{season}")
def test_the_median_is_the_value_one_or_more_seasons_ago(season):
    data, horizon = panel((60, 30)), 7
    naive = SeasonalNaive.fit(data, data.series_start[1:], season=season, horizon=horizon, levels=LEVELS)
    first = torch.tensor([50, 12, 60 + 9, 60 + 23])
    expected = [plain_point(data, row, horizon, season) for row in first.tolist()]
    assert torch.equal(naive.forecast(first, horizon)[..., 1], torch.tensor(expected))


def test_quantiles_are_those_of_the_training_errors_of_the_series():
    data, season = panel((60, 50)), 4
    training = torch.tensor([40, 100])
    naive = SeasonalNaive.fit(data, training, season=season, horizon=6, levels=LEVELS)
    for series, start in enumerate((0, 60)):
        values = data.target[start : start + 40].double()
        for back in (1, 2):
            errors = values[back * season :] - values[: -back * season]
            low, _, high = torch.quantile(errors, torch.tensor(LEVELS, dtype=torch.float64))
            found = naive.offsets[series, back - 1].double()
            assert torch.allclose(found, torch.stack([low, torch.zeros(()).double(), high]))


def test_a_season_of_one_row_repeats_the_last_value_with_errors_that_grow_with_the_step():
    data, everything = panel((400,)), torch.tensor([400])
    data.values[:, 0] = data.target.cumsum(0)
    walk = SeasonalNaive.fit(data, everything, season=LAST_VALUE, horizon=5, levels=LEVELS)
    found = walk.forecast(torch.tensor([100, 300]), 5)
    assert torch.equal(found[..., 1], data.target[[99, 299]][:, None].expand(2, 5))
    for step in range(1, 6):
        errors = (data.target[step:] - data.target[:-step]).double()
        low, _, high = torch.quantile(errors, torch.tensor(LEVELS, dtype=torch.float64))
        assert torch.allclose(found[0, step - 1, ::2] - found[0, step - 1, 1], torch.stack([low, high]).float())


def test_a_missing_target_is_passed_over_for_the_last_known_one():
    data = panel((40, 10, 4))
    data.values[[31, 33, 34], 0] = torch.nan  # the season before the steps, and the last row before them
    data.values[50:, 0] = torch.nan
    training = torch.tensor([30, 40, 50])
    naive = SeasonalNaive.fit(data, training, season=4, horizon=3, levels=LEVELS)
    expected = [data.target[32], data.target[32], data.target[32]]  # of rows 35, 36, 37: from 31, 32 and 33
    assert naive.forecast(torch.tensor([35]), 3)[0, :, 1].tolist() == expected
    assert naive.forecast(torch.tensor([53]), 1)[0, 0, 1] == data.target[:30].median()
    assert bool(torch.isfinite(naive.offsets).all())


def test_the_in_sample_error_is_the_mean_absolute_seasonal_difference_of_training_rows():
    data, season = panel((60, 50, 3)), 4
    data.values[10, 0] = torch.nan
    training = torch.tensor([40, 100, 113])
    found = in_sample_error(data, training, season)
    first = [abs(float(data.target[row] - data.target[row - season])) for row in range(4, 40) if row not in (10, 14)]
    second = [abs(float(data.target[60 + row] - data.target[60 + row - season])) for row in range(4, 40)]
    assert found[:2].tolist() == pytest.approx([sum(first) / len(first), sum(second) / len(second)])
    assert bool(found[2].isnan())


def test_quantiles_never_cross_even_where_all_errors_have_one_sign():
    rising = panel((60,))
    rising.values[:, 0] = torch.arange(60.0)
    naive = SeasonalNaive.fit(rising, rising.series_start[1:], season=4, horizon=4, levels=LEVELS)
    quantiles = naive.forecast(torch.tensor([30]), 4)
    assert bool((quantiles.diff(dim=-1) >= 0).all())
    assert quantiles[0, 0].tolist() == [26.0, 26.0, 30.0]


def test_a_series_without_training_rows_takes_the_errors_of_all():
    data = panel((60, 30))
    training = torch.tensor([60, 60])
    naive = SeasonalNaive.fit(data, training, season=2, horizon=2, levels=LEVELS)
    assert torch.equal(naive.offsets[1], naive.offsets[0])


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_target_that_is_not_finite_is_missing(value):
    data, broken = panel((60, 40)), panel((60, 40))
    for one, fill in ((data, torch.nan), (broken, value)):
        one.values[[5, 30, 70], 0] = fill
    ends = data.series_start[1:]
    assert torch.equal(in_sample_error(broken, ends, 4), in_sample_error(data, ends, 4))
    assert in_sample_error(broken, ends, 4).isfinite().all()
    expected, found = (SeasonalNaive.fit(one, ends, season=4, horizon=6, levels=LEVELS) for one in (data, broken))
    rows = torch.tensor([31, 33, 34, 71, 75])
    assert torch.equal(found.forecast(rows, 6), expected.forecast(rows, 6))
    assert found.forecast(rows, 6).isfinite().all()


@pytest.mark.parametrize(
    ("step", "season"),
    [
        (HOUR, 24),
        (HOUR // 2, 48),
        (HOUR // 4, 96),
        (6 * HOUR, 4),
        (DAY, 7),
        (7 * DAY, 52),
        (30 * DAY, 12),
        (91 * DAY, 4),
        (365 * DAY, 1),
        (12 * DAY, 1),
        (14 * DAY, 26),
        (28 * DAY, 13),
    ],
    ids=[
        "hour",
        "half-hour",
        "quarter-hour",
        "six-hours",
        "day",
        "week",
        "month",
        "quarter",
        "year",
        "odd",
        "two weeks",
        "four weeks",
    ],
)
def test_the_season_follows_from_the_usual_step(step, season):
    assert season_of(panel((400, 300), step)) == season


def test_days_without_weekends_have_a_season_of_five():
    days = torch.arange(200)
    trading_days = days[(days + 3) % 7 < 5]
    data = panel((len(trading_days),), DAY)
    data.time[:] = trading_days * DAY
    assert season_of(data) == 5


@pytest.mark.parametrize(("worked", "season"), [((6, 0, 1, 2, 3), 5), ((0, 1, 2, 3, 4, 5), 6), (range(7), 7)])
def test_days_have_the_season_of_the_days_in_their_week(worked, season):
    days = torch.arange(300)
    days = days[torch.isin((days + 3) % 7, torch.tensor(list(worked)))]
    data = panel((len(days),), DAY)
    data.time[:] = days * DAY
    assert season_of(data) == season


def test_sessions_have_the_season_of_their_own_rows():
    opened = torch.arange(9, 17)  # eight rows a day
    days = torch.arange(200).repeat_interleave(8)
    data = panel((1600,), HOUR)
    data.time[:] = days * DAY + opened.repeat(200) * HOUR
    assert season_of(data) == 8


def test_hours_left_out_now_and_then_leave_the_season_of_a_day():
    data = panel((1200,), HOUR)
    kept = torch.ones(1300, dtype=torch.bool)
    kept[torch.randperm(1300, generator=torch.Generator().manual_seed(0))[:100]] = False
    kept[kept.nonzero()[1200:]] = False
    data.time[:] = torch.arange(1300)[kept] * HOUR
    assert season_of(data) == 24


def test_the_fourth_friday_of_a_month_has_the_season_of_months():
    months = np.arange("2010-01", "2020-01", dtype="datetime64[M]")
    fridays = np.busday_offset(months.astype("datetime64[D]"), 3, roll="forward", weekmask="Fri")
    data = panel((len(fridays),), DAY)
    data.time[:] = torch.from_numpy(fridays.astype("datetime64[ns]").astype(np.int64))
    assert season_of(data) == 12


def test_what_training_learned_of_the_season_holds():
    learned = Preparation(time=TimeMeaning("timestamp", "", "", season=9))
    assert season_of(replace(panel((50,), HOUR), preparation=learned)) == 9


def test_minutes_of_one_day_have_the_season_of_an_hour():
    assert season_of(panel((400,), HOUR // 60)) == 60


def test_steps_without_a_clock_have_no_season():
    assert season_of(panel((50,), 1, TimeKind.STEP)) == 1


def test_single_rows_have_no_season():
    assert season_of(panel((1, 1))) == 1
