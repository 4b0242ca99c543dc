"""Quantization: the section of the configuration that says what is rounded, how and for which machine."""

from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from qat_tft.config.fields import Fraction, Names, PositiveInt, Section
from qat_tft.model.forms import SelectionForm
from qat_tft.quantization.products import Products, products_for
from qat_tft.quantization.scheme import TARGETS

if TYPE_CHECKING:
    TargetName = str
else:
    TargetName = Literal[TARGETS]


class QuantizationConfig(Section):
    """Calibration and quantization-aware training."""

    title: ClassVar = "Quantization"
    flags: ClassVar = {"target": "--target-profile"}
    only_in_files: ClassVar = frozenset({"calibration_batches", "frozen"})

    use_qat: bool = Field(default=False, description="add quantization-aware training after the floating-point epochs")
    use_int8: bool = Field(default=False, description="also export the INT8 ONNX file at the end")
    target: TargetName = Field(default="x86", description="profile of the machine that runs the file")
    products: Literal["auto", "integer", "float"] = Field(
        default="auto",
        description="products of the INT8 file: on integers, or in floating point over weights of 8 bits; "
        "auto: the faster one for hidden size and target",
    )
    qat_selection: SelectionForm | None = Field(
        default=None, description="selection networks in QAT and in the INT8 file: tabulated or exact; none: as trained"
    )
    qat_epochs: int = Field(default=3, ge=0, description="quantization-aware epochs; 0: calibration only (PTQ)")
    qat_learning_rate: float = Field(default=1e-4, gt=0.0, description="peak learning rate of the QAT epochs")
    qat_ranges: Literal["observed", "learned"] = Field(
        default="observed", description="activation ranges in QAT: observed, or learned (scales are trained)"
    )
    calibrator: Literal["moving-average", "min-max", "percentile", "mse"] = Field(
        default="moving-average", description="how calibration derives a range"
    )
    calibration_batches: PositiveInt = Field(default=32, description="training batches observed before QAT")
    float_layers: Names = Field(default=(), description="layers to leave in floating point; separated by commas")
    frozen: Fraction = Field(default=0.5, description="share of the QAT steps, at the end, that run with frozen ranges")

    def products_at(self, hidden: int) -> Products:
        """Return the form of the products of a model with that hidden size: what is set, or what `auto` stands for."""
        return products_for(self.target, hidden) if self.products == "auto" else self.products

    @model_validator(mode="after")
    def _int8_needs_qat(self) -> Self:
        if self.use_int8 and not self.use_qat:
            raise ValueError(
                "quantization.use_int8 exports the quantization-aware model: set quantization.use_qat as well"
            )
        return self
