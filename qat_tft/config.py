"""The configuration of a run: data, model, training and quantization; read from and written to TOML."""

import os
import tomllib
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import tomli_w
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from qat_tft.checkpointing.budget import parse_memory
from qat_tft.checkpointing.segments import parse_segments, segments_of
from qat_tft.data.missing import MissingPolicies
from qat_tft.data.preparation import DuplicatePolicy, GapPolicy, Preparation
from qat_tft.errors import ConfigError

Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
Quantile = Annotated[float, Field(gt=0.0, lt=1.0)]
PositiveInt = Annotated[int, Field(ge=1)]
ModeName = Literal["off", "aggressive", "full"]


def _moment_text(value: object) -> object:
    return str(value) if isinstance(value, date | int) and not isinstance(value, bool) else value


Moment = Annotated[str, BeforeValidator(_moment_text)]
"""A time as text: ISO 8601, or the whole number of a step. TOML's own dates and numbers are taken as well."""


def _split_names(value: object) -> object:
    return tuple(name.strip() for name in value.split(",") if name.strip()) if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_split_names)]
"""Names as a list, or in one text separated by commas."""


class Section(BaseModel):
    """A group of settings: frozen, and a key it does not know is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class DataConfig(Section):
    """Where the rows come from and how they are split and standardized."""

    parquet_files: tuple[str, ...] = Field(default=(), description="Parquet files; none: the embedded temperatures")
    validation: Fraction = Field(default=0.1, description="share of the time span for validation")
    test: Fraction = Field(default=0.1, description="share of the time span for the test")
    validation_from: Moment | None = Field(default=None, description="first time of validation, instead of a share")
    test_from: Moment | None = Field(default=None, description="first time of the test, instead of a share")
    test_until: Moment | None = Field(default=None, description="first time after the test; none: the data end it")
    standardize: Literal["series", "global"] = Field(default="series", description="statistics per series or of all")
    unknown_rate: Fraction = Field(default=0.01, description="share of categories masked as unknown in training")
    season: PositiveInt | None = Field(
        default=None, description="period of the seasonal naive forecast in rows; none: from the time step"
    )
    duplicates: DuplicatePolicy = Field(
        default="error", description="rows of the same series and time: refused, the last one kept, or averaged"
    )
    gaps: GapPolicy = Field(
        default="ignore",
        description="time steps without a row: refused, the next row is the next step, rows are inserted, "
        "or no window spans them",
    )
    cache: bool = Field(default=True, description="keep the rows of large files prepared for the next start")
    cache_dir: str | None = Field(
        default=None, description="folder of the prepared rows; none: qat-tft in the user's cache folder"
    )
    missing: Names = Field(
        default=(),
        description="missing values of every real column, or of one as column=policy: "
        "error (unless given), forward, mean, zero",
    )
    min_history: PositiveInt | None = Field(
        default=None, description="fewest rows of a history, shorter ones are padded and masked; none: all of them"
    )
    target_transform: Literal["none", "log", "log1p", "softplus"] = Field(
        default="none", description="transform of a positive target before standardization, undone in the forecast"
    )
    calendar: Names = Field(
        default=(), description="known columns made of the time, such as hour,day_of_week,month:category"
    )

    @field_validator("calendar")
    @classmethod
    def _calendar_is_known(cls, features: tuple[str, ...]) -> tuple[str, ...]:
        if not features:
            return features
        from qat_tft.data.calendar import parse_calendar  # with it come numpy and pyarrow, for every command line

        try:
            parse_calendar(features)
        except ValueError as problem:
            raise ValueError(f"data.calendar: {problem}") from None
        return features

    @field_validator("missing")
    @classmethod
    def _policies_are_known(cls, entries: tuple[str, ...]) -> tuple[str, ...]:
        MissingPolicies.parse(entries)
        return entries

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if (self.validation_from is None) != (self.test_from is None):
            raise ValueError("set data.validation_from and data.test_from together, or neither")
        if self.validation + self.test >= 1.0:
            raise ValueError(
                f"data.validation {self.validation} + data.test {self.test} leave no training rows: below 1"
            )
        return self

    @property
    def cache_folder(self) -> Path | None:
        """Where prepared rows are kept; None where they are not to be."""
        if not self.cache:
            return None
        if self.cache_dir is not None:
            return Path(self.cache_dir)
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "qat-tft"

    @property
    def preparation(self) -> Preparation:
        """What these settings do to rows between the file and the windows."""
        return Preparation(
            duplicates=self.duplicates,
            gaps=self.gaps,
            missing=self.missing,
            min_history=self.min_history,
            calendar=self.calendar,
        )


class ModelConfig(Section):
    """The shape of the Temporal Fusion Transformer."""

    history: PositiveInt = Field(default=72, description="time steps the encoder sees")
    horizon: PositiveInt = Field(default=24, description="time steps forecast")
    hidden: PositiveInt = Field(default=64, description="features of every hidden state")
    heads: PositiveInt = Field(default=4, description="attention heads; must divide hidden")
    dropout: Fraction = Field(default=0.1, description="dropout probability")
    quantiles: tuple[Quantile, ...] = Field(default=(0.1, 0.5, 0.9), description="quantiles forecast, ascending")
    encoder_layers: int = Field(default=0, ge=0, description="gated layers after each selection; 0: as in the paper")
    selection_chunk: PositiveInt = Field(default=4, description="variables a selection computes at once")

    seasonal_difference: int | None = Field(
        default=None,
        ge=0,
        description="forecast the target's change over this many rows, 0: its level; "
        "none: over the season if the history holds two and it explains most of the target",
    )

    @model_validator(mode="after")
    def _shape_fits(self) -> Self:
        if self.hidden % self.heads:
            raise ValueError(f"model.heads {self.heads} must divide model.hidden {self.hidden}")
        if (self.seasonal_difference or 0) > self.history:
            raise ValueError(
                f"model.seasonal_difference {self.seasonal_difference} must not exceed model.history {self.history}"
            )
        if not self.quantiles or list(self.quantiles) != sorted(set(self.quantiles)):
            raise ValueError(f"model.quantiles {self.quantiles} must be ascending, each once, at least one")
        return self


class TrainingConfig(Section):
    """The training loop."""

    epochs: int = Field(default=10, ge=0, description="epochs in floating point")
    batch_size: PositiveInt = Field(default=64, description="windows a step")
    batches_per_epoch: PositiveInt | None = Field(
        default=None, description="batches an epoch draws; none: all windows once"
    )
    accumulation: PositiveInt = Field(default=1, description="batches whose gradients are added before a step")
    learning_rate: float = Field(default=2e-3, gt=0.0, description="peak of the warm-up and cosine schedule")
    warmup: Fraction = Field(default=0.05, description="share of a phase's steps with a rising learning rate")
    weight_decay: float = Field(default=1e-4, ge=0.0, description="decoupled weight decay of AdamW")
    gradient_clip: float = Field(default=1.0, gt=0.0, description="largest gradient norm")
    validation_windows: PositiveInt = Field(
        default=4096, description="most windows a validation looks at, evenly spaced"
    )
    test_windows: PositiveInt = Field(default=16384, description="most windows of the test, evenly spaced")
    patience: PositiveInt = Field(default=4, description="epochs without a better validation loss before stopping")
    seed: int = Field(default=0, ge=0, lt=2**31, description="seed of weights, dropout and shuffling")
    precision: Literal["fp32", "bf16", "fp16"] = Field(default="fp32", description="number format of the forward pass")
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="where to train")
    use_gradient_checkpointing: bool = Field(default=False, description="recompute activations in the backward pass")
    checkpoint_mode: Literal[ModeName, "auto"] | None = Field(
        default=None,
        description="which segments; none: full with use_gradient_checkpointing, off without; "
        "auto: the fastest mode whose step fits memory_budget",
    )
    memory_budget: str | None = Field(
        default=None, description="with checkpoint_mode auto: most memory a training step may take, as 3.5GiB"
    )

    checkpoint_segments: Names | None = Field(
        default=None, description="segments to recompute, instead of a mode's; separated by commas"
    )

    @model_validator(mode="after")
    def _checkpointing_fits(self) -> Self:
        if self.checkpoint_segments is not None:
            parse_segments(",".join(self.checkpoint_segments))
            if self.checkpoint_mode is not None:
                raise ValueError(
                    "training.checkpoint_mode and training.checkpoint_segments both choose segments: drop one of them"
                )
        if self.use_gradient_checkpointing and self.checkpoint_mode == "off":
            raise ValueError(
                "training.use_gradient_checkpointing contradicts training.checkpoint_mode off: drop one of them"
            )
        if self.memory_budget is not None:
            parse_memory(self.memory_budget, where="training.memory_budget")
        if (self.memory_budget is not None) != (self.checkpoint_mode == "auto"):
            raise ValueError(
                "training.checkpoint_mode auto and training.memory_budget go together: set both, or neither"
            )
        return self

    @property
    def segments_mode(self) -> ModeName:
        """The checkpointing mode that holds, from both settings; `auto` must have been decided before."""
        assert self.checkpoint_mode != "auto"
        if self.checkpoint_mode is not None:
            return self.checkpoint_mode
        return "full" if self.use_gradient_checkpointing else "off"

    @property
    def recomputed_segments(self) -> frozenset[str]:
        """The names of the segments to recompute, from all settings together."""
        if self.checkpoint_segments is not None:
            return parse_segments(",".join(self.checkpoint_segments))
        return segments_of(self.segments_mode)


class QuantizationConfig(Section):
    """Calibration and quantization-aware training."""

    use_qat: bool = Field(default=False, description="train quantization-aware after the floating-point epochs")
    use_int8: bool = Field(default=False, description="also export the INT8 ONNX file at the end")
    target: Literal["x86", "x86-vnni", "arm64", "tensorrt", "portable"] = Field(
        default="x86", description="profile of the machine that runs the file"
    )
    qat_epochs: int = Field(default=3, ge=0, description="quantization-aware epochs; 0: calibration only (PTQ)")
    qat_learning_rate: float = Field(default=1e-4, gt=0.0, description="peak learning rate of the QAT epochs")
    qat_ranges: Literal["observed", "learned"] = Field(
        default="observed", description="ranges of activations in QAT: observed, or their scales trained"
    )
    calibrator: Literal["moving-average", "min-max", "percentile", "mse"] = Field(
        default="moving-average", description="what calibration makes a range of"
    )
    calibration_batches: PositiveInt = Field(default=32, description="training batches observed before QAT")
    float_layers: Names = Field(default=(), description="layers to leave in floating point; separated by commas")
    frozen: Fraction = Field(default=0.5, description="last share of the QAT steps that run with frozen ranges")

    @model_validator(mode="after")
    def _int8_needs_qat(self) -> Self:
        if self.use_int8 and not self.use_qat:
            raise ValueError(
                "quantization.use_int8 exports the quantization-aware model: set quantization.use_qat as well"
            )
        return self


DEMO: dict[str, dict[str, Any]] = {
    "training": {"epochs": 3, "batches_per_epoch": 80},
    "quantization": {"qat_epochs": 2},
}
"""What a run on the embedded temperatures takes where nothing else is given: minutes on two CPU cores."""


class RunConfig(Section):
    """Everything a run needs beside its schema; `config.toml` of a run folder."""

    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    quantization: QuantizationConfig = QuantizationConfig()

    @model_validator(mode="after")
    def _short_histories_fit(self) -> Self:
        shortest = self.data.min_history
        if shortest is not None and shortest >= self.model.history:
            raise ValueError(
                f"data.min_history {shortest} must be below model.history {self.model.history}: "
                "leave it out where every history is whole"
            )
        season = self.model.seasonal_difference or 0
        if shortest is not None and shortest < season:
            raise ValueError(
                f"model.seasonal_difference {season} needs a whole season in every history: "
                f"set data.min_history, which is {shortest}, to at least {season}, or the difference to 0"
            )
        return self

    @classmethod
    def checked(cls, values: dict[str, Any], *, where: str) -> Self:
        """Build a configuration from nested plain values.

        Raises:
            ConfigError: an unknown key or a value out of range; the message names the key.
        """
        try:
            return cls.model_validate(values)
        except ValidationError as invalid:
            raise _config_error(invalid, where) from None

    @classmethod
    def from_toml(cls, text: str, *, where: str = "the configuration") -> Self:
        """Read the text that `to_toml` writes, or a part of it.

        Raises:
            ConfigError: not TOML, an unknown key, or a value out of range.
        """
        return cls.checked(read_toml(text, where=where), where=where)

    def with_seasonal_difference(self, season: int) -> Self:
        """Return the same configuration with that season decided on; 0 for none."""
        model = self.model.model_copy(update={"seasonal_difference": season})
        return self.model_copy(update={"model": model})

    def with_split(self, validation_from: str, test_from: str) -> Self:
        """Return the same configuration with the times at which the shares of validation and test cut."""
        decided = {"validation_from": validation_from, "test_from": test_from}
        return self.model_copy(update={"data": self.data.model_copy(update=decided)})

    def with_float_layers(self, layers: tuple[str, ...]) -> Self:
        """Return the same configuration with those layers left in floating point."""
        quantization = self.quantization.model_copy(update={"float_layers": layers})
        return self.model_copy(update={"quantization": quantization})

    def with_checkpoint_mode(self, mode: ModeName) -> Self:
        """Return the same configuration with the mode that `auto` stood for; the budget has done its work."""
        asked = self.training.use_gradient_checkpointing and mode != "off"
        decided = {"checkpoint_mode": mode, "memory_budget": None, "use_gradient_checkpointing": asked}
        return self.model_copy(update={"training": self.training.model_copy(update=decided)})

    def to_toml(self) -> str:
        """Return every setting that has a value, section by section."""
        return tomli_w.dumps(self.model_dump(mode="python", exclude_none=True))


def read_toml(text: str, *, where: str) -> dict[str, Any]:
    """Parse TOML, with a message that says where.

    Raises:
        ConfigError: the text is not TOML.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as broken:
        raise ConfigError(f"not TOML: {broken}", where=where, next_step="Mend that line") from None


def read_config_file(path: str | Path) -> dict[str, Any]:
    """Return the nested values of a TOML file, not yet checked.

    Raises:
        ConfigError: the file cannot be read or is not TOML.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as failure:
        reason = getattr(failure, "strerror", None) or "not UTF-8 text"
        raise ConfigError(f"cannot read the configuration: {reason}", where=str(path)) from None
    return read_toml(text, where=str(path))


def _config_error(invalid: ValidationError, where: str) -> ConfigError:
    lines = []
    allowed = ""
    for problem in invalid.errors():
        key = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            lines.append(f"unknown key {key}")
            allowed = allowed or ", ".join(_known_keys(problem["loc"]))
        elif problem["type"] == "value_error":  # from a validator above, which names keys and values itself
            lines.append(problem["msg"].removeprefix("Value error, "))
        else:
            given = f", not {problem['input']!r}" if _is_plain(problem) else ""
            lines.append(f"{key}: {problem['msg']}{given}")
    return ConfigError("; ".join(lines), where=where, allowed=allowed, next_step="Change what is named here")


def _is_plain(problem: Any) -> bool:
    return isinstance(problem["input"], str | int | float | bool)


def _known_keys(location: tuple[int | str, ...]) -> list[str]:
    if len(location) == 1:
        return list(RunConfig.model_fields)
    section = RunConfig.model_fields[str(location[0])].annotation
    return list(section.model_fields) if isinstance(section, type) and issubclass(section, Section) else []
