"""Which column is what: role options over a schema file over the data's field metadata, and a note that says so."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qat_tft.data.reading.source import Source, open_source
from qat_tft.data.roles.field_metadata import declared_schema, kind_of
from qat_tft.data.roles.partial_schema import PartialSchema
from qat_tft.errors import SchemaError
from qat_tft.schema import Columns, Kind, Schema

_FIELD_METADATA = "the field metadata of the data"


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

    def parsed(self, source: Source) -> PartialSchema:
        """Return the roles that were given; a kind that no suffix sets comes from the types in the file.

        Raises:
            SchemaError: several columns are named as time or target, or a column is not in the file.
        """
        return PartialSchema(
            time=_one("time", self.time),
            target=_one("target", self.target),
            id=None if self.id is None else _names(self.id),
            static=_columns(source, self.static),
            known=_columns(source, self.known),
            observed=_columns(source, self.observed),
        )


@dataclass(frozen=True)
class ChosenSchema:
    """A schema, and a sentence on where its roles come from."""

    schema: Schema
    note: str


def choose_schema(files: Sequence[str], roles: Roles, schema_file: Path | None) -> ChosenSchema | None:
    """Return the schema that options, a schema file and field metadata make together; None where there is none.

    A schema file stands for all roles, so that field metadata count only without one. Options replace the roles
    that they name, see `PartialSchema.over`.

    Args:
        files: the data.
        roles: the role options.
        schema_file: the schema file, if there is one.

    Raises:
        SchemaError: a schema cannot be read, the roles do not go together, or a column is not in the file.
        DataError: the data cannot be read.
    """
    if schema_file is not None and not roles.given:
        return ChosenSchema(Schema.read(schema_file), f"Schema: {schema_file}")
    source = open_source(files[0] if len(files) == 1 else list(files))
    if schema_file is None:
        base, origin = declared_schema(source), _FIELD_METADATA
    else:
        base, origin = PartialSchema.of(Schema.read(schema_file)), str(schema_file)
    if not roles.given:
        return None if base is None else ChosenSchema(base.complete(where=source.label), f"Schema: {origin}")
    given = roles.parsed(source)
    if base is None:
        return ChosenSchema(given.complete(), "Schema: the options")
    merged = given.over(base)
    return ChosenSchema(merged.complete(where=source.label), _note(given, base, merged, origin))


def _note(given: PartialSchema, base: PartialSchema, merged: PartialSchema, origin: str) -> str:
    options = ", ".join(f"--{role}" for role in given.given)
    dropped = sorted(base.columns - merged.columns)
    left_out = f"; without a role now: {', '.join(dropped)}" if dropped else ""
    return f"Schema: {origin}, with {options} over it{left_out}"


def _one(role: str, text: str | None) -> str | None:
    if text is None:
        return None
    names = _names(text)
    if len(names) != 1:
        raise SchemaError(
            f"--{role} names {len(names)} columns: {text!r}",
            allowed="one column",
            next_step="Train one model per target." if role == "target" and names else "",
        )
    return names[0]


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _columns(source: Source, text: str | None) -> Columns | None:
    if text is None:
        return None
    kinds: dict[Kind, list[str]] = {Kind.REAL: [], Kind.CATEGORY: []}
    for name in _names(text):
        column, kind = _kind(source, name)
        kinds[kind].append(column)
    return Columns(real=tuple(kinds[Kind.REAL]), category=tuple(kinds[Kind.CATEGORY]))


def _kind(source: Source, name: str) -> tuple[str, Kind]:
    column, _, suffix = name.rpartition(":")
    if column and suffix in tuple(Kind):
        return column, Kind(suffix)
    return name, kind_of(source.types(name))
