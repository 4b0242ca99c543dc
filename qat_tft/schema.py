"""Column names, roles and kinds: the one source of tensor sizes, input names and their order."""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from qat_tft.errors import SchemaError
from qat_tft.texts import parse_toml, read_text

GroupName = Literal["static", "historical", "future"]

PRESENT = "history.present"
"""Name of the derived column that is 1 where a history has a row and 0 where it is padded."""
MARK = ".missing"
"""Ending of the name of a derived column that is 1 where the column of that name has no value, and 0 elsewhere."""


class Role(StrEnum):
    """What a column is to the model."""

    ID = "id"  # names the series, alone or with other id columns
    TIME = "time"
    TARGET = "target"
    STATIC = "static"  # one value per series
    OBSERVED = "observed"  # known up to the present
    KNOWN = "known"  # known for future steps too


class Kind(StrEnum):
    """How a column's values are read: as numbers or as members of a vocabulary."""

    REAL = "real"
    CATEGORY = "category"


@dataclass(frozen=True)
class GroupSize:
    """How wide one input group is; what a model needs to know of the schema.

    Attributes:
        real: number of real columns.
        cardinalities: vocabulary size of each category column, the unknown value at index 0 included.
        present: place of the column ``history.present`` among the real ones; None where no history is padded.
        missing: place among the real ones of the column that marks a filled target; None where there is none.
    """

    real: int
    cardinalities: tuple[int, ...] = ()
    present: int | None = None
    missing: int | None = None

    @property
    def total(self) -> int:
        """Number of columns in the group's tensor."""
        return self.real + len(self.cardinalities)

    @property
    def variables(self) -> "GroupSize":
        """The columns that say something of a row: all but ``history.present``."""
        return GroupSize(self.real - (self.present is not None), self.cardinalities)


@dataclass(frozen=True)
class Group:
    """One input of the model: its columns in the order in which they stand in the group's tensor."""

    name: GroupName
    real: tuple[str, ...]
    category: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Real columns first, then category columns."""
        return self.real + self.category

    @property
    def size(self) -> int:
        """Number of columns."""
        return len(self.real) + len(self.category)

    @property
    def present(self) -> int | None:
        """Place of the column ``history.present``, if the group has it."""
        return self.real.index(PRESENT) if PRESENT in self.real else None

    @property
    def missing(self) -> int | None:
        """Place of the column that marks a filled target, if the group has it."""
        marked = f"{self.real[0]}{MARK}" if self.name == "historical" else ""
        return self.real.index(marked) if marked in self.real else None

    @property
    def real_input(self) -> str:
        """Name of the ONNX input that carries the real columns."""
        return f"{self.name}_real"

    @property
    def category_input(self) -> str:
        """Name of the ONNX input that carries the category codes."""
        return f"{self.name}_category"


class Columns(BaseModel):
    """The columns of one role, by kind."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    real: tuple[str, ...] = ()
    category: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Real columns first, then category columns."""
        return self.real + self.category


class Schema(BaseModel):
    """Which column of a data set plays which role.

    Known columns belong to the history as well and are named once, under ``known``. Every column has one
    role, except that an id column may also be static. Any other combination is a SchemaError.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    time: str = Field(min_length=1)
    target: str = Field(min_length=1)
    id: tuple[str, ...] = ()
    static: Columns = Columns()
    observed: Columns = Columns()
    known: Columns = Columns()

    @field_validator("target", mode="before")
    @classmethod
    def _there_is_one_target(cls, value: object) -> object:
        if isinstance(value, list | tuple):
            raise SchemaError(
                f"target names {len(value)} columns: {_listed(map(str, value))}",
                allowed="one column",
                next_step="Train one model per target; the others may be observed columns.",
            )
        return value

    @field_validator("id", mode="before")
    @classmethod
    def _one_id_may_be_a_plain_string(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _every_column_has_one_role(self) -> "Schema":
        _refuse_repeated(self)
        _refuse_two_roles(self)
        return self

    @property
    def groups(self) -> tuple[Group, Group, Group]:
        """The static, historical and future group, in the order in which a model takes them."""
        return self.group("static"), self.group("historical"), self.group("future")

    def group(self, name: GroupName) -> Group:
        """The columns of one model input; the target is the first column of the history."""
        if name == "static":
            return Group("static", self.static.real, self.static.category)
        if name == "future":
            return Group("future", self.known.real, self.known.category)
        if name == "historical":
            real = (self.target, *self.observed.real, *self.known.real)
            return Group("historical", real, self.observed.category + self.known.category)
        raise ValueError(f"no group is called {name!r}; the groups are static, historical and future")

    @property
    def real_columns(self) -> tuple[str, ...]:
        """Every real column once: target, static, observed, known."""
        return (self.target, *self.static.real, *self.observed.real, *self.known.real)

    @property
    def category_columns(self) -> tuple[str, ...]:
        """Every category column once: static, observed, known."""
        return self.static.category + self.observed.category + self.known.category

    @property
    def used_columns(self) -> tuple[str, ...]:
        """Every column that has to be read from the file, once."""
        return tuple(dict.fromkeys((self.time, *self.id, *self.real_columns, *self.category_columns)))

    def with_observed(self, column: str) -> "Schema":
        """The schema with one more observed real column at the end of them."""
        real = (*self.observed.real, column)
        return self.model_copy(update={"observed": self.observed.model_copy(update={"real": real})})

    def without(self, columns: Collection[str]) -> "Schema":
        """The schema without these static, observed and known columns."""

        def kept(of_role: Columns) -> Columns:
            return Columns(
                real=tuple(name for name in of_role.real if name not in columns),
                category=tuple(name for name in of_role.category if name not in columns),
            )

        roles = {"static": self.static, "observed": self.observed, "known": self.known}
        return self.model_copy(update={role: kept(of_role) for role, of_role in roles.items()})

    def roles(self) -> dict[str, tuple[Role, ...]]:
        """Column name to its roles; only an id column can have two."""
        found: dict[str, tuple[Role, ...]] = {}
        for role, names in _by_role(self):
            for name in names:
                found[name] = (*found.get(name, ()), role)
        return found

    def to_toml(self) -> str:
        """The schema as a short commented TOML text that ``from_toml`` reads back."""
        return "\n".join(
            (
                "# One role per column; only an id column may be static too.",
                f"{_toml('time', self.time)}  # timestamp, date or whole-number step",
                f"{_toml('target', self.target)}  # the number to forecast; always part of the history",
                "# The columns that together name a series; empty for a single series.",
                _toml("id", self.id),
                "",
                "[static]  # one value per series",
                *_columns_toml(self.static),
                "",
                "[observed]  # known up to the present only",
                *_columns_toml(self.observed),
                "",
                "[known]  # known for the steps to forecast too, and part of the history",
                *_columns_toml(self.known),
                "",
            )
        )

    @classmethod
    def from_toml(cls, text: str, where: str | Path = "schema") -> "Schema":
        """Read a schema; anything malformed is a SchemaError that names ``where`` and the key."""
        try:
            values = parse_toml(text)
        except ValueError as error:
            raise SchemaError(
                f"this is not TOML: {error}",
                where=str(where),
                next_step="`qat-tft inspect FILE --write-schema schema.toml` writes one to start from.",
            ) from None
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise SchemaError(_first_problem(error), where=str(where), allowed=_ALLOWED_KEYS) from None
        except SchemaError as error:
            raise SchemaError(error.what, where=str(where), allowed=error.allowed, next_step=error.next_step) from None

    @classmethod
    def read(cls, path: str | Path) -> "Schema":
        """Read a schema file; a missing or unreadable one is a SchemaError."""
        try:
            text = read_text(Path(path))
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise SchemaError(
                f"the schema file cannot be read: {reason}",
                where=str(path),
                next_step="`qat-tft inspect FILE --write-schema schema.toml` writes one to start from.",
            ) from None
        return cls.from_toml(text, where=path)


_TOML_WIDTH = 72
_ALLOWED_KEYS = "time, target, id and the tables static, observed, known with the lists real and category"


def _by_role(schema: Schema) -> tuple[tuple[Role, tuple[str, ...]], ...]:
    return (
        (Role.ID, schema.id),
        (Role.TIME, (schema.time,)),
        (Role.TARGET, (schema.target,)),
        (Role.STATIC, schema.static.names),
        (Role.OBSERVED, schema.observed.names),
        (Role.KNOWN, schema.known.names),
    )


def _refuse_repeated(schema: Schema) -> None:
    for role, names in _by_role(schema):
        repeated = [name for name, count in Counter(names).items() if count > 1]
        if repeated:
            raise SchemaError(
                f"{_listed(repeated)} is listed more than once under {role}",
                next_step="List a column once, under real or under category.",
            )


def _refuse_two_roles(schema: Schema) -> None:
    for name, roles in schema.roles().items():
        if len(roles) == 1 or set(roles) == {Role.ID, Role.STATIC}:
            continue
        if set(roles) == {Role.OBSERVED, Role.KNOWN}:
            hint = "A known column is part of the history already: leave it out of observed."
        elif set(roles) == {Role.TARGET, Role.OBSERVED}:
            hint = "The target is part of the history already: leave it out of observed."
        else:
            hint = "Give it one role."
        raise SchemaError(
            f"column '{name}' is both {' and '.join(roles)}",
            allowed="one role per column; only an id column may also be static",
            next_step=hint,
        )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _toml(key: str, value: str | tuple[str, ...]) -> str:
    if isinstance(value, str):
        return tomli_w.dumps({key: value}).rstrip("\n")
    # tomli_w gives a list one line per element; 200 column names read better as a paragraph.
    quoted = [tomli_w.dumps({"name": name}).removeprefix("name = ").rstrip("\n") for name in value]
    lines = [""]
    for name in quoted:
        if len(lines[-1]) + len(name) > _TOML_WIDTH:
            lines.append("")
        lines[-1] += f"{name}, "
    if len(lines) == 1:
        return f"{key} = [{lines[0].removesuffix(', ')}]"
    body = "\n".join(f"  {line.rstrip()}" for line in lines if line)
    return f"{key} = [\n{body}\n]"


def _columns_toml(columns: Columns) -> tuple[str, str]:
    return _toml("real", columns.real), _toml("category", columns.category)


def _first_problem(error: ValidationError) -> str:
    problem = error.errors()[0]
    key = ".".join(str(part) for part in problem["loc"])
    match problem["type"]:
        case "extra_forbidden":
            return f"unknown key '{key}'"
        case "missing":
            return f"key '{key}' is missing"
        case _:
            return f"key '{key}': {problem['msg']}, not {problem['input']!r}"
