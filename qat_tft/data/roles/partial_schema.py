"""Roles from options or field metadata: a part of a schema, and how it goes over another."""

from dataclasses import dataclass, fields
from typing import Any, Self

from qat_tft.errors import SchemaError, Way
from qat_tft.schema import Columns, Role, Schema

BY_SCHEMA_FILE = Way("--schema", "give a schema file with --schema", by_training=False)
"""What to do where the data do not say which column is what."""

_SHARED = {Role.ID, Role.STATIC}


@dataclass(frozen=True)
class PartialSchema:
    """The columns of some roles; None for a role that nothing is said about."""

    time: str | None = None
    target: str | None = None
    id: tuple[str, ...] | None = None
    static: Columns | None = None
    observed: Columns | None = None
    known: Columns | None = None

    @classmethod
    def of(cls, schema: Schema) -> Self:
        """All roles of a whole schema."""
        return cls(**{role: getattr(schema, role) for role in Role})

    @property
    def given(self) -> tuple[Role, ...]:
        """The roles that something is said about."""
        return tuple(Role(field.name) for field in fields(self) if getattr(self, field.name) is not None)

    @property
    def columns(self) -> frozenset[str]:
        """Every column that has a role here."""
        return frozenset(name for role in self.given for name in self._names(role))

    def over(self, base: "PartialSchema") -> "PartialSchema":
        """These roles, and those of ``base`` that nothing is said about here.

        A role named here replaces that of ``base`` as a whole, and a column named here loses its roles there,
        except that an id column may stay static and a static column an id.
        """
        merged: dict[str, Any] = {
            role: getattr(self, role) if role in self.given else self._left_of(base, role) for role in Role
        }
        return PartialSchema(**merged)

    def complete(self, *, where: str = "") -> Schema:
        """The whole schema.

        Raises:
            SchemaError: the time or the target is missing, or the roles do not go together.
        """
        missing = [role for role in (Role.TIME, Role.TARGET) if getattr(self, role) is None]
        if missing:
            options = " and ".join(f"--{role}" for role in missing)
            raise SchemaError(
                f"no column is named as {' and none as '.join(missing)}",
                where=where,
                ways=[Way(f"--{missing[0]}", f"add {options}", by_training=False), BY_SCHEMA_FILE],
            )
        return Schema(**{role: getattr(self, role) for role in self.given})

    def _names(self, role: Role) -> tuple[str, ...]:
        value: str | tuple[str, ...] | Columns | None = getattr(self, role)
        if isinstance(value, Columns):
            return value.names
        return (value,) if isinstance(value, str) else value or ()

    def _left_of(self, base: "PartialSchema", role: Role) -> str | tuple[str, ...] | Columns | None:
        moved = {name for own in self.given if not {own, role} <= _SHARED for name in self._names(own)}
        value: str | tuple[str, ...] | Columns | None = getattr(base, role)
        if isinstance(value, Columns):
            return Columns(
                real=tuple(name for name in value.real if name not in moved),
                category=tuple(name for name in value.category if name not in moved),
            )
        if isinstance(value, str):
            return None if value in moved else value
        return None if value is None else tuple(name for name in value if name not in moved)
