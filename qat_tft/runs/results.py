"""The results of a run: q-risk of each of its models and of the naive forecasts, as JSON and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from qat_tft.evaluation.names import NAIVE, TITLES, quantile_name, signed_percent


@dataclass(frozen=True)
class RunResults:
    """What results.json of a run folder holds.

    Attributes:
        run: name of the run.
        quantiles: levels forecast, ascending.
        season: rows of one season of the naive forecast.
        q_risk: forecast ("fp32", "ptq", "qat", "seasonal_naive", "last_value") to its q-risk per quantile, on the
            test part; where the season is one row, the seasonal naive forecast is the last value.
        windows: number of windows per part, and how many of the test were evaluated.
        validation_loss: best validation loss of each phase.
        parameters: number of trained weights.
        seconds: training time, all phases.
        checkpointing: the measured peaks of a step, None where checkpointing was off.
        version: of qat-tft.
    """

    run: str
    quantiles: tuple[float, ...]
    season: int
    q_risk: dict[str, tuple[float, ...]]
    windows: dict[str, int]
    validation_loss: dict[str, float]
    parameters: int
    seconds: float
    checkpointing: dict[str, Any] | None = None
    version: str = ""
    notes: tuple[str, ...] = field(default=())

    @property
    def middle(self) -> int:
        """Position of the quantile nearest to the median."""
        return min(range(len(self.quantiles)), key=lambda place: abs(self.quantiles[place] - 0.5))

    def gain(self, forecast: str) -> float:
        """Return by which share a forecast's q-risk at the middle quantile lies below the seasonal naive's."""
        naive = self.q_risk[NAIVE][self.middle]
        return 1.0 - self.q_risk[forecast][self.middle] / naive if naive else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; quantiles become keys such as "0.5"."""
        levels = [str(level) for level in self.quantiles]
        return {
            **asdict(self),
            "quantiles": list(self.quantiles),
            "q_risk": {name: dict(zip(levels, risks, strict=True)) for name, risks in self.q_risk.items()},
            "gain_over_seasonal_naive": {name: self.gain(name) for name in self.q_risk if name != NAIVE},
            "notes": list(self.notes),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> RunResults:
        """The inverse of `to_json`.

        Raises:
            ValueError: it is not what `to_json` gives.
        """
        try:
            known = {name: value[name] for name in cls.__dataclass_fields__}
            risks = {name: tuple(map(float, one.values())) for name, one in value["q_risk"].items()}
            quantiles, notes = tuple(map(float, value["quantiles"])), tuple(value["notes"])
            return cls(**{**known, "quantiles": quantiles, "q_risk": risks, "notes": notes})
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not the results of a run: {type(error).__name__} {error}") from None

    def tables(self) -> Sequence[RenderableType]:
        """Return the q-risk table and the sentence that compares with the seasonal naive forecast."""
        table = Table(title=f"q-risk on the test part ({self.windows['test_evaluated']:,} windows)")
        table.add_column("forecast")
        for level in self.quantiles:
            table.add_column(quantile_name(level), justify="right")
        table.add_column(f"{quantile_name(self.quantiles[self.middle])} against naive", justify="right")
        for name, risks in self.q_risk.items():
            gain = "" if name == NAIVE else signed_percent(-self.gain(name))
            table.add_row(TITLES.get(name, name), *(f"{risk:.5f}" for risk in risks), gain)
        return [table, Text(self.sentence()), *(Text(note) for note in self.notes)]

    def sentence(self) -> str:
        """Say whether the last model of the run beats the seasonal naive forecast, and by how much."""
        model = next(name for name in ("qat", "ptq", "fp32") if name in self.q_risk)
        level = quantile_name(self.quantiles[self.middle])
        season = f"season of {self.season} steps" if self.season > 1 else "the last value"
        naive = f"the seasonal naive forecast ({season})"
        gain = self.gain(model)
        if gain > 0:
            return f"{TITLES[model]} beats {naive} by {gain:.1%} in q-risk {level}."
        return f"{TITLES[model]} does not beat {naive}: its q-risk {level} is {-gain:.1%} higher."
