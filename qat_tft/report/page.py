"""The page of a run: content and pictures put into one HTML file that needs nothing beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from qat_tft.evaluation.names import quantile_name, risk_text, share_text, signed_percent
from qat_tft.report import pictures
from qat_tft.report.comparison import Comparison
from qat_tft.report.content import ReportContent
from qat_tft.report.explanations import TITLES, UNNOTICED, signed_points
from qat_tft.report.fans import Fan
from qat_tft.report.missing import Missing
from qat_tft.report.pictures import with_own_names
from qat_tft.report.training_curves import PhaseCurve
from qat_tft.report.unfinished import UnfinishedContent
from qat_tft.runs import files

_MOST_VARIABLES = (12, 200)
"""Variables of a group that a page shows at once, and those it holds at all."""


class Picture(NamedTuple):
    """A picture, what it shows for those who cannot see it, and the caption below it."""

    svg: Markup
    alt: str
    caption: str


def write_page(path: Path, html: str) -> None:
    """Write a page, whole or not at all.

    Raises:
        RunFolderError: the file system refuses.
    """
    files.write_text(path, html)


def run_page(content: ReportContent) -> str:
    """Return the page of a run; equal content gives equal bytes.

    Raises:
        PictureError: matplotlib cannot be loaded.
    """
    return render(
        "run.html.j2",
        run=content,
        **_phases(content.curves),
        fans=[*_fans(content)],
        quality=[*_quality(content)],
        attention=[*_attention(content)],
        training=[*_training(content.curves)],
        at_once=_MOST_VARIABLES[0],
        at_most=_MOST_VARIABLES[1],
    )


def unfinished_page(content: UnfinishedContent) -> str:
    """Return the page of an unfinished run; equal content gives equal bytes.

    Raises:
        PictureError: matplotlib cannot be loaded.
    """
    return render("unfinished.html.j2", run=content, training=[*_training(content.curves)], **_phases(content.curves))


def comparison_page(comparison: Comparison) -> str:
    """Return the page of two runs; equal content gives equal bytes.

    Raises:
        PictureError: matplotlib cannot be loaded.
    """
    pictures = [
        [
            one._replace(svg=Markup(with_own_names(one.svg, f"run{place}")))
            for one in (*_fans(run), *_quality(run), *_attention(run), *_training(run.curves))
        ]
        for place, run in enumerate(comparison.runs)
    ]
    return render("comparison.html.j2", compared=comparison, pictures=pictures, at_once=_MOST_VARIABLES[0])


def render(template: str, **values: Any) -> str:
    """Return a template of ours, filled in; names that come out of data cannot bring markup with them."""
    environment = Environment(
        loader=PackageLoader("qat_tft.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "quantile": quantile_name,
        "risk": lambda risk: "\N{EN DASH}" if risk is None else risk_text(risk),
        "share": share_text,
        "signed": lambda share: signed_percent(share) if abs(share) >= UNNOTICED else "0.0 %",
        "points": signed_points,
        "thousands": lambda number: f"{number:,.0f}",
        "mib": lambda size: f"{size / 2**20:,.0f}",
        "milliseconds": lambda time: "\N{EN DASH}" if time is None else f"{time * 1000:,.0f}",
        "decibel": lambda ratio: "\N{EN DASH}" if ratio is None else f"{ratio:.1f}",
    }
    environment.globals["group_titles"] = TITLES
    return environment.get_template(template).render(**values)


def picture(name: str, svg: str, alt: str, caption: str) -> Picture:
    """Return a picture whose ids no other picture of the page has; `svg` is ours and holds no text out of data."""
    return Picture(Markup(with_own_names(svg, name)), alt, caption)


def _fans(content: ReportContent) -> Iterator[Picture]:
    for fan in content.fans.shown:
        yield picture(
            f"fan-{fan.rank}",
            pictures.draw_fan(fan, content.levels, content.middle),
            f"Lines of {content.target} over the steps around the origin: history, truth, the last season repeated and "
            f"the forecast of each model.",
            _fan_caption(content, fan),
        )


def _fan_caption(content: ReportContent, fan: Fan) -> str:
    level = quantile_name(content.levels[content.middle])
    what = f"{fan.rank.capitalize()} of {content.fans.count:,} {content.fans.ranked}"
    return f"{what}: q-risk {level} {fan.error:.3f}. {content.target}, {fan.series}."


def _quality(content: ReportContent) -> Iterator[Picture]:
    covered = [row for row in content.risks if row.coverage and row.kind in ("fp32", "int8")]
    if covered:
        yield picture(
            "reliability",
            pictures.draw_reliability(covered, content.levels),
            "; ".join(
                f"{row.title}: "
                + ", ".join(
                    f"{share_text(share)} up to {quantile_name(level)}"
                    for level, share in zip(content.levels, row.coverage, strict=True)
                )
                for row in covered
            ),
            "Reliability on the test part: the share of targets up to each quantile. On the thin diagonal a quantile "
            "holds what its level says; above it the quantile lies too high.",
        )
    yield picture(
        "error-by-step",
        pictures.draw_errors_by_step(content.steps),
        "Mean absolute error of each model and of the last season repeated at each horizon step.",
        f"Mean absolute error of {content.target} by horizon step, on {content.windows:,} windows of the test part.",
    )
    if len(content.levels) > 1:
        nominal = content.levels[-1] - content.levels[0]
        band = f"{quantile_name(content.levels[0])} to {quantile_name(content.levels[-1])}"
        yield picture(
            "inside-by-step",
            pictures.draw_inside_by_step(content.steps, nominal),
            f"Share of the targets from {band} at each horizon step for each model.",
            f"Share of the targets from {band} by horizon step, on the same windows; {nominal:.0%} would be right.",
        )


def _attention(content: ReportContent) -> Iterator[Picture]:
    attention = content.explanations.attention
    steps = ", ".join(str(lag).replace("-", "\N{MINUS SIGN}") for lag in attention[-1].highest())
    yield picture(
        "attention",
        pictures.draw_attention(attention),
        f"Attention by position for each model; of the history, steps {steps} get most.",
        "Attention by position, averaged over the forecast steps: 0 is the last step known, 1 the first to forecast, "
        f"which only later steps see. Lines are means over {content.windows:,} windows; bands hold 80 % of them. "
        f"Of the history, {attention[-1].label} attends most to the steps {steps}.",
    )


def _phases(curves: tuple[PhaseCurve, ...] | Missing) -> dict[str, Any]:
    """Return the phases as a legend names them, or what is told instead, and the rows of their table."""
    if isinstance(curves, Missing):
        return {"phases": [], "missing_curves": curves}
    return {"phases": [(one.kind, one.phase.upper()) for one in curves], "missing_curves": None}


def _training(curves: tuple[PhaseCurve, ...] | Missing) -> Iterator[Picture]:
    if isinstance(curves, Missing):
        return
    yield picture(
        "curves",
        pictures.draw_curves(curves),
        "Training and validation loss by epoch: "
        + "; ".join(f"{one.phase.upper()} validation {one.kept.validation_loss:.4f} at best" for one in curves),
        "Quantile loss of the normalized target by epoch, phase after phase. Training losses include dropout, "
        "validation losses do not.",
    )
