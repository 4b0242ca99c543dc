"""The results of a run: q-risk of each of its models and of the naive forecasts, as JSON and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic import TypeAdapter, ValidationError
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from qat_tft.evaluation.names import (
    LAST,
    NAIVE,
    RIDGE,
    TITLES,
    quantile_name,
    risk_text,
    share_text,
    signed_percent,
)
from qat_tft.evaluation.strongest import gain_over, strongest_simple

_NOTICEABLE = 5e-4
"""Share of q-risk below which two forecasts are called equally good: it would be printed as 0.0 %."""
_WORTH_WINNING_BACK = 5e-3
"""Share of the mean q-risk below which what calibration loses is no loss to speak of."""
_MODELS = {"fp32", "ptq", "qat"}
_SAVED = ("windows", "without_bytes", "with_bytes", "saved")
_TIMES = ("without_seconds", "with_seconds")
_TO_TRY = (
    "To try: more --epochs, a longer --history, columns that tell of the future as known ones, another --dropout or "
    "--learning-rate."
)


@dataclass(frozen=True)
class RunResults:
    """What results.json of a run folder holds. What an earlier version did not write is empty, or 0.

    Attributes:
        run: name of the run.
        quantiles: levels forecast, ascending.
        season: rows of one season of the naive forecast.
        q_risk: forecast ("fp32", "ptq", "qat", "ridge", "seasonal_naive", "last_value") to its q-risk per quantile, on
            the test part; None where it is undefined, all targets being zero. Where the season is one row, the seasonal
            naive forecast is the last value.
        coverage: forecast to the share of test targets up to each quantile.
        windows: number of windows per part, and how many of the test were evaluated.
        validation_loss: best validation loss of each phase.
        parameters: number of trained weights.
        seconds: training time, all phases.
        checkpointing: the measured peaks and times of a step, None where checkpointing was off; earlier versions
            measured no times.
        version: of qat-tft.
    """

    run: str
    quantiles: tuple[float, ...]
    season: int
    q_risk: dict[str, tuple[float | None, ...]]
    windows: dict[str, int] = field(default_factory=dict)
    validation_loss: dict[str, float] = field(default_factory=dict)
    parameters: int = 0
    seconds: float = 0.0
    checkpointing: dict[str, Any] | None = None
    version: str = ""
    notes: tuple[str, ...] = field(default=())
    coverage: dict[str, tuple[float | None, ...]] = field(default_factory=dict)

    @property
    def middle(self) -> int:
        """Position of the quantile nearest to the median."""
        return min(range(len(self.quantiles)), key=lambda place: abs(self.quantiles[place] - 0.5))

    @property
    def strongest_simple(self) -> str | None:
        """The forecast without a network that has the lowest q-risk at the middle quantile; None where none has one."""
        return strongest_simple({name: risks[self.middle] for name, risks in self.q_risk.items()})

    def gain(self, forecast: str) -> float | None:
        """Return by which share a forecast's q-risk at the middle quantile lies below the strongest simple forecast's.

        None where either is undefined, or the simple forecast is perfect.
        """
        simple = self.strongest_simple
        other = None if simple is None else self.q_risk[simple][self.middle]
        return gain_over(other, self.q_risk[forecast][self.middle])

    @property
    def rounding_loss(self) -> float | None:
        """By which share calibration alone raises the mean q-risk above FP32's; None where one is unknown."""
        fp32, ptq = (self.mean_risk(name) for name in ("fp32", "ptq"))
        return ptq / fp32 - 1.0 if fp32 and ptq is not None else None

    @property
    def recovered(self) -> float | None:
        """Share of that loss which QAT wins back; None where there is no QAT, or next to nothing to win."""
        fp32, ptq, qat = (self.mean_risk(name) for name in ("fp32", "ptq", "qat"))
        loss = self.rounding_loss
        if fp32 is None or ptq is None or qat is None or loss is None or loss < _WORTH_WINNING_BACK:
            return None
        return (ptq - qat) / (ptq - fp32)

    def mean_risk(self, forecast: str) -> float | None:
        """Return the mean of a forecast's q-risk over the quantiles; None where one is unknown."""
        risks = self.q_risk.get(forecast, (None,))
        known = [risk for risk in risks if risk is not None]
        return sum(known) / len(known) if len(known) == len(risks) else None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; quantiles become keys such as "0.5"."""
        levels = [str(level) for level in self.quantiles]
        return {
            **asdict(self),
            "quantiles": list(self.quantiles),
            "q_risk": {name: dict(zip(levels, risks, strict=True)) for name, risks in self.q_risk.items()},
            "coverage": {name: dict(zip(levels, shares, strict=True)) for name, shares in self.coverage.items()},
            "strongest_simple": self.strongest_simple,
            "recovered": self.recovered,
            "gain_over_strongest_simple": {name: self.gain(name) for name in self.q_risk},
            "notes": list(self.notes),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> RunResults:
        """The inverse of `to_json`.

        Raises:
            ValueError: it is not what `to_json` gives.
        """
        try:
            known = {name: value[name] for name in cls.__dataclass_fields__ if name in value}
            by_level = {name: _by_forecast(known.get(name, {})) for name in ("q_risk", "coverage")}
            quantiles, notes = tuple(map(float, value["quantiles"])), tuple(value.get("notes", ()))
            made = TypeAdapter(cls).validate_python({**known, "quantiles": quantiles, **by_level, "notes": notes})
        except (KeyError, TypeError, AttributeError, ValidationError) as error:
            raise ValueError(f"not the results of a run: {type(error).__name__} {error}") from None
        made._require_sound()
        return made

    def _require_sound(self) -> None:
        """Raise a ValueError where values of the right types are not those of one run."""
        lengths = {len(figures) for by_name in (self.q_risk, self.coverage) for figures in by_name.values()}
        if not self.quantiles or lengths - {len(self.quantiles)} or not _MODELS & self.q_risk.keys() or self.season < 1:
            raise ValueError("not the results of a run: figures of no model, or of other quantiles")
        saved = self.checkpointing
        told = _SAVED if saved is None or not saved.keys() & set(_TIMES) else (*_SAVED, *_TIMES)
        if saved is not None and not all(isinstance(saved.get(name), int | float) for name in told):
            raise ValueError("not the results of a run: what checkpointing saved is not told")

    def tables(self) -> Sequence[RenderableType]:
        """Return q-risk and coverage, and the sentence that compares with the strongest simple forecast."""
        evaluated = self.windows.get("test_evaluated")
        table = Table(title="q-risk on the test part" + (f" ({evaluated:,} windows)" if evaluated else ""))
        table.add_column("forecast")
        names = [quantile_name(level) for level in self.quantiles]
        simple = self.strongest_simple
        for name in names:
            table.add_column(name, justify="right")
        if simple is not None:
            table.add_column(f"{names[self.middle]} against {self._title(simple)}", justify="right")
        for name, risks in self.q_risk.items():
            cells = [risk_text(risk) for risk in risks]
            if simple is not None:
                gain = self.gain(name)
                cells.append("" if name == simple or gain is None else signed_percent(-gain))
            table.add_row(self._title(name), *cells)
        coverage = [self._coverage(names)] if self.coverage else []
        won = [] if self.recovered is None else [Text(self._won_back())]
        return [table, *coverage, Text(self.sentence()), *won, *(Text(note) for note in self.notes)]

    def _won_back(self) -> str:
        assert self.rounding_loss is not None
        assert self.recovered is not None
        loss = f"Rounding alone raises the mean q-risk by {self.rounding_loss:.1%}"
        if self.recovered <= 0:
            return f"{loss}; QAT wins nothing back."
        if self.recovered >= 1:
            return f"{loss}; QAT wins all of that back."
        return f"{loss}; QAT wins back {self.recovered:.0%} of that."

    def _coverage(self, names: list[str]) -> Table:
        table = Table(title="share of test targets up to each quantile")
        table.add_column("forecast")
        for name in names:
            table.add_column(name, justify="right")
        for name, shares in self.coverage.items():
            table.add_row(self._title(name), *map(share_text, shares))
        return table

    def sentence(self) -> str:
        """Say whether the last model of the run beats the strongest simple forecast, by how much, or what to try."""
        model = next(name for name in ("qat", "ptq", "fp32") if name in self.q_risk)
        level, simple, gain = quantile_name(self.quantiles[self.middle]), self.strongest_simple, self.gain(model)
        if simple is None or gain is None:
            return (
                "q-risk is undefined on this test part, whose targets are all zero: forecasts cannot be compared by it."
            )
        strongest = f"the strongest simple forecast, {self.named(simple)},"
        if gain >= _NOTICEABLE:
            return f"{TITLES[model]} beats {strongest} by {gain:.1%} in q-risk {level}."
        if gain > -_NOTICEABLE:
            return f"{TITLES[model]} is as good as {strongest} in q-risk {level}. {_TO_TRY}"
        return f"{TITLES[model]} does not beat {strongest} and its q-risk {level} is {-gain:.1%} higher. {_TO_TRY}"

    def _title(self, name: str) -> str:
        return TITLES[LAST] if name == NAIVE and self.season == 1 else TITLES.get(name, name)

    def named(self, simple: str) -> str:
        """Return what a sentence calls a forecast without a network."""
        if simple != NAIVE:
            return f"{'a' if simple == RIDGE else 'the'} {TITLES[simple]}"
        return f"the value of {self.season} steps before" if self.season > 1 else "the last value"


def _by_forecast(value: dict[str, dict[str, float | None]]) -> dict[str, tuple[float | None, ...]]:
    return {
        name: tuple(None if one is None else float(one) for one in by_level.values())
        for name, by_level in value.items()
    }
