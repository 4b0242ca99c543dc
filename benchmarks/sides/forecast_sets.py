"""The sets that forecasts are compared on: columns, split, windows. Read in every side's environment, so no imports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

QUANTILES = (0.1, 0.5, 0.9)
BATCH, STEPS = 64, 600
CALENDAR = {"hour": 24, "day_of_week": 7, "month": 12}
"""Calendar features and how many places their cycle has."""


@dataclass(frozen=True)
class ForecastSet:
    """A Parquet file, what its columns are, and the windows that every model forecasts.

    Attributes:
        name: of the set and its file.
        time, target: columns.
        series: columns that name a series together; static categories as well where there are several series.
        history, horizon: rows seen and forecast; gaps in time are not looked at.
        validation_from, test_from, test_until: the split, each the first time after a part; None for the end.
        season: rows of the seasonal naive forecast, and of the error that the scaled error is divided by.
        hidden: size of every vector of a model.
        static_categories, static_reals, observed, known_reals, known_categories: columns.
        known_cycles: known column to its first and its number of places, such as months from 1, 12 of them.
        calendar: features that follow from the time.
        inside: whether the histories of test windows lie in the test part as well.
    """

    name: str
    time: str
    target: str
    series: tuple[str, ...]
    history: int
    horizon: int
    validation_from: str
    test_from: str
    season: int
    test_until: str | None = None
    hidden: int = 32
    static_categories: tuple[str, ...] = ()
    static_reals: tuple[str, ...] = ()
    observed: tuple[str, ...] = ()
    known_reals: tuple[str, ...] = ()
    known_categories: tuple[str, ...] = ()
    known_cycles: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    calendar: tuple[str, ...] = ()
    inside: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return plain values, which say whether two definitions are the same."""
        return asdict(self)


FORECAST_SETS = {
    one.name: one
    for one in (
        ForecastSet(
            "stallion_beverages",
            time="date",
            target="volume",
            series=("agency", "sku"),
            history=24,
            horizon=6,
            validation_from="2017-01-01",
            test_from="2017-07-01",
            season=12,
            hidden=16,
            static_categories=("agency", "sku"),
            static_reals=("avg_population_2017", "avg_yearly_household_income_2017"),
            observed=("industry_volume", "soda_volume", "avg_max_temp"),
            known_reals=(
                *("price_regular", "price_actual", "discount", "discount_in_percent"),
                *("easter_day", "good_friday", "new_year", "christmas", "labor_day", "independence_day"),
                *("revolution_day_memorial", "regional_games", "beer_capital", "music_fest"),
            ),
            calendar=("month",),
        ),
        ForecastSet(
            "bike_sharing_hourly",
            time="time",
            target="cnt",
            series=("series_id",),
            history=168,
            horizon=24,
            validation_from="2012-10-12",
            test_from="2012-12-11",
            season=24,
            known_reals=("holiday", "working_day", "temp_c", "feel_temp_c", "humidity", "wind_speed"),
            known_categories=("season", "weather"),
            known_cycles={"hour": (0, 24), "weekday": (0, 7), "month": (1, 12)},
        ),
        ForecastSet(
            "ett_h1",
            time="date",
            target="OT",
            series=("series_id",),
            history=168,
            horizon=24,
            validation_from="2017-06-26",
            test_from="2017-10-24",
            test_until="2018-02-21",
            season=24,
            observed=("HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL"),
            calendar=("hour", "day_of_week", "month"),
        ),
        ForecastSet(
            "vic_electricity",
            time="time",
            target="demand",
            series=("series_id",),
            history=192,
            horizon=48,
            validation_from="2014-04-01",
            test_from="2014-10-01",
            season=48,
            observed=("temperature",),
            known_reals=("holiday",),
            known_cycles={"half_hour_of_day": (0, 48), "day_of_week": (1, 7)},
            calendar=("month",),
        ),
        ForecastSet(
            "oxford_man_volatility",
            time="date",
            target="log_vol",
            series=("symbol",),
            history=252,
            horizon=5,
            validation_from="2016-01-01",
            test_from="2018-01-01",
            test_until="2019-06-29",
            season=5,
            static_categories=("symbol", "region"),
            observed=("ret", "rv5"),
            known_reals=("days_from_start", "day_of_month", "week_of_year"),
            known_cycles={"day_of_week": (1, 7), "month": (1, 12)},
            inside=True,
        ),
    )
}
"""By name, the quickest first."""
