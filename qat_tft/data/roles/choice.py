"""Which column is what: named roles over a schema over the data's field metadata, and a note that says so."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qat_tft.data.reading.files.url import is_url
from qat_tft.data.reading.source import Source, open_source
from qat_tft.data.roles.field_metadata import declared_schema, kind_of
from qat_tft.data.roles.partial_schema import PartialSchema
from qat_tft.data.sample.samples import schema_path
from qat_tft.errors import SchemaError
from qat_tft.schema import Columns, Kind, Schema

Named = str | Sequence[str]
"""Columns, in one text separated by commas or one by one, each perhaps with `:real` or `:category`."""

_FIELD_METADATA = "the field metadata of the data"


@dataclass(frozen=True)
class Roles:
    """The roles as options of the command line or arguments in Python name them."""

    time: Named | None = None
    target: Named | None = None
    id: Named | None = None
    static: Named | None = None
    known: Named | None = None
    observed: Named | None = None

    @property
    def given(self) -> bool:
        """Whether any role was named."""
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


def choose_schema(files: Sequence[str], roles: Roles, schema: Schema | Path | None) -> ChosenSchema | None:
    """Return the schema that named roles, a schema and field metadata make together; None where there is none.

    A schema stands for all roles, so that field metadata count only without one. Named roles replace those of the
    schema, see `PartialSchema.over`.

    Args:
        files: the data.
        roles: the named roles.
        schema: the schema or its file, if there is one.

    Raises:
        SchemaError: a schema cannot be read, the roles do not go together, or a column is not in the file.
        DataError: the data cannot be read.
    """
    origin = "the schema given" if isinstance(schema, Schema) else str(schema or _FIELD_METADATA)
    whole = Schema.read(schema) if isinstance(schema, Path) else schema
    if whole is not None and not roles.given:
        return ChosenSchema(whole, f"Schema: {origin}")
    source = open_source(files[0] if len(files) == 1 else list(files))
    base = declared_schema(source) if whole is None else PartialSchema.of(whole)
    if not roles.given:
        return None if base is None else ChosenSchema(base.complete(where=source.label), f"Schema: {origin}")
    given = roles.parsed(source)
    if base is None:
        return ChosenSchema(given.complete(), "Schema: the options")
    merged = given.over(base)
    return ChosenSchema(merged.complete(where=source.label), _note(given, base, merged, origin))


def schema_beside(files: Sequence[str], config_file: str | Path | None) -> Path | None:
    """Return the schema file that stands beside a configuration file or beside the first of the data; None without."""
    beside = [Path(config_file).with_name("schema.toml")] if config_file else []
    beside += [] if is_url(files[0]) else [schema_path(Path(files[0]))]
    return next((path for path in beside if path.is_file()), None)


def _note(given: PartialSchema, base: PartialSchema, merged: PartialSchema, origin: str) -> str:
    options = ", ".join(f"--{role}" for role in given.given)
    dropped = sorted(base.columns - merged.columns)
    left_out = f"; without a role now: {', '.join(dropped)}" if dropped else ""
    return f"Schema: {origin}, with {options} over it{left_out}"


def _one(role: str, named: Named | None) -> str | None:
    if named is None:
        return None
    names = _names(named)
    if len(names) != 1:
        raise SchemaError(
            f"--{role} names {len(names)} columns: {named!r}",
            allowed="one column",
            next_step="Train one model per target." if role == "target" and names else "",
        )
    return names[0]


def _names(named: Named) -> tuple[str, ...]:
    if not isinstance(named, str):
        return tuple(named)
    return tuple(name.strip() for name in named.split(",") if name.strip())


def _columns(source: Source, named: Named | None) -> Columns | None:
    if named is None:
        return None
    kinds: dict[Kind, list[str]] = {Kind.REAL: [], Kind.CATEGORY: []}
    for name in _names(named):
        column, kind = _kind(source, name)
        kinds[kind].append(column)
    return Columns(real=tuple(kinds[Kind.REAL]), category=tuple(kinds[Kind.CATEGORY]))


def _kind(source: Source, name: str) -> tuple[str, Kind]:
    column, _, suffix = name.rpartition(":")
    if column and suffix in tuple(Kind):
        return column, Kind(suffix)
    return name, kind_of(source.types(name))
