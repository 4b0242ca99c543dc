"""What `qat-tft sensitivity` shows: the cost of rounding each layer or segment alone, and the choice made from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import RenderableType
from rich.table import Column, Table
from rich.text import Text

from qat_tft.evaluation.names import quantile_name, signed_percent
from qat_tft.evaluation.scores import nearest_to_median
from qat_tft.quantization.rounding_costs import Costs, FloatChoice, Risks, mean, rise


@dataclass(frozen=True)
class Sensitivity:
    """What was measured, all on the same validation windows; q-risks are per quantile.

    Attributes:
        run: name of the run.
        trained: whether the run has quantization-aware weights; otherwise its FP32 weights were calibrated.
        quantiles: levels forecast.
        windows: how many were forecast.
        groups: each layer or segment to its layers; weights: to how many numbers these multiply by.
        fp32: of the FP32 model; rounded: with every layer rounded.
        costs: of each group alone.
        max_drop: share by which the mean q-risk may lie above the FP32 model's; None where nothing was asked.
        choice: the groups to leave in floating point for that; None where it was not asked or cannot be kept.
    """

    run: str
    trained: bool
    quantiles: tuple[float, ...]
    windows: int
    groups: dict[str, tuple[str, ...]]
    weights: dict[str, int]
    fp32: Risks
    rounded: Risks
    costs: Costs
    max_drop: float | None = None
    choice: FloatChoice | None = None

    @property
    def float_layers(self) -> tuple[str, ...] | None:
        """The layers to leave in floating point; None where there is no choice."""
        if self.choice is None:
            return None
        return tuple(layer for group in self.choice.groups for layer in self.groups[group])

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; quantiles become keys such as "0.5"."""
        named = self._named
        return {
            "run": self.run,
            "quantization_aware": self.trained,
            "windows": self.windows,
            "q_risk": {"fp32": named(self.fp32), "unrounded": named(self.costs.unrounded), "int8": named(self.rounded)},
            "groups": [
                {
                    "name": group,
                    "layers": list(self.groups[group]),
                    "weights": self.weights[group],
                    "q_risk": named(risks),
                    "rise": self.costs.rise(group),
                }
                for group, risks in self.costs.alone.items()
            ],
            "max_drop": self.max_drop,
            "choice": None
            if self.choice is None
            else {
                "float_layers": list(self.float_layers or ()),
                "q_risk": named(self.choice.risks),
                "rise": self._drop(self.choice.risks),
            },
        }

    def tables(self) -> Sequence[RenderableType]:
        """Return the groups by what each costs alone, and the sentences on all together and on the choice."""
        middle = nearest_to_median(self.quantiles)
        median = quantile_name(self.quantiles[middle])
        table = Table(Column("rounded alone", overflow="fold"), "weights", f"q-risk {median}", "mean q-risk")
        table.title = f"What rounding costs on {self.windows:,} validation windows"
        table.caption = "Relative to the same weights without rounding; the mean is over all quantiles."
        for group, risks in self.costs.alone.items():
            before = self.costs.unrounded[middle]
            change = signed_percent(risks[middle] / before - 1.0, digits=3)
            table.add_row(group, f"{self.weights[group]:,}", change, signed_percent(self.costs.rise(group), digits=3))
        return [table, Text(self._all_rounded()), *(Text(line) for line in self._choice())]

    def _all_rounded(self) -> str:
        kind = "weights of the run" if self.trained else "FP32 weights, calibrated for this"
        change = signed_percent(self._drop(self.rounded), digits=3)
        return f"All layers rounded ({kind}): mean q-risk {mean(self.rounded):.5f}, {change} against FP32."

    def _choice(self) -> list[str]:
        if self.max_drop is None:
            return []
        if self.choice is None:
            best = signed_percent(rise(self.costs.unrounded, self.fp32), digits=3)
            return [f"No choice stays within {self.max_drop:.3%}: without rounding, these weights are at {best}."]
        change = signed_percent(self._drop(self.choice.risks), digits=3)
        if not self.choice.groups:
            return [f"Within {self.max_drop:.3%} with every layer INT8."]
        names = ", ".join(self.choice.groups)
        return [f"Within {self.max_drop:.3%} with these left in floating point: {names}. Measured: {change}."]

    def _drop(self, risks: Risks) -> float:
        return rise(risks, self.fp32)

    def _named(self, risks: Risks) -> dict[str, float]:
        return {str(level): risk for level, risk in zip(self.quantiles, risks, strict=True)}
