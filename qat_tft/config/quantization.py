"""Quantization: the section of the configuration that says what is rounded, how and for which machine."""

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self, cast

from pydantic import BeforeValidator, Field, model_validator

from qat_tft.checkpointing.budget import parse_memory
from qat_tft.config.fields import Count, Fraction, MemoryAmount, Names, PositiveInt, Section, Share
from qat_tft.model.forms import SelectionForm
from qat_tft.quantization.bits import BitLayout, Bits, parse_layers
from qat_tft.quantization.products import Products, products_for
from qat_tft.quantization.scheme import FEW_BITS_UNSHOWN, TARGETS, scheme_for


def _text_of_number(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


if TYPE_CHECKING:
    TargetName = str
else:
    TargetName = Literal[TARGETS]


WeightBitsName = Annotated[Literal["8", "4", "2", "auto"], BeforeValidator(_text_of_number)]
"""How many bits; TOML's whole numbers are taken as well."""


class QuantizationConfig(Section):
    """Calibration and quantization-aware training."""

    title: ClassVar = "Quantization"
    flags: ClassVar = {"target": "--target-profile"}
    only_in_files: ClassVar = frozenset({"calibration_batches", "frozen", "qat_selection_chunk"})

    use_qat: bool = Field(default=False, description="add quantization-aware training after the floating-point epochs")
    use_int8: bool = Field(default=False, description="also export the INT8 ONNX file at the end")
    target: TargetName = Field(default="x86", description="profile of the machine that runs the file")
    products: Literal["auto", "integer", "float"] = Field(
        default="auto",
        description="products of the INT8 file: on integers, or in floating point over weights of 8 bits; "
        "auto: the faster one for hidden size and target",
    )
    weight_bits: WeightBitsName = Field(
        default="8",
        description="bits of the weights in the INT8 file, 8, 4 or 2; auto: layer by layer, as --max-drop or "
        "--max-bytes has it",
    )
    layer_bits: Names = Field(
        default=(), description="bits of layers that differ from --weight-bits, such as head=8; separated by commas"
    )
    qat_selection: SelectionForm | None = Field(
        default=None, description="selection networks in QAT and in the INT8 file: tabulated or exact; none: as trained"
    )
    qat_selection_chunk: PositiveInt | None = Field(
        default=None,
        description="where qat_selection differs from selection, variables that its networks compute at once; none: as "
        "selection_chunk, or what suits form and device",
    )
    qat_epochs: Count = Field(default=3, description="quantization-aware epochs; 0: calibration only (PTQ)")
    qat_learning_rate: float | None = Field(
        default=None, gt=0.0, description="peak learning rate of the QAT epochs; none: half of --learning-rate"
    )
    distill: float = Field(
        default=0.0,
        ge=0.0,
        le=1.0,
        description="weight in the QAT loss of the distance to the floating-point model's quantiles",
    )
    qat_control: bool | None = Field(
        default=None,
        description="train the floating-point model on for as many steps as QAT, to compare with; none: where weights "
        "have fewer than 8 bits",
    )
    qat_ranges: Literal["observed", "learned"] = Field(
        default="observed", description="activation ranges in QAT: observed, or learned (scales are trained)"
    )
    max_drop: Share | None = Field(
        default=None,
        ge=0.0,
        description="with --weight-bits auto: share by which the mean q-risk of the calibrated model may lie above "
        "FP32's, such as 0.5%; none: 0.5%, unless --max-bytes is given",
    )
    max_bytes: MemoryAmount | None = Field(
        default=None, description="with --weight-bits auto: most that the weights may take, such as 40KB"
    )
    weight_scales: Literal["fixed", "learned"] = Field(
        default="learned",
        description="scales of weights with fewer than 8 bits in QAT: as calibration found them, or trained",
    )
    calibrator: Literal["auto", "moving-average", "min-max", "percentile", "mse"] = Field(
        default="auto",
        description="how calibration derives a range; auto: the way with the lowest validation loss",
    )
    calibration_batches: PositiveInt = Field(default=32, description="training batches observed before QAT")
    float_layers: Names = Field(default=(), description="layers to leave in floating point; separated by commas")
    frozen: Fraction = Field(default=0.5, description="share of the QAT steps, at the end, that run with frozen ranges")

    @property
    def has_control(self) -> bool:
        """Whether the floating-point model is trained on beside QAT."""
        return self.layout.fewest < 8 if self.qat_control is None else self.qat_control

    def products_at(self, hidden: int) -> Products:
        """Return the form of the products of a model with that hidden size: what is set, or what `auto` stands for."""
        return products_for(self.target, hidden) if self.products == "auto" else self.products

    @property
    def byte_budget(self) -> int | None:
        """The most bytes that weights may take; None without a limit.

        Raises:
            ConfigError: `max_bytes` is no amount.
        """
        return None if self.max_bytes is None else parse_memory(self.max_bytes, where="quantization.max_bytes").size

    @property
    def layout(self) -> BitLayout:
        """How many bits the weights of each layer have; `auto` counts as 8 until it is decided."""
        bits = cast(Bits, 8 if self.weight_bits == "auto" else int(self.weight_bits))
        return BitLayout(bits, parse_layers(self.layer_bits), learned=self.weight_scales == "learned")

    @model_validator(mode="after")
    def _bits_fit(self) -> Self:
        assert self.byte_budget is None or self.byte_budget > 0, "as it is parsed"
        if self.weight_bits != "auto" and (self.max_drop is not None or self.max_bytes is not None):
            raise ValueError("quantization.max_drop and max_bytes go with quantization.weight_bits auto")
        fewest = 4 if self.weight_bits == "auto" else self.layout.fewest
        if fewest < 8 and not scheme_for(self.target).few_bits:
            raise ValueError(f"quantization.target {self.target} has weights of 8 bits only: {FEW_BITS_UNSHOWN}")
        return self

    @model_validator(mode="after")
    def _int8_needs_qat(self) -> Self:
        if self.use_int8 and not self.use_qat:
            raise ValueError(
                "quantization.use_int8 exports the quantization-aware model: set quantization.use_qat as well"
            )
        return self
