"""Pictures of a report: from arrays to SVG text that stands inside a page and takes the page's colours.

Equal arrays give equal bytes. Words in a picture are ours alone: what comes out of data stands in the page's captions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from qat_tft.evaluation.plots import Array, empty_figure
from qat_tft.report.explanations import AttentionByLag
from qat_tft.report.fans import Fan
from qat_tft.report.quality import RiskRow, StepErrors
from qat_tft.report.training_curves import PhaseCurve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Drawn in colours that nothing else has, which the page's own replace: they differ between light and dark.
_INK, _RULE = "#0a0b01", "#0a0b02"
_COLORS = {"fp32": "#0a0b03", "int8": "#0a0b04", "simple": "#0a0b05", "other": "#0a0b06"}
_VARIABLES = {
    _INK: "currentColor",
    _RULE: "var(--rule)",
    **{color: f"var(--{kind})" for kind, color in _COLORS.items()},
}
_DASHES = {"fp32": "solid", "int8": (0, (4, 1.2)), "simple": (0, (1, 1.2)), "other": "solid"}
_SIZE = (5.0, 2.9)  # inches of 72 points: narrow enough for its text to be read on a telephone
_MOST_POINTS, _FEW_POINTS = 400, 4
_SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "qat-tft",
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 11.5,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _RULE,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": True,
    "axes.labelsize": 11.5,
    "xtick.color": _RULE,
    "ytick.color": _RULE,
    "xtick.labelcolor": _INK,
    "ytick.labelcolor": _INK,
    "xtick.labelsize": 11,
    "ytick.labelsize": 11,
    "lines.linewidth": 1.5,
    "lines.solid_capstyle": "round",
}


def draw_fan(fan: Fan, levels: Sequence[float], middle: int) -> str:
    """Draw one forecast: history, what came, the last season repeated, and each model's quantiles."""
    with _picture() as (axes, svg):
        ahead = np.arange(1, len(fan.truth) + 1)
        marker = "o" if len(ahead) <= _FEW_POINTS else ""
        axes.plot(np.arange(1 - len(fan.history), 1), fan.history, color=_INK, linewidth=1.0)
        axes.plot(ahead, fan.truth, color=_INK, linewidth=1.3, marker="o", markersize=2.2)
        axes.plot(ahead, fan.simple, marker=marker, markersize=3, **_style("simple"))
        for kind, _, quantiles in fan.forecasts:
            axes.plot(ahead, quantiles[:, middle], marker=marker, markersize=3, **_style(kind))
        kind, _, quantiles = fan.forecasts[-1]
        if len(levels) > 1:
            low, high = quantiles[:, 0], quantiles[:, -1]
            axes.fill_between(ahead, low, high, color=_COLORS[kind], alpha=0.22, linewidth=0)
        axes.axvline(0.5, color=_RULE, linewidth=0.8)
        axes.set_xlabel("steps from the origin")
    return svg()


def draw_curves(phases: Sequence[PhaseCurve]) -> str:
    """Draw the losses of every epoch, phase after phase."""
    with _picture() as (axes, svg):
        from matplotlib.ticker import MaxNLocator

        before = 0
        for phase in phases:
            at = before + np.arange(1, len(phase.epochs) + 1)
            train = [one.train_loss for one in phase.epochs]
            validation = [one.validation_loss for one in phase.epochs]
            color = _COLORS[phase.kind]
            axes.plot(at, validation, color=color, marker="o", markersize=4)
            axes.plot(at, train, color=color, marker=".", markersize=4, linestyle=_DASHES["simple"])
            if before:
                axes.axvline(before + 0.5, color=_RULE, linewidth=0.8)
            before += len(phase.epochs)
        axes.set(xlabel="epoch", ylabel="loss", xlim=(0.5, before + 0.5))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return svg()


def draw_reliability(rows: Sequence[RiskRow], levels: Sequence[float]) -> str:
    """Draw the share of targets up to each quantile against its level: on the diagonal it is right."""
    with _picture() as (axes, svg):
        axes.plot([0, 1], [0, 1], color=_RULE, linewidth=0.8)
        for row in rows:
            shares = [np.nan if share is None else share for share in row.coverage]
            axes.plot(levels, shares, marker="o", markersize=4, **_style(row.kind))
        axes.set(xlabel="level of the quantile", ylabel="share of targets below", xlim=(0, 1), ylim=(0, 1))
    return svg()


def draw_errors_by_step(steps: Sequence[StepErrors]) -> str:
    """Draw the mean absolute error of each forecast at each horizon step."""
    with _picture() as (axes, svg):
        for one in steps:
            _draw_by_step(axes, one, one.error)
        axes.set(xlabel="horizon step", ylabel="mean absolute error", ylim=(0, None))
    return svg()


def draw_inside_by_step(steps: Sequence[StepErrors], nominal: float) -> str:
    """Draw which share of the targets lies between the outermost quantiles at each horizon step."""
    with _picture() as (axes, svg):
        axes.axhline(nominal, color=_RULE, linewidth=0.8)
        for one in steps:
            if one.inside:
                _draw_by_step(axes, one, one.inside)
        axes.set(xlabel="horizon step", ylabel="share of targets inside", ylim=(0, 1.02))
    return svg()


def draw_attention(models: Sequence[AttentionByLag]) -> str:
    """Draw the attention by position: the mean over windows, and a band that holds most of them."""
    with _picture() as (axes, svg):
        for one in models:
            color, lags = _COLORS[one.kind], _thinned(one.lags)
            low, mean, high = (100 * _thinned(part) for part in (one.low, one.mean, one.high))
            axes.fill_between(lags, low, high, color=color, alpha=0.18, linewidth=0)
            axes.plot(lags, mean, color=color, linestyle=_DASHES[one.kind], linewidth=1.3)
        axes.axvline(0.5, color=_RULE, linewidth=0.8)
        axes.set(xlabel="steps from the origin", ylabel="attention, %", ylim=(0, None))
    return svg()


def _style(kind: str) -> dict[str, Any]:
    """Return the color and the dashes that mean a kind of forecast in every picture."""
    return {"color": _COLORS[kind], "linestyle": _DASHES[kind]}


def _thinned(values: Sequence[float]) -> Array:
    """Return at most as many values as can be told apart: means of neighbours where there are more."""
    block = -(-len(values) // _MOST_POINTS)
    begins = np.arange(0, len(values), block)
    counts = np.diff(np.append(begins, len(values)))
    return cast(Array, np.add.reduceat(np.asarray(values, dtype=np.float64), begins) / counts)


def _draw_by_step(axes: Axes, one: StepErrors, figures: Sequence[float | None]) -> None:
    from matplotlib.ticker import MaxNLocator

    shown = [np.nan if figure is None else figure for figure in figures]
    marker = "o" if len(shown) <= _FEW_POINTS else ""  # one step alone makes no line
    axes.plot(np.arange(1, len(shown) + 1), shown, marker=marker, markersize=4, **_style(one.kind))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


@contextmanager
def _picture() -> Iterator[tuple[Axes, Callable[[], str]]]:
    """Give axes to draw on, and what returns the SVG text once they are drawn; settings are restored after."""
    figure = empty_figure(_SIZE)
    import matplotlib

    drawn = StringIO()
    usual: dict[Any, Any] = {
        name: value for name, value in matplotlib.rcParamsDefault.items() if name.partition(".")[0] in _GROUPS
    }
    with matplotlib.rc_context({**usual, **_SETTINGS}):
        axes = figure.add_subplot()
        axes.tick_params(length=3)
        yield axes, lambda: _page_svg(drawn.getvalue())
        figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None, "Creator": None})


_GROUPS = frozenset(name.partition(".")[0] for name in _SETTINGS) | {"figure", "savefig", "patch", "path"}
_OPENING = re.compile(r"<svg[^>]*>")
_VIEW = re.compile(r'viewBox="[^"]*"')
_TAG, _COMMENT = re.compile(r"<[^>]+>"), re.compile(r"<!--.*?-->\s*", re.DOTALL)
_OVERHEAD = re.compile(r"<metadata>.*?</metadata>\s*|<defs>\s*<style.*?</style>\s*</defs>\s*", re.DOTALL)
_FONT = re.compile(r"font: ([\d.]+)px [^;\"]*")
_FAMILY = re.compile(r"font-family: [^;\"]*;? ?")
_LONG_NUMBER = re.compile(r"\b(\d+\.\d{2})\d+")
_DEFINED, _USED = re.compile(r'\s+id="([^"]*)"'), re.compile(r'(?:url\(#|href="#)([^")]+)')


def _page_svg(text: str) -> str:
    """Return SVG as it stands inside HTML: no prologue, styles or fonts of its own, and the page's colours."""
    opening = _OPENING.search(text)
    view = _VIEW.search(text)
    assert opening is not None
    assert view is not None
    body = _OVERHEAD.sub("", text[opening.end() :]).replace("xlink:href", "href")
    body = _TAG.sub(lambda tag: _shortened(tag[0]), _COMMENT.sub("", body))
    used = set(_USED.findall(body))
    body = _DEFINED.sub(lambda found: found[0] if found[1] in used else "", body)
    for color, variable in _VARIABLES.items():
        body = body.replace(color, variable)
    return f"<svg {view[0]}>{body.strip()}"


def _shortened(tag: str) -> str:
    """Return a tag without fonts, its coordinates to a hundredth of a point."""
    return _LONG_NUMBER.sub(r"\1", _FAMILY.sub("", _FONT.sub(r"font-size: \1px", tag)))


def with_own_names(svg: str, prefix: str) -> str:
    """Return a picture whose ids begin with a prefix, so that those of two pictures of a page never meet."""
    svg = re.sub(r'id="', f'id="{prefix}-', svg)
    return re.sub(r'(url\(#|href="#)', rf"\g<1>{prefix}-", svg)
