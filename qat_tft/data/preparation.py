"""What is done to rows between the file and the windows: the same in training, prediction and backtest.

The calendar is imported where there are calendar features: it brings numpy and pyarrow, which doubles the start of
every command line.
"""

import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, get_args

from pydantic import ConfigDict

from qat_tft.data.missing import MissingPolicies
from qat_tft.errors import SchemaError
from qat_tft.plain import Plain
from qat_tft.schema import PRESENT, Schema

_WEEK = re.compile(r"(?=.*1)[01]{7}")

DuplicatePolicy = Literal["error", "last", "mean"]
GapPolicy = Literal["error", "ignore", "fill", "split"]


@dataclass(frozen=True)
class TimeMeaning(Plain):
    """What training rows taught about their time column; the rows that a model meets are read by it.

    Attributes:
        kind: what times count, as ``TimeKind``.
        zone: whose clock they are read on; ``""`` for none.
        week: of a step of business days, as ``Step.week``; ``""`` for any other.
        season: rows of one season.
    """

    kind: Literal["timestamp", "date", "step"]
    zone: str
    week: str
    season: int

    def __post_init__(self) -> None:
        if self.week and not _WEEK.fullmatch(self.week):
            raise ValueError(f"week is {self.week!r}; it is seven digits 0 and 1, not all of them 0")
        if self.season < 1:
            raise ValueError(f"season is {self.season}; it is at least one row")


@dataclass(frozen=True)
class Preparation(Plain):
    """The declared policies of a run. They travel with it, so that its file meets rows as training did.

    Attributes:
        duplicates: rows of the same series and time: ``error`` refuses them, ``last`` keeps the one that stands
            last in the files, ``mean`` averages real columns and keeps the last category.
        gaps: time steps without a row: ``error`` refuses them, ``ignore`` takes the next row as the next step,
            ``fill`` inserts rows, ``split`` lets no window span a gap.
        step: unit and size of the time step, which is found in the training data; None where it is still to be found,
            or no series had two rows.
        time: what else is found there; None where it is still to be found.
        missing: policies for missing values, as ``MissingPolicies.parse`` reads them.
        min_history: fewest rows of a window's history. Shorter ones are padded at the front, and the column
            ``history.present`` tells rows from padding; None: every history has its full length.
        calendar: features of the time column that become known columns, as ``parse_calendar`` reads them.
        mark_target: whether a column marks targets that their mean stands in for, as it does those that are zero.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")  # a policy of a later version is an error

    duplicates: DuplicatePolicy = "error"
    gaps: GapPolicy = "ignore"
    step: tuple[str, int] | None = None
    time: TimeMeaning | None = None
    missing: tuple[str, ...] = ()
    min_history: int | None = None
    calendar: tuple[str, ...] = ()
    mark_target: bool = False

    def __post_init__(self) -> None:
        for name, policies in (("duplicates", DuplicatePolicy), ("gaps", GapPolicy)):
            if getattr(self, name) not in get_args(policies):
                raise ValueError(f"{name} is {getattr(self, name)!r}; it is one of {', '.join(get_args(policies))}")
        if self.step is not None:
            from qat_tft.data.time.steps import Unit

            if self.step[0] not in tuple(Unit) or self.step[1] < 1:
                raise ValueError(
                    f"step is {self.step[1]} {self.step[0]!r}; it is one of {', '.join(Unit)}, at least one"
                )
        if self.calendar:
            from qat_tft.data.time.calendar import parse_calendar

            parse_calendar(self.calendar)

    @property
    def declared(self) -> "Preparation":
        """The policies alone, without what was found in the data."""
        return replace(self, step=None, time=None)

    @cached_property
    def policies(self) -> MissingPolicies:
        """What stands in for missing values, column by column."""
        return MissingPolicies.parse(self.missing)

    def indicators(self, schema: Schema) -> dict[str, str]:
        """Name of each column that marks missing values to the column that it is about."""
        return self.policies.indicators(schema, mark_target=self.mark_target)

    def effective_schema(self, schema: Schema) -> Schema:
        """The user's schema with the derived columns appended: what the model and the file see.

        Raises:
            SchemaError: a policy that does not fit the schema, or a column with the name of a derived one.
        """
        self.policies.check(schema, mark_target=self.mark_target)
        effective = self.policies.with_indicators(schema, mark_target=self.mark_target)
        if self.min_history is not None:
            if PRESENT in schema.used_columns:
                raise SchemaError(f"column '{PRESENT}' has the name of a derived column", next_step="Rename it.")
            effective = effective.with_observed(PRESENT)
        if not self.calendar:
            return effective
        from qat_tft.data.time.calendar import with_calendar

        return with_calendar(effective, self.calendar)

    def source_schema(self, effective: Schema) -> Schema:
        """The schema that ``effective_schema`` made this of: without the derived columns."""
        derived = {*self.indicators(effective), *(() if self.min_history is None else (PRESENT,))}
        if self.calendar:
            from qat_tft.data.time.calendar import calendar_columns

            derived.update(column.name for column in calendar_columns(self.calendar))
        return effective.without(derived)


NO_PREPARATION = Preparation()
"""Nothing is done: what the model cannot take is refused."""
