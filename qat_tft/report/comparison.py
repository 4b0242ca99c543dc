"""Two runs side by side: which is better and by how much, every figure of both, and what was chosen differently."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from qat_tft.evaluation.names import quantile_name, risk_text, signed_percent
from qat_tft.report.content import ReportContent, collect
from qat_tft.report.evidence import FileForecasts
from qat_tft.report.quality import RiskRow
from qat_tft.runs.folder import RunFolder

_NONE = "\N{EN DASH}"
_EQUAL = 5e-4  # share of q-risk that would be printed as 0.0 %


@dataclass(frozen=True)
class ComparedFigure:
    """One figure of both runs as text; `change` is the second against the first, empty where it cannot be told."""

    name: str
    first: str
    second: str
    change: str


@dataclass(frozen=True)
class Comparison:
    """Two runs side by side.

    Attributes:
        runs: what each of them shows.
        lead: which is better, in one sentence.
        caveats: why figures of the two do not compare; empty where they do.
        figures: of both runs.
        options: settings that differ, with the value of each run.
        columns: role and kind of columns that differ, with those of each run.
        page: the page that was written, None without one.
    """

    runs: tuple[ReportContent, ReportContent]
    lead: str
    caveats: tuple[str, ...]
    figures: tuple[ComparedFigure, ...]
    options: tuple[tuple[str, str, str], ...]
    columns: tuple[tuple[str, str, str], ...]
    page: Path | None = None

    def with_page(self, page: Path | None) -> Comparison:
        """Return the same with the page that was written."""
        return replace(self, page=page)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "runs": [run.name for run in self.runs],
            "lead": self.lead,
            "caveats": [*self.caveats],
            "q_risk": [{row.name: [*row.risks] for row in run.risks} for run in self.runs],
            "bytes": [{file.name: file.size for file in run.cost.files} for run in self.runs],
            "options": {name: [first, second] for name, first, second in self.options},
            "columns": {name: [first, second] for name, first, second in self.columns},
            "page": str(self.page) if self.page else None,
        }

    def tables(self) -> Sequence[RenderableType]:
        """Return the sentence, the figures and the settings that differ, and the path of the page."""
        names = [run.name for run in self.runs]
        figures = Table("", *names, "change")
        for one in self.figures:
            figures.add_row(one.name, one.first, one.second, one.change)
        for column in figures.columns[1:]:
            column.justify = "right"
        parts: list[RenderableType] = [Text(self.lead), *map(Text, self.caveats), figures]
        if self.options or self.columns:
            options = Table("chosen differently", *names)
            for row in (*self.options, *self.columns):
                options.add_row(*row)
            parts.append(options)
        return [*parts, *([Text(f"Report: {self.page}")] if self.page else [])]


def compare_runs(
    first: RunFolder, second: RunFolder, file_of: Callable[[RunFolder], FileForecasts | None] = lambda _: None
) -> Comparison:
    """Put two finished runs side by side.

    Args:
        first: a run.
        second: another one.
        file_of: returns the integer file of a run, as `collect` takes it.

    Raises:
        RunFolderError: a run folder is damaged.
        UserError: a file is.
    """
    runs = collect(first, file_of(first)), collect(second, file_of(second))
    caveats = tuple(_caveats(runs, first, second))
    return Comparison(
        runs=runs,
        lead=_lead(runs, comparable=not caveats),
        caveats=caveats,
        figures=tuple(one if not caveats else replace(one, change="") for one in _figures(runs)),
        options=tuple(_differences(*map(_options, runs))),
        columns=tuple(_differences(*map(_columns, runs))),
    )


def _caveats(runs: tuple[ReportContent, ReportContent], first: RunFolder, second: RunFolder) -> Iterator[str]:
    one, other = runs
    if one.target != other.target:
        yield f"They forecast different targets: {one.target} and {other.target}."
    if one.levels[one.middle] != other.levels[other.middle]:
        yield "Their middle quantiles differ."
    targets = [run.load_check_windows().target for run in (first, second)]
    if targets[0].shape != targets[1].shape or not torch.equal(*(target.nan_to_num() for target in targets)):
        yield "They were tested on different windows: errors of one do not compare with those of the other."


def _lead(runs: tuple[ReportContent, ReportContent], *, comparable: bool) -> str:
    first, second = (_last(run) for run in runs)
    risks = [row.risks[run.middle] for row, run in zip((first, second), runs, strict=True)]
    if not comparable:
        return f"{runs[0].name} and {runs[1].name} cannot be ranked."
    if not risks[0] or not risks[1]:
        return "q-risk is undefined on this test part, whose targets are all zero: the runs cannot be ranked by it."
    level = quantile_name(runs[0].levels[runs[0].middle])
    change = risks[1] / risks[0] - 1
    if abs(change) < _EQUAL:
        return f"{runs[0].name} and {runs[1].name} are equally good in q-risk {level}, {risk_text(risks[0])}."
    better, worse = (0, 1) if change > 0 else (1, 0)
    gain = 1 - min(risks) / max(risks)  # type: ignore[type-var, operator]
    return (
        f"{runs[better].name} is better than {runs[worse].name}: its q-risk {level} is {gain:.1%} lower, "
        f"{risk_text(risks[better])} against {risk_text(risks[worse])}."
    )


def _last(run: ReportContent) -> RiskRow:
    rows = {row.name: row for row in run.risks}
    return next(rows[name] for name in ("qat", "ptq", "fp32") if name in rows)


def _figures(runs: tuple[ReportContent, ReportContent]) -> Iterator[ComparedFigure]:
    first, second = runs
    risks = [{row.name: row for row in run.risks} for run in runs]
    levels = [level for level in first.levels if level in second.levels]
    for name in dict.fromkeys((*risks[0], *risks[1])):
        title = (risks[0].get(name) or risks[1][name]).title
        for level in levels:
            pair = [_risk(rows.get(name), run.levels.index(level)) for rows, run in zip(risks, runs, strict=True)]
            yield _figure(f"q-risk {quantile_name(level)}, {title}", pair, 5)
    for one, other in zip(first.facts, second.facts, strict=True):
        title = one.title if one.title == other.title else f"{one.title}, {other.title}"  # INT8 and INT4
        yield ComparedFigure(title, one.value, other.value, "")
    sizes = [{file.title: file.size / 1000 for file in run.cost.files} for run in runs]
    for title in dict.fromkeys((*sizes[0], *sizes[1])):
        yield _figure(f"{title}, KB", [one.get(title) for one in sizes], 1)
    times = [{batch: pair for batch, *pair in run.cost.latency} for run in runs]
    for batch in dict.fromkeys((*times[0], *times[1])):
        for place, what in enumerate(("FP32", "integer")):
            pair = [one[batch][place] if batch in one else None for one in times]
            yield _figure(f"{what} file, ms at batch {batch}", pair, 2)


def _risk(row: RiskRow | None, place: int) -> float | None:
    return None if row is None else row.risks[place]


def _figure(name: str, pair: Sequence[float | None], digits: int) -> ComparedFigure:
    first, second = pair
    change = signed_percent(second / first - 1) if first and second is not None else ""
    first_text, second_text = (_NONE if one is None else f"{one:,.{digits}f}" for one in (first, second))
    return ComparedFigure(name, first_text, second_text, change)


def _options(run: ReportContent) -> dict[str, str]:
    return {f"{section}.{name}": value for section, rows in run.card.options.items() for name, value in rows}


def _columns(run: ReportContent) -> dict[str, str]:
    return {f"{one.role} {one.kind}".strip(): ", ".join((*one.columns, *one.derived)) for one in run.card.columns}


def _differences(first: dict[str, str], second: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    for name in dict.fromkeys((*first, *second)):
        pair = first.get(name, _NONE), second.get(name, _NONE)
        if pair[0] != pair[1]:
            yield (name, *pair)
