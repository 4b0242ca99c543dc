"""Look at a Parquet file before training: columns, series, frequency, and a proposed schema."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich import box
from rich.cells import cell_len
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from qat_tft.atomic import written_whole
from qat_tft.data.reading.files.find import Paths
from qat_tft.data.reading.gap_search import find_gaps, usual_step
from qat_tft.data.reading.source import open_source
from qat_tft.data.reading.times import Times, time_values
from qat_tft.data.roles.column_profile import Profile, profile_column
from qat_tft.data.roles.field_metadata import declared_roles
from qat_tft.data.roles.proposal import (
    Confidence,
    Given,
    Layout,
    Proposal,
    propose_ids,
    propose_roles,
    propose_time,
    proposed_schema,
)
from qat_tft.data.time.kind import time_text
from qat_tft.errors import DataError, SchemaError, some_of
from qat_tft.schema import Kind, Role, Schema
from qat_tft.stages import Told, nobody

_ADVICE = """
Proposed schema, a draft to review (--write-schema FILE saves it): check the
guesses first. Move observed columns that are planned ahead, such as prices
and promotions, to known. A known column that is not known ahead leaks the
future. Calendar features need no column: train with --calendar.
"""


@dataclass(frozen=True)
class SeriesSummary:
    """The series of a file under the proposed id columns.

    Attributes:
        count: number of series.
        shortest: rows of the shortest series.
        median: rows of the median series.
        longest: rows of the longest series.
        first: first time.
        last: last time.
        frequency: the most common step, as text.
        regular: share of the steps that have this length, 0 to 1.
        duplicates: rows that repeat the series and time of another.
    """

    count: int
    shortest: int
    median: float
    longest: int
    first: str
    last: str
    frequency: str
    regular: float
    duplicates: int


@dataclass(frozen=True)
class Inspection:
    """What a file holds and how it could be used.

    Attributes:
        path: the file or folder.
        rows: number of rows.
        columns: profile and proposed role of each column, in the order of the file.
        series: None without a usable time column.
        schema: the proposed schema; None without a time column or a numeric column to forecast.
        problems: what stands in the way of training; one sentence each.
    """

    path: str
    rows: int
    columns: tuple[tuple[Profile, Proposal], ...]
    series: SeriesSummary | None
    schema: Schema | None
    problems: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; the schema both as an object and as TOML text."""
        return {
            "path": self.path,
            "rows": self.rows,
            "columns": [_column_json(*column) for column in self.columns],
            "series": None if self.series is None else dataclasses.asdict(self.series),
            "schema": None if self.schema is None else self.schema.model_dump(mode="json"),
            "schema_toml": None if self.schema is None else self.schema.to_toml(),
            "problems": list(self.problems),
        }

    def tables(self) -> list[RenderableType]:
        """The columns, the series and the proposed schema, for the terminal."""
        shown: list[RenderableType] = [_column_table(self)]
        if self.series is not None:
            shown.append(Text(_series_text(self.series)))
        shown.extend(Text(f"Problem: {problem}") for problem in self.problems)
        if self.schema is not None:
            shown.append(Text(_ADVICE))
            shown.append(Text(self.schema.to_toml()))
        return shown

    def write_schema(self, path: str | Path) -> Path:
        """Write the proposed schema.

        Raises:
            SchemaError: there is none, a file is in the way, or it cannot be written.
        """
        path = Path(path)
        if self.schema is None:
            raise SchemaError(
                "no schema can be proposed",
                where=self.path,
                next_step=" ".join(self.problems) or "Name the columns with --time and --target.",
            )
        if path.exists():
            raise SchemaError("the file already exists", where=str(path), next_step="Choose another name.")
        try:
            with written_whole(path) as unfinished:
                unfinished.write_text(self.schema.to_toml(), encoding="utf-8")
        except OSError as error:
            raise SchemaError(f"the schema cannot be written: {error.strerror}", where=str(path)) from None
        return path


def inspect_file(
    path: Paths,
    *,
    time: str | None = None,
    target: str | None = None,
    ids: Sequence[str] | None = None,
    told: Told = nobody,
) -> Inspection:
    """Describe a Parquet file, a folder of them or a list, reading one column at a time.

    Args:
        path: what to read.
        time: the time column, if it is not to be guessed.
        target: the column to forecast, likewise.
        ids: the columns that name a series, likewise; an empty list for a single series.
        told: is told each column before it is scanned.

    Raises:
        DataError: it cannot be read, or has no rows.
        SchemaError: a named column is not there.
    """
    source = open_source(path)
    for named in (time, target, *(ids or ())):
        if named is not None:
            source.types(named)
    if source.rows == 0:
        raise DataError("there are no rows", where=source.label)
    profiles = []
    for place, column in enumerate(source.names):
        told(f"scanning {column}", place, len(source.names))
        profiles.append(profile_column(source, column))
    problems = [f"Column '{column}' is not in every file." for column in source.names if source.without(column)]
    given = Given(time, target, None if ids is None else tuple(ids), declared_roles(source))
    time_column = propose_time(profiles, given)
    if time_column is None:
        problems.append("No column is a timestamp, a date or a step: name the time column with --time.")
        return _without_time(source.label, source.rows, profiles, problems)
    try:
        times = time_values(source, time_column[0])
    except (DataError, SchemaError) as error:
        return _without_time(source.label, source.rows, profiles, [*problems, error.what])
    layout = propose_ids(source, profiles, times, given)
    proposals = propose_roles(source, profiles, time_column, times, layout, given)
    problems.extend(_problems(profiles, layout, proposals, target))
    if "" in proposals:
        problems.append("A column has no name, which no schema can hold: name it.")
    schema = None if "" in proposals else proposed_schema(proposals)
    columns = tuple((one, proposals[one.name]) for one in profiles)
    return Inspection(source.label, source.rows, columns, _summary(times, layout), schema, tuple(problems))


def _without_time(label: str, rows: int, profiles: list[Profile], problems: list[str]) -> Inspection:
    none = Proposal((), None, "no proposal without a time column", Confidence.SURE)
    return Inspection(label, rows, tuple((one, none) for one in profiles), None, None, tuple(problems))


def _problems(profiles: list[Profile], layout: Layout, proposals: dict[str, Proposal], target: str | None) -> list[str]:
    problems = []
    if layout.duplicates:
        problems.append(
            f"{layout.duplicates:,} rows repeat the series and time of another: name the id columns with --id."
        )
    problems.extend(_target_problems(profiles, proposals, target))
    gaps = [one.name for one in profiles if proposals[one.name].kind is Kind.REAL and one.missing]
    if gaps:
        problems.append(
            f"Values are missing in {some_of(gaps)}: train with --missing, which says what "
            "stands in for them. Rows without a target count in no loss and no score."
        )
    return problems


def _target_problems(profiles: list[Profile], proposals: dict[str, Proposal], target: str | None) -> list[str]:
    chosen = any(Role.TARGET in one.roles for one in proposals.values())
    if target is None:
        return [] if chosen else ["No numeric column is left to forecast: name the target with --target."]
    profile = next(one for one in profiles if one.name == target)
    if profile.shape not in ("number", "whole", "flag"):
        return [f"The target '{target}' is {profile.type}, not a number."]
    if profile.infinite:
        return [f"The target '{target}' is infinite in {profile.infinite:,} rows: correct them."]
    if not chosen:
        return [f"The target '{target}' is the time or names the series: choose another column."]
    return []


def _summary(times: Times, layout: Layout) -> SeriesSummary:
    lengths = np.diff(layout.starts)
    instants = times.instants[layout.order]
    frequency, regular = _frequency(instants, layout, times)
    return SeriesSummary(
        count=len(lengths),
        shortest=int(lengths.min()),
        median=float(np.median(lengths)),
        longest=int(lengths.max()),
        first=time_text(int(instants.min()), times.kind),
        last=time_text(int(instants.max()), times.kind),
        frequency=frequency,
        regular=regular,
        duplicates=layout.duplicates,
    )


def _frequency(instants: npt.NDArray[np.int64], layout: Layout, times: Times) -> tuple[str, float]:
    """The usual step as text, and the share of the steps that have its length."""
    step = usual_step(instants, layout.starts, times.kind, times.zone)
    steps = len(instants) - (len(layout.starts) - 1)
    if step is None or step.size == 0:
        return "unknown", 0.0
    return step.text, 1 - len(find_gaps(instants, layout.starts, step).rows) / steps


def _column_json(profile: Profile, proposal: Proposal) -> dict[str, Any]:
    return dataclasses.asdict(profile) | {
        "roles": [str(role) for role in proposal.roles],
        "kind": None if proposal.kind is None else str(proposal.kind),
        "reason": proposal.reason,
        "confidence": str(proposal.confidence),
    }


def _column_table(inspection: Inspection) -> Table:
    table = Table(title=Text(f"{inspection.path}: {inspection.rows:,} rows"), title_justify="left", box=box.SIMPLE)
    longest = max((cell_len(profile.name) for profile, _ in inspection.columns), default=0)
    table.add_column("column", min_width=longest)  # names are never broken: a narrow terminal breaks the other cells
    table.add_column("type", overflow="fold", min_width=len("timestamp[us]"))
    for heading in ("values", "proposed", "sure", "because"):
        table.add_column(heading, overflow="fold")
    for profile, proposal in inspection.columns:
        role = " + ".join(str(role) for role in proposal.roles) or "-"
        kind = f", {proposal.kind}" if proposal.kind else ""
        values = _values_text(profile)
        cells = (profile.name, profile.type, values, f"{role}{kind}", str(proposal.confidence), proposal.reason)
        table.add_row(*map(Text, cells))  # as Text, since a name may hold what rich reads as markup
    return table


def _values_text(profile: Profile) -> str:
    parts = []
    if profile.minimum != profile.maximum:
        parts.append(f"{profile.minimum} to {profile.maximum}")
    elif profile.minimum:
        parts.append(profile.minimum)
    if profile.distinct is not None and profile.distinct > 1:
        parts.append(f"{profile.distinct:,} different")
    if profile.missing:
        parts.append(f"{profile.missing:,} missing")
    return ", ".join(parts)


def _series_text(series: SeriesSummary) -> str:
    lengths = (
        f"{series.longest:,} rows"
        if series.shortest == series.longest
        else f"{series.shortest:,} to {series.longest:,} rows, median {series.median:,.0f}"
    )
    return (
        f"{series.count:,} series of {lengths}\n{series.first} to {series.last}, "
        f"step {series.frequency} ({series.regular:.1%} of the steps)"
    )
