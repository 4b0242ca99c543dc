"""A schema from role options such as `--known hour,month:category`; kinds come from the file's types."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pt

from qat_tft.data.source import Source, open_source
from qat_tft.errors import SchemaError
from qat_tft.schema import Columns, Kind, Schema


@dataclass(frozen=True)
class Roles:
    """The role options as given: one column, or comma-separated columns, each perhaps with `:real` or `:category`."""

    time: str | None = None
    target: str | None = None
    id: str | None = None
    static: str | None = None
    known: str | None = None
    observed: str | None = None

    @property
    def given(self) -> bool:
        """Whether any role option was used."""
        return any(value is not None for value in vars(self).values())

    def schema(self, files: Sequence[str]) -> Schema:
        """Return the schema that these roles make of some Parquet files.

        Text, dictionary and boolean columns are categories, all others numbers, unless a suffix says otherwise.

        Raises:
            SchemaError: time or target is missing, or a column is not in the file.
            DataError: a file cannot be read.
        """
        if self.time is None or self.target is None:
            raise SchemaError(
                "the role options need both --time and --target",
                next_step="Name them, or give a schema file with --schema",
            )
        source = open_source(files[0] if len(files) == 1 else list(files))
        return Schema(
            time=self.time,
            target=self.target,
            id=_names(self.id),
            static=_columns(source, self.static),
            known=_columns(source, self.known),
            observed=_columns(source, self.observed),
        )


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def _columns(source: Source, text: str | None) -> Columns:
    kinds: dict[Kind, list[str]] = {Kind.REAL: [], Kind.CATEGORY: []}
    for name in _names(text):
        column, kind = _kind(source, name)
        kinds[kind].append(column)
    return Columns(real=tuple(kinds[Kind.REAL]), category=tuple(kinds[Kind.CATEGORY]))


def _kind(source: Source, name: str) -> tuple[str, Kind]:
    column, _, suffix = name.rpartition(":")
    if column and suffix in tuple(Kind):
        return column, Kind(suffix)
    return name, Kind.CATEGORY if any(map(_is_category, source.types(name))) else Kind.REAL


def _is_category(kind: pa.DataType) -> bool:
    text = pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind)
    return bool(text or pt.is_dictionary(kind) or pt.is_boolean(kind))
