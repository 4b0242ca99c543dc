"""What every side is given to do: two shapes of model and batch. Read in every side's environment, so no imports."""

from __future__ import annotations

from dataclasses import dataclass

FORM: dict[str, str | int] = {"selection": "tabulated"}
"""The form of our selection networks that is measured: fields of the model's configuration, options of `qat-tft`."""
EXACT_FORM: dict[str, str | int] = {"selection": "exact"}
"""The form whose forecasts the measured one is compared with."""


@dataclass(frozen=True)
class Workload:
    """A TFT of real columns and the batch that it trains on.

    Attributes:
        static, observed, known: number of columns; the target is one of the observed ones.
        hidden: size of every vector, and of every variable's embedding.
        heads: attention heads.
        history, horizon: steps seen and forecast.
        batch: windows of a training step.
        dropout: probability of every dropout layer.
        quantiles: levels forecast.
    """

    static: int
    observed: int
    known: int
    hidden: int
    heads: int
    history: int
    horizon: int
    batch: int
    dropout: float = 0.1
    quantiles: tuple[float, ...] = (0.1, 0.5, 0.9)


WORKLOADS = {
    "w1": Workload(static=5, observed=210, known=10, hidden=128, heads=4, history=50, horizon=10, batch=32),
    "w2": Workload(static=0, observed=7, known=4, hidden=32, heads=4, history=168, horizon=24, batch=64),
}
