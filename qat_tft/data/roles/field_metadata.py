"""Roles of columns in the metadata of a Parquet file's fields: written with the data, read where no schema is given.

A field with the metadata key ``qat_tft.role`` declares the role of its column: ``time``, ``target``, ``id``,
``id+static``, ``static``, ``observed`` or ``known``; the last three also with a kind, such as ``known:category``.
"""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pt

from qat_tft.data.reading.columns import is_text
from qat_tft.data.reading.source import Source
from qat_tft.data.roles.partial_schema import BY_SCHEMA_FILE, PartialSchema
from qat_tft.errors import SchemaError, Way
from qat_tft.schema import Columns, Kind, Role, Schema

ROLE_KEY = b"qat_tft.role"
_WITH_KIND = (Role.STATIC, Role.OBSERVED, Role.KNOWN)


@dataclass(frozen=True)
class DeclaredRole:
    """The roles of one column, and its kind where it is static, observed or known."""

    roles: tuple[Role, ...]
    kind: Kind | None

    @classmethod
    def parse(cls, text: str, types: tuple[pa.DataType, ...]) -> "DeclaredRole":
        """Read such as ``known:category``; without a kind, ``types`` decide.

        Raises:
            ValueError: no such roles or kind.
        """
        names, _, kind = text.partition(":")
        roles = tuple(Role(name) for name in names.split("+"))
        if len(roles) > 1 and roles != (Role.ID, Role.STATIC):
            raise ValueError(f"{names} is not one role")
        if not set(roles) & set(_WITH_KIND):
            if kind:
                raise ValueError(f"{names} has no kind")
            return cls(roles, None)
        return cls(roles, Kind(kind) if kind else kind_of(types))


def kind_of(types: tuple[pa.DataType, ...]) -> Kind:
    """Category for text, dictionaries and booleans, real for all others."""
    categories = (is_text(type_) or pt.is_dictionary(type_) or pt.is_boolean(type_) for type_ in types)
    return Kind.CATEGORY if any(categories) else Kind.REAL


def declared_roles(source: Source) -> dict[str, DeclaredRole]:
    """Column name to what its field declares, in the order of the file; fields that declare nothing are left out.

    Raises:
        SchemaError: a field declares what is no role, or files disagree.
    """
    found: dict[str, str] = {}
    for path, schema in zip(source.paths, source.schemas, strict=True):
        for field in schema:
            text = (field.metadata or {}).get(ROLE_KEY, b"").decode("utf-8", errors="replace")
            if text and found.setdefault(field.name, text) != text:
                raise SchemaError(
                    f"column '{field.name}' is declared as {text}, in other files as {found[field.name]}",
                    where=str(path),
                    next_step="Give a schema file instead, or write the files with identical field metadata.",
                )
    return {column: _parsed(source, column, text) for column, text in found.items()}


def declared_schema(source: Source) -> PartialSchema | None:
    """The declared roles as a schema that may lack its time or target; None where no field declares anything.

    Raises:
        SchemaError: as ``declared_roles``, or two columns declare to be the time or the target.
    """
    declared = declared_roles(source)
    if not declared:
        return None

    def names(role: Role, kind: Kind | None = None) -> tuple[str, ...]:
        return tuple(
            column for column, one in declared.items() if role in one.roles and (kind is None or one.kind is kind)
        )

    def one(role: Role) -> str | None:
        columns = names(role)
        if len(columns) > 1:
            raise SchemaError(
                f"{len(columns)} columns are declared as {role}: {', '.join(columns)}",
                where=source.label,
                ways=[Way(f"--{role}", f"choose one with --{role}", by_training=False), BY_SCHEMA_FILE],
            )
        return columns[0] if columns else None

    static, observed, known = (
        Columns(real=names(role, Kind.REAL), category=names(role, Kind.CATEGORY)) for role in _WITH_KIND
    )
    return PartialSchema(
        time=one(Role.TIME), target=one(Role.TARGET), id=names(Role.ID), static=static, observed=observed, known=known
    )


def with_declared_roles(fields: pa.Schema, schema: Schema) -> pa.Schema:
    """The Arrow schema of a table with the roles of its columns in the metadata of its fields."""
    roles, category = schema.roles(), set(schema.category_columns)

    def declared(field: pa.Field) -> pa.Field:
        if field.name not in roles:
            return field
        text = "+".join(roles[field.name])
        if set(roles[field.name]) & set(_WITH_KIND):
            text += f":{Kind.CATEGORY if field.name in category else Kind.REAL}"
        return field.with_metadata({**(field.metadata or {}), ROLE_KEY: text.encode()})

    return pa.schema([declared(field) for field in fields], metadata=fields.metadata)


def _parsed(source: Source, column: str, text: str) -> DeclaredRole:
    try:
        return DeclaredRole.parse(text, source.types(column))
    except ValueError as problem:
        raise SchemaError(
            f"field metadata {ROLE_KEY.decode()} of column '{column}' is '{text}': {problem}",
            where=source.label,
            allowed=f"{', '.join(Role)}, id+static; static, observed and known also with :real or :category",
        ) from None
