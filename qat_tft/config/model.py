"""Model: the section of the configuration that shapes the network."""

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from qat_tft.config.fields import Count, Fraction, PositiveInt, Quantiles, Section
from qat_tft.model.forms import KNOTS, LEAST_KNOTS, SelectionForm, variables_together

Normalization = Literal["window", "series", "global"]
PathChoice = Literal["auto", "ridge", "last-value", "seasonal-naive", "off"]

MOST_LAYERS, MOST_KNOTS = 100, 2**16  # beyond any use, and within what can be built


class ModelConfig(Section):
    """The shape of the Temporal Fusion Transformer."""

    title: ClassVar = "Model"
    only_in_files: ClassVar = frozenset({"seasonal_difference", "scale_input"})

    history: PositiveInt = Field(default=72, description="time steps the encoder sees")
    horizon: PositiveInt = Field(default=24, description="time steps to forecast")
    hidden: PositiveInt = Field(default=64, description="size of every hidden state")
    heads: PositiveInt = Field(default=4, description="attention heads; must divide hidden")
    dropout: Fraction = Field(default=0.1, description="dropout probability")
    quantiles: Quantiles = Field(default=(0.1, 0.5, 0.9), description="quantiles to forecast, ascending")
    encoder_layers: int = Field(
        default=0, ge=0, le=MOST_LAYERS, description="gated layers after each selection; 0: as in the paper"
    )
    selection: SelectionForm = Field(
        default="tabulated",
        description="selection networks: tabulated (each variable's GRN at knots), or exact (at every row)",
    )
    knots: int = Field(
        default=KNOTS,
        ge=LEAST_KNOTS,
        le=MOST_KNOTS,
        description="knots of each real variable in tabulated selection",
    )
    selection_chunk: PositiveInt | None = Field(
        default=None, description="variables a selection network computes at once; none: what suits form and device"
    )

    normalize: Normalization = Field(
        default="window",
        description="what the target is normalized by: the mean and scale of each window, or the statistics of its "
        "series, or those over all series",
    )
    linear_path: PathChoice = Field(
        default="auto",
        description="linear forecast from the target's history beside the network: the last value, the value one "
        "season before, or a ridge regression around one; auto: the one with the lowest validation loss; off: none",
    )
    calibrate_quantiles: bool = Field(
        default=False,
        description="shift each step's quantiles by what late validation windows say, where that lowers their loss on "
        "later ones",
    )
    scale_input: bool | None = Field(
        default=None,
        description="give the network the scale of a normalized window as a static input; none: with several series",
    )
    seasonal_difference: Count = Field(
        default=0, description="forecast the target's change over this many rows, 0: its level"
    )

    @model_validator(mode="after")
    def _shape_fits(self) -> Self:
        if self.hidden % self.heads:
            raise ValueError(f"model.heads {self.heads} must divide model.hidden {self.hidden}")
        framed = self.normalize == "window" or self.linear_path != "off" or self.calibrate_quantiles
        if self.seasonal_difference and framed:
            raise ValueError(
                "model.seasonal_difference goes with model.linear_path off, with model.normalize series or global, "
                "and without model.calibrate_quantiles"
            )
        if self.seasonal_difference > self.history:
            raise ValueError(
                f"model.seasonal_difference {self.seasonal_difference} must not exceed model.history {self.history}"
            )
        if not self.quantiles or list(self.quantiles) != sorted(set(self.quantiles)):
            raise ValueError(f"model.quantiles {self.quantiles} must be ascending, without repeats, at least one")
        return self

    @property
    def variables_together(self) -> int:
        """How many variables a selection network computes at once; where it is not decided, as on a CPU."""
        return variables_together(self.selection, self.selection_chunk)
