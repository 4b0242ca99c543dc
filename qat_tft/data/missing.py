"""What stands in for a value that is not there: one policy per real column, the same in training and prediction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from qat_tft.errors import ConfigError, SchemaError
from qat_tft.schema import MARK, Columns, Schema


class MissingPolicy(StrEnum):
    """What happens to a null or NaN of a real column."""

    ERROR = "error"  # it is refused
    FORWARD = "forward"  # the last value before it in the series; the training mean where there is none
    MEAN = "mean"  # the training mean, of the series where standardization is per series
    ZERO = "zero"  # 0, and an indicator column says so


@dataclass(frozen=True)
class MissingPolicies:
    """The policy of every real column.

    A target that must be predicted is seldom worth refusing: as soon as any policy is declared, the target's own
    is ``forward`` unless it is named or ``default`` says otherwise.

    Attributes:
        default: of the columns that are not named.
        columns: column to its policy.
    """

    default: MissingPolicy = MissingPolicy.ERROR
    columns: Mapping[str, MissingPolicy] = field(default_factory=dict)

    @classmethod
    def parse(cls, entries: Sequence[str]) -> "MissingPolicies":
        """Read entries such as ``forward`` (every column) and ``wind=mean`` (one column).

        Raises:
            ConfigError: no such policy, or a column or the default named twice.
        """
        default: MissingPolicy | None = None
        columns: dict[str, MissingPolicy] = {}
        for entry in entries:
            column, _, name = (part.strip() for part in entry.rpartition("="))
            policy = _policy(entry, name)
            if column in columns or (not column and default is not None):
                raise ConfigError(
                    f"data.missing names {repr(column) if column else 'a default'} twice", next_step="Keep one."
                )
            if column:
                columns[column] = policy
            else:
                default = policy
        return cls(default or MissingPolicy.ERROR, columns)

    def of(self, column: str, schema: Schema) -> MissingPolicy:
        """The policy of a real column."""
        if column in self.columns:
            return self.columns[column]
        if column == schema.target and self.columns and self.default is MissingPolicy.ERROR:
            return MissingPolicy.FORWARD
        return self.default

    def check(self, schema: Schema, *, mark_target: bool) -> None:
        """Refuse policies that do not fit the columns.

        Raises:
            SchemaError: a policy for a column that is no real column, or an indicator's name that is taken.
        """
        for column in self.columns:
            if column in schema.category_columns:
                raise SchemaError(
                    f"data.missing names '{column}', which is a category column",
                    next_step="Leave it out: a null in a category column is a category of its own.",
                )
            if column not in schema.real_columns:
                raise SchemaError(
                    f"data.missing names '{column}', which is not a real column of the schema",
                    allowed=", ".join(schema.real_columns),
                )
        for column in self._marked(schema, schema.real_columns, mark_target=mark_target):
            if column in schema.used_columns:
                raise SchemaError(
                    f"column '{column}' has the name of the indicator that is appended for missing values",
                    next_step=f"Rename it, or choose another policy for '{column.removesuffix(MARK)}'.",
                )

    def with_indicators(self, schema: Schema, *, mark_target: bool) -> Schema:
        """The schema with an indicator column for each column of policy ``zero``.

        An indicator has the role of its column; that of the target is observed. With ``mark_target`` the target has
        one where its mean stands in for it too. A last value that stands in needs none: it is what was known.
        """
        observed = self._marked(schema, (schema.target, *schema.observed.real), mark_target=mark_target)
        return schema.model_copy(
            update={
                "static": _extended(schema.static, self._marked(schema, schema.static.real)),
                "observed": _extended(schema.observed, observed),
                "known": _extended(schema.known, self._marked(schema, schema.known.real)),
            }
        )

    def indicators(self, schema: Schema, *, mark_target: bool) -> dict[str, str]:
        """Name of each indicator column to the column that it is about."""
        marked = self._marked(schema, schema.real_columns, mark_target=mark_target)
        return {column: column.removesuffix(MARK) for column in marked}

    def _marked(self, schema: Schema, columns: Sequence[str], *, mark_target: bool = False) -> list[str]:
        return [f"{column}{MARK}" for column in columns if self._is_marked(column, schema, mark_target=mark_target)]

    def _is_marked(self, column: str, schema: Schema, *, mark_target: bool) -> bool:
        policy = self.of(column, schema)
        mean_of_target = column == schema.target and policy is MissingPolicy.MEAN
        return policy is MissingPolicy.ZERO or (mark_target and mean_of_target)


def _policy(entry: str, name: str) -> MissingPolicy:
    try:
        return MissingPolicy(name)
    except ValueError:
        raise ConfigError(
            f"data.missing holds '{entry}', and '{name}' is not a policy",
            allowed=f"{', '.join(MissingPolicy)}, alone for every real column or as column=policy",
        ) from None


def _extended(columns: Columns, real: Sequence[str]) -> Columns:
    return columns.model_copy(update={"real": (*columns.real, *real)}) if real else columns
