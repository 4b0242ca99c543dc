"""What a backtest found, as JSON and as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from qat_tft.data.time.season import LAST_VALUE
from qat_tft.evaluation.names import LAST, NAIVE, SIMPLE, TITLES, quantile_name, risk_text, share_text, signed_percent
from qat_tft.evaluation.rolling_origins import ModelScores
from qat_tft.evaluation.scores import nearest_to_median
from qat_tft.evaluation.strongest import gain_over, strongest_simple

_SHOWN_STEPS = 12
_SHOWN_SERIES = 10


@dataclass(frozen=True)
class BacktestReport:
    """What `qat-tft backtest` shows.

    Attributes:
        run: name of the run.
        source: the data.
        first_origin, last_origin: times of the first and last row that a forecast knew.
        stride: rows between the origins of a series.
        windows: number of origins, over all series; `series` of them in all.
        levels: quantiles, ascending.
        season: rows of one season, of the naive forecast and of the errors that scale.
        scores: model to its scores.
        series: place in the panel to the name of each series that was forecast.
        notes: one sentence each.
        out: where the forecasts stand, None where they were not kept.
    """

    run: str
    source: str
    first_origin: str
    last_origin: str
    stride: int
    windows: int
    levels: tuple[float, ...]
    season: int
    scores: Mapping[str, ModelScores]
    series: Mapping[int, str]
    notes: tuple[str, ...]
    out: Path | None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, with every step and every series."""
        return {
            "run": self.run,
            "source": self.source,
            "first_origin": self.first_origin,
            "last_origin": self.last_origin,
            "stride": self.stride,
            "windows": self.windows,
            "series": len(self.series),
            "season": self.season,
            "quantiles": list(self.levels),
            "models": {name: self._model(scores) for name, scores in self.scores.items()},
            "strongest_simple": self.strongest_simple,
            "gain_over_strongest_simple": self.gains,
            "notes": list(self.notes),
            "out": str(self.out) if self.out else None,
        }

    @property
    def strongest_simple(self) -> str | None:
        """The naive forecast with the lowest q-risk at the middle quantile; None where none has one."""
        return strongest_simple(self._middle_risks)

    @property
    def gains(self) -> dict[str, float | None]:
        """By which share the q-risk of each forecast lies below that of the strongest naive one; None: undefined."""
        risks, simple = self._middle_risks, self.strongest_simple
        return {name: gain_over(None if simple is None else risks[simple], risk) for name, risk in risks.items()}

    @property
    def _middle_risks(self) -> dict[str, float | None]:
        middle = nearest_to_median(self.levels)
        return {name: scores.overall.q_risk[middle] for name, scores in self.scores.items()}

    def tables(self) -> Sequence[RenderableType]:
        """Return the scores overall, the coverage, the scores by step and by series, and the notes."""
        shown: list[RenderableType] = [self._origins(), self._overall(), *self._strongest(), self._coverage()]
        if len(self._one().steps) > 1:
            shown.append(self._by_step())
        if len(self.series) > 1:
            shown.append(self._by_series())
        where = [f"Every forecast: {self.out}"] if self.out else []
        return [*shown, *self.notes, *where]

    def _model(self, scores: ModelScores) -> dict[str, Any]:
        return {
            **scores.overall.to_json(self.levels),
            "by_step": [step.to_json(self.levels) for step in scores.steps],
            "by_series": {name: scores.series[place].to_json(self.levels) for place, name in self.series.items()},
        }

    def _one(self) -> ModelScores:
        return next(iter(self.scores.values()))

    def _origins(self) -> Text:
        series = f"{len(self.series):,} series" if len(self.series) > 1 else "one series"
        stride = f"{self.stride} rows" if self.stride > 1 else "one row"
        return Text(
            f"{self.windows:,} origins in {series} from {self.first_origin} to {self.last_origin}, a stride of "
            f"{stride}; {self._one().overall.targets:,} targets scored"
        )

    def _overall(self) -> Table:
        table = Table(title="q-risk and errors")
        table.add_column("forecast")
        for name in (*map(quantile_name, self.levels), "MAE", "MASE", "bias"):
            table.add_column(name, justify="right")
        for model, scores in self.scores.items():
            found = scores.overall
            risks = (risk_text(risk) for risk in found.q_risk)
            table.add_row(self._title(model), *risks, _number(found.mae), _ratio(found.mase), _number(found.bias))
        return table

    def _strongest(self) -> list[Text]:
        """Name the strongest naive forecast, and say how the models compare with it."""
        simple = self.strongest_simple
        if simple is None:
            return []
        level = quantile_name(self.levels[nearest_to_median(self.levels)])
        gains = {name: gain for name, gain in self.gains.items() if name not in SIMPLE and gain is not None}
        compared = ", ".join(f"{self._title(name)} {signed_percent(-gain)}" for name, gain in gains.items())
        against = f"; q-risk {level} against it: {compared}" if compared else ""
        return [Text(f"The strongest simple forecast is {self._title(simple)}{against}")]

    def _coverage(self) -> Table:
        names = [quantile_name(level) for level in self.levels]
        table = Table(title="share of targets up to each quantile")
        table.add_column("forecast")
        outer = [f"{names[0]} to {names[-1]}"] if len(names) > 1 else []
        for name in (*names, *outer):
            table.add_column(name, justify="right")
        for model, scores in self.scores.items():
            found = scores.overall
            shares = [*found.coverage, *([found.interval] if outer else [])]
            table.add_row(self._title(model), *map(share_text, shares))
        return table

    def _by_step(self) -> Table:
        middle, steps = nearest_to_median(self.levels), self._one().steps
        chosen = _even(len(steps), _SHOWN_STEPS)
        table = self._models_table("step", f"q-risk {quantile_name(self.levels[middle])} by step")
        for step in chosen:
            risks = (risk_text(scores.steps[step].q_risk[middle]) for scores in self.scores.values())
            table.add_row(str(step + 1), *risks)
        return table

    def _by_series(self) -> Table:
        first, middle = self._one().series, nearest_to_median(self.levels)
        order = sorted(self.series, key=lambda place: -_or_least(first[place].mase))[:_SHOWN_SERIES]
        shown = f"the {len(order)} of {len(self.series):,} series with the largest MASE"
        whose = shown if len(order) < len(self.series) else "series by MASE"
        table = self._models_table("series", f"q-risk {quantile_name(self.levels[middle])} of {whose}")
        table.add_column(f"MASE {self._title(next(iter(self.scores)))}", justify="right")
        for place in order:
            risks = (risk_text(scores.series[place].q_risk[middle]) for scores in self.scores.values())
            table.add_row(self.series[place], *risks, _ratio(first[place].mase))
        return table

    def _title(self, model: str) -> str:
        if model == NAIVE and self.season == LAST_VALUE:
            model = LAST  # which it is
        return TITLES.get(model, model)

    def _models_table(self, rows: str, title: str) -> Table:
        table = Table(title=title)
        table.add_column(rows)
        for model in self.scores:
            table.add_column(self._title(model), justify="right")
        return table


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.5g}"


def _or_least(value: float | None) -> float:
    return -1.0 if value is None else value


def _even(count: int, limit: int) -> list[int]:
    return list(range(count)) if count <= limit else [at * (count - 1) // (limit - 1) for at in range(limit)]
