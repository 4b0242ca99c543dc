"""What an ONNX file says about itself: one JSON text in its metadata, readable without torch and onnx."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from qat_tft.config.data import DataConfig
from qat_tft.config.fields import choices
from qat_tft.data.preparation import NO_PREPARATION, Preparation
from qat_tft.errors import OnnxFileError, SchemaError
from qat_tft.quantization.products import Products
from qat_tft.schema import Group, GroupName, GroupSize, Schema
from qat_tft.texts import parse_json

METADATA_KEY = "qat_tft"
FORMAT_VERSION = 1
SERIES_INPUT = "series"
OUTPUT = "quantiles"
ATTENTION_OUTPUT = "attention"
BATCH = "batch"
LEAST_BATCH = 1
"""The smallest batch of every file: an LSTM of onnxruntime ends the process where it gets no row."""
FAR_OUTSIDE = 20.0
"""Training deviations from the training mean beyond which a value is called far outside."""

_NEEDS = {8: "1.18", 4: "1.23", 2: "1.24"}
"""Fewest bits of a stored weight to the first onnxruntime that casts tensors of so many (docs/decisions/043)."""

_ALWAYS = (
    "kind",
    "vocabularies",
    "series",
    "quantiles",
    "history",
    "horizon",
    "target",
    "quantized_layers",
    "weights",
    "versions",
)
_LATER = ("lstm", "products", "low_bits", "packed", "target_transform", "fills", "usual", "explained")
"""Fields that are in every file, and those that files of earlier versions may lack."""

Precision = Literal["fp32", "int8"]
LstmForm = Literal["weights", "dynamic"]
Store = Literal["packed", "int8"]
"""How weights of fewer than eight bits are stored."""


@dataclass(frozen=True)
class InputSpec:
    """One input of the file: its name, its element type and its shape.

    Attributes:
        shape: ``batch`` stands for the free dimension, which is at least ``LEAST_BATCH``.
        columns: the data columns along the last dimension; empty for ``series``.
    """

    name: str
    dtype: Literal["float32", "int64"]
    shape: tuple[int | str, ...]
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class OutputSpec:
    """One output of the file, float32: its name and its shape.

    Attributes:
        shape: ``batch`` stands for the free dimension.
        variables: those along the last dimension; empty for quantiles and attention.
    """

    name: str
    shape: tuple[int | str, ...]
    variables: tuple[str, ...] = ()


@dataclass(frozen=True)
class ModelMetadata:
    """Everything needed to feed the file and to read its answer.

    Attributes:
        kind: ``fp32`` or ``int8``.
        schema: roles and kinds of the columns.
        vocabularies: category column to its values; the value at position i has code i + 1, 0 is unknown.
        series: id tuples in the order of their codes (first is 1), or None when scaling is global.
        quantiles: probabilities along the last output dimension, rising.
        history: number of past steps that go in; horizon: number of future steps that come out.
        target: target profile of the machine that the file is for; empty for ``fp32``.
        lstm: ``weights`` where LSTM weights are stored as int8 and the cell computes in floating point, ``dynamic``
            where onnxruntime's integer LSTM computes it, whose ranges depend on all rows of a batch.
        products: ``integer`` where products are those of 8-bit integers, ``float`` where 8-bit weights are multiplied
            in floating point; files of before there was a choice have the former.
        low_bits: layer to the bits of its weight, where they are fewer than eight.
        packed: whether those weights are stored in so many bits, or in eight for runtimes that know no fewer.
        quantized_layers: names of the layers that compute on integers.
        float_layers: name and reason of every layer, and every kind of operation, that stayed float.
        weights: SHA-256 of the run folder's weights file from which the graph was made.
        versions: package name to the version that wrote the file.
        preparation: what was done to rows before they became windows.
        target_transform: name of the transform of the target before it is standardized; the file undoes it.
        fills: real column whose policy is ``forward`` or ``mean`` to the training means that stand in for missing
            values: one for all series, or one for each code of a series.
        usual: real column to the lowest and highest raw value that is not far outside of its training values, for all
            series or for each code of a series; empty in files of earlier versions.
        explained: group to its variables in the order of their selection weights, where the file puts out those
            weights and the attention; empty where it puts out quantiles only.
    """

    kind: Precision
    schema: Schema
    vocabularies: Mapping[str, tuple[str, ...]]
    series: tuple[tuple[str, ...], ...] | None
    quantiles: tuple[float, ...]
    history: int
    horizon: int
    target: str = ""
    lstm: LstmForm = "weights"
    products: Products = "integer"
    low_bits: Mapping[str, int] = field(default_factory=dict)
    packed: bool = False
    quantized_layers: tuple[str, ...] = ()
    float_layers: tuple[tuple[str, str], ...] = ()
    weights: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    preparation: Preparation = NO_PREPARATION
    fills: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    target_transform: str = "none"
    usual: Mapping[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    explained: Mapping[GroupName, tuple[str, ...]] = field(default_factory=dict)

    def to_text(self) -> str:
        """The JSON text that ``from_text`` reads back."""
        return json.dumps(
            {
                "format_version": FORMAT_VERSION,
                "kind": self.kind,
                "schema": self.schema.model_dump(mode="json"),
                "vocabularies": {column: list(values) for column, values in self.vocabularies.items()},
                "series": None if self.series is None else [list(name) for name in self.series],
                "quantiles": list(self.quantiles),
                "history": self.history,
                "horizon": self.horizon,
                "target": self.target,
                "lstm": self.lstm,
                "products": self.products,
                "low_bits": dict(self.low_bits),
                "packed": self.packed,
                "needs_onnxruntime": self.needs_onnxruntime,
                "least_batch": LEAST_BATCH,
                "quantized_layers": list(self.quantized_layers),
                "float_layers": [{"name": name, "reason": reason} for name, reason in self.float_layers],
                "weights": self.weights,
                "versions": dict(self.versions),
                "preparation": self.preparation.to_json(),
                "target_transform": self.target_transform,
                "fills": {column: list(means) for column, means in self.fills.items()},
                "usual": {column: [list(limits) for limits in values] for column, values in self.usual.items()},
                **self._explanations(),
            },
            ensure_ascii=False,
            allow_nan=False,
        )

    @classmethod
    def from_text(cls, text: str, where: str | Path) -> "ModelMetadata":
        """Read the JSON text of the file ``where``.

        Raises:
            OnnxFileError: it is not JSON, lacks a key, or was written by a later qat-tft.
        """
        try:
            fields = parse_json(text)
            _refuse_other_versions(fields, where)
            return cls._from_fields(fields)
        except (KeyError, TypeError, AttributeError, ValueError, ValidationError, SchemaError) as error:
            raise OnnxFileError(
                f"the metadata of the file is damaged ({type(error).__name__}: {_first_line(error)})",
                where=str(where),
                next_step="Export it again with `qat-tft export`.",
            ) from None

    @classmethod
    def from_properties(cls, properties: Mapping[str, str], where: str | Path) -> "ModelMetadata":
        """Read the metadata properties of an ONNX file; one of another origin is an OnnxFileError."""
        if METADATA_KEY not in properties:
            raise OnnxFileError(
                "this ONNX file was not written by qat-tft",
                where=str(where),
                allowed="a model.fp32.onnx or model.int8.onnx of a run folder",
                next_step="`qat-tft export` writes one.",
            )
        return cls.from_text(properties[METADATA_KEY], where)

    @classmethod
    def _from_fields(cls, fields: Any) -> "ModelMetadata":
        given = {
            **{name: fields[name] for name in _ALWAYS},
            **{name: fields[name] for name in _LATER if name in fields},
            "schema": Schema.model_validate(fields["schema"]),
            "float_layers": [(layer["name"], layer["reason"]) for layer in fields["float_layers"]],
            "preparation": Preparation.from_json(fields.get("preparation") or {}),
        }
        made: ModelMetadata = TypeAdapter(cls).validate_python(given)
        _refuse_unusable(made)
        return made

    @property
    def bits(self) -> int:
        """Fewest bits of a weight; 32 of a file in floating point."""
        return 32 if self.kind == "fp32" else min(self.low_bits.values(), default=8)

    @property
    def needs_onnxruntime(self) -> str:
        """The first onnxruntime that runs the file, as its version text."""
        return _NEEDS[self.bits] if self.packed else _NEEDS[8]

    def inputs(self) -> tuple[InputSpec, ...]:
        """The inputs of the file in their order; a group without columns of a kind has no input for it."""
        groups = tuple(group for group in self.schema.groups if group.size)
        specs = [spec for group in groups for spec in self._inputs_of(group)]
        if self.series is not None:
            specs.append(InputSpec(SERIES_INPUT, "int64", (BATCH,)))
        return tuple(specs)

    def outputs(self) -> tuple[OutputSpec, ...]:
        """The outputs of the file in their order: quantiles, then the weights that explain them where it has them."""
        quantiles = OutputSpec(OUTPUT, (BATCH, self.horizon, len(self.quantiles)))
        if not self.explained:
            return (quantiles,)
        weights = [
            OutputSpec(f"{group}_weights", (*self._leading(group), len(variables)), tuple(variables))
            for group, variables in self.explained.items()
            if variables
        ]
        positions = self.history + self.horizon
        return (quantiles, *weights, OutputSpec(ATTENTION_OUTPUT, (BATCH, self.horizon, positions)))

    def size_of(self, group: Group) -> GroupSize:
        """How wide a group is, its vocabularies with the unknown value included."""
        return GroupSize(len(group.real), tuple(len(self.vocabularies[column]) + 1 for column in group.category))

    def _inputs_of(self, group: Group) -> list[InputSpec]:
        leading, specs = self._leading(group.name), []
        if group.real:
            specs.append(InputSpec(group.real_input, "float32", (*leading, len(group.real)), group.real))
        if group.category:
            specs.append(InputSpec(group.category_input, "int64", (*leading, len(group.category)), group.category))
        return specs

    def _leading(self, group: GroupName) -> tuple[int | str, ...]:
        steps: dict[GroupName, tuple[int, ...]] = {
            "static": (),
            "historical": (self.history,),
            "future": (self.horizon,),
        }
        return (BATCH, *steps[group])

    def _explanations(self) -> dict[str, Any]:
        # Nothing where there are none: a file without them is the same as one of earlier versions.
        explained = {group: list(variables) for group, variables in self.explained.items()}
        outputs = {spec.name: list(spec.shape) for spec in self.outputs()}
        return {"explained": explained, "outputs": outputs} if explained else {}


def _refuse_other_versions(fields: Any, where: str | Path) -> None:
    version = fields["format_version"]
    if not isinstance(version, int) or version < 1:
        raise ValueError(f"format_version {version!r}")
    if version > FORMAT_VERSION:
        raise OnnxFileError(
            f"the file has format version {version}, this qat-tft reads up to {FORMAT_VERSION}",
            where=str(where),
            next_step="Install the newer qat-tft that wrote it, or export it again with this one.",
        )


def _refuse_unusable(metadata: ModelMetadata) -> None:
    """Raise a ValueError where fields of the right types do not go together."""
    shortest = metadata.preparation.min_history or metadata.history
    if min(metadata.history, metadata.horizon, shortest) < 1 or shortest > metadata.history:
        raise ValueError(f"history {metadata.history}, horizon {metadata.horizon}, shortest history {shortest}")
    levels = metadata.quantiles
    if not levels or list(levels) != sorted(set(levels)) or not 0.0 < levels[0] <= levels[-1] < 1.0:
        raise ValueError(f"quantiles {list(levels)}")
    if set(metadata.vocabularies) != set(metadata.schema.category_columns):
        raise ValueError("vocabularies of other columns than the schema's")
    if metadata.series is not None and {len(name) for name in metadata.series} - {len(metadata.schema.id)}:
        raise ValueError("series of other ids than the schema's")
    if metadata.target_transform not in choices(DataConfig.model_fields["target_transform"].annotation):
        raise ValueError(f"target_transform {metadata.target_transform!r}")
    lengths = {1} if metadata.series is None else {1, len(metadata.series) + 1}
    for what, by_column in (("fills", metadata.fills), ("usual", metadata.usual)):
        if set(by_column) - set(metadata.schema.real_columns) or {len(one) for one in by_column.values()} - lengths:
            raise ValueError(f"{what} of other columns or series than the schema's")
    if set(metadata.low_bits.values()) - set(_NEEDS):
        raise ValueError(f"low_bits of {sorted(set(metadata.low_bits.values()))}")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]
