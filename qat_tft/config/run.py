"""The configuration of a run: its sections together, checked as a whole; read from and written to TOML."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Self

import tomli_w
from pydantic import ValidationError, model_validator

from qat_tft.config.data import DataConfig
from qat_tft.config.fields import Section
from qat_tft.config.model import ModelConfig, PathChoice
from qat_tft.config.quantization import QuantizationConfig
from qat_tft.config.training import ModeName, TrainingConfig
from qat_tft.errors import ConfigError
from qat_tft.model.forms import SelectionForm, variables_together
from qat_tft.quantization.products import Products
from qat_tft.texts import parse_toml, read_text

OWN_TABLE = "training-data.parquet"
"""What the configuration of a run calls its data where they stand in its own folder, which may be moved."""

DEMO: dict[str, dict[str, Any]] = {
    "data": {"validation_from": "2012-10-12", "test_from": "2012-12-11"},
    "model": {"history": 168},
    "training": {"epochs": 3, "batch_size": 32, "batches_per_epoch": 80},
    "quantization": {"qat_epochs": 1},
}
"""What a run on the embedded bike rentals takes where nothing else is given: minutes on two CPU cores."""

_SPLIT = {"data.validation", "data.test", "data.validation_from", "data.test_from"}

_BEFORE: dict[str, dict[str, Any]] = {
    "data": {"mark_target": False},
    "model": {"selection": "exact", "linear_path": "off"},
    "quantization": {"products": "integer"},
}
"""What holds in the configuration of a run that was trained before these settings existed."""


def demo_settings(given: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return what `DEMO` adds to settings given by path: its times of the split only where nothing else splits."""
    return DEMO if _SPLIT.isdisjoint(given) else {section: DEMO[section] for section in DEMO if section != "data"}


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
                "omit it if every history is full"
            )
        season = self.model.seasonal_difference
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

    @classmethod
    def from_run(cls, text: str, *, where: str = "the configuration") -> Self:
        """Read the text of a run folder, which may have been written before some of the settings existed.

        Raises:
            ConfigError: as `from_toml`.
        """
        values = read_toml(text, where=where)
        for section, settings in _BEFORE.items():
            given = values.setdefault(section, {})
            if isinstance(given, dict):
                values[section] = {**settings, **given}
        data = values.get("data", {})
        if isinstance(data, dict) and isinstance(values["model"], dict):
            values["model"].setdefault("normalize", data.pop("standardize", "series"))
        return cls.checked(values, where=where)

    def with_own_table(self) -> Self:
        """Return the same configuration with data that stand in the run's own folder."""
        return self._with("data", parquet_files=(OWN_TABLE,))

    def located(self, folder: Path) -> Self:
        """Return the same configuration with the path of the data, if they stand in this folder of a run."""
        own = folder / OWN_TABLE
        if self.data.parquet_files != (OWN_TABLE,) or not own.is_file():
            return self
        return self._with("data", parquet_files=(str(own),))

    def with_frame(self, *, linear_path: PathChoice, scale_input: bool) -> Self:
        """Return the same configuration with what stands around the network decided on."""
        return self._with("model", linear_path=linear_path, scale_input=scale_input)

    def requantized(self, given: Mapping[str, Any], *, where: str) -> Self:
        """Return the same configuration with other settings of quantization, by path, and QAT on.

        What earlier settings led to is decided anew unless it is given too: bits of layers where the bits of all are
        given, the form of the products, the chunk of another form of selection, and the calibrator.

        Raises:
            ConfigError: as `checked`.
        """
        values = self.model_dump(mode="python", exclude_none=True)
        own = {path.partition(".")[2]: value for path, value in given.items()}
        anew: dict[str, Any] = {"use_qat": True, "use_int8": False, "products": "auto", "calibrator": "auto"}
        anew["qat_selection_chunk"] = None
        if "weight_bits" in own:
            anew["layer_bits"] = ()
        values["quantization"] = {**values["quantization"], **anew, **own}
        return type(self).checked(values, where=where)

    @property
    def qat_selection(self) -> SelectionForm:
        """The form of the selection networks in the quantization-aware model."""
        return self.quantization.qat_selection or self.model.selection

    @property
    def qat_learning_rate(self) -> float:
        """The peak learning rate of quantization-aware training."""
        return self.quantization.qat_learning_rate or self.training.learning_rate / 2

    def with_selection_chunks(self, device: str) -> Self:
        """Return the same configuration with the chunks of selection networks that are not set decided for a device.

        From then on they are settings like others: a run that goes on elsewhere computes in the same chunks.

        Args:
            device: its type, as torch names it.
        """
        if self.model.selection_chunk is not None:
            return self
        chunk = variables_together(self.model.selection, None, device)
        return self._with("model", selection_chunk=chunk).with_qat_selection_chunk(device)

    def with_qat_selection_chunk(self, device: str) -> Self:
        """Return the same configuration with the chunk decided for QAT where that selects in a form of its own."""
        if self.qat_selection == self.model.selection or self.quantization.qat_selection_chunk is not None:
            return self
        chunk = variables_together(self.qat_selection, None, device)
        return self._with("quantization", qat_selection_chunk=chunk)

    def with_products(self, products: Products) -> Self:
        """Return the same configuration with the form of the products decided on."""
        return self._with("quantization", products=products)

    def with_batch_size(self, batch_size: int) -> Self:
        """Return the same configuration with another batch size."""
        return self._with("training", batch_size=batch_size)

    def with_calibrator(self, calibrator: str) -> Self:
        """Return the same configuration with the calibrator that `auto` stood for decided."""
        return self._with("quantization", calibrator=calibrator)

    def with_bits(self, layers: Mapping[str, int]) -> Self:
        """Return the same configuration with the bits that `auto` stood for decided; the budget has done its work."""
        named = tuple(f"{layer}={bits}" for layer, bits in sorted(layers.items()))
        return self._with("quantization", weight_bits="8", layer_bits=named, max_drop=None, max_bytes=None)

    def with_split(self, validation_from: str, test_from: str) -> Self:
        """Return the same configuration with the times at which the shares of validation and test cut."""
        return self._with("data", validation_from=validation_from, test_from=test_from)

    def with_float_layers(self, layers: tuple[str, ...]) -> Self:
        """Return the same configuration with those layers left in floating point."""
        return self._with("quantization", float_layers=layers)

    def with_checkpoint_mode(self, mode: ModeName) -> Self:
        """Return the same configuration with the mode that `auto` stood for; the budget has done its work."""
        asked = self.training.use_gradient_checkpointing and mode != "off"
        return self._with("training", checkpoint_mode=mode, memory_budget=None, use_gradient_checkpointing=asked)

    def _with(self, section: str, **settings: Any) -> Self:
        """Return the same configuration with settings of one section, which are not checked, changed."""
        return self.model_copy(update={section: getattr(self, section).model_copy(update=settings)})

    def to_toml(self) -> str:
        """Return every setting that has a value, section by section."""
        return tomli_w.dumps(self.model_dump(mode="python", exclude_none=True))


def read_toml(text: str, *, where: str) -> dict[str, Any]:
    """Parse TOML, with a message that says where.

    Raises:
        ConfigError: the text is not TOML.
    """
    try:
        return parse_toml(text)
    except ValueError as broken:
        raise ConfigError(f"not TOML: {broken}", where=where, next_step="Fix that line") from None


def read_config_file(path: str | Path) -> dict[str, Any]:
    """Return the nested values of a TOML file, not yet checked.

    Raises:
        ConfigError: the file cannot be read or is not TOML.
    """
    try:
        text = read_text(Path(path))
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
    return ConfigError("; ".join(lines), where=where, allowed=allowed, next_step="Correct the settings named here")


def _is_plain(problem: Any) -> bool:
    return isinstance(problem["input"], str | int | float | bool)


def _known_keys(location: tuple[int | str, ...]) -> list[str]:
    if len(location) == 1:
        return list(RunConfig.model_fields)
    section = RunConfig.model_fields[str(location[0])].annotation
    return list(section.model_fields) if isinstance(section, type) and issubclass(section, Section) else []
