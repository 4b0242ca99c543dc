"""Pictures: one forecast against what came, drawn without a display.

Legend: T history, F horizon, Q quantiles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from qat_tft.atomic import written_whole
from qat_tft.errors import PictureError, cannot_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = npt.NDArray[np.floating]
_SHOWN_SEASONS = 3
_COLORS = ("#1f6fb4", "#d1495b", "#3a7d44")


def draw_forecast(
    path: Path,
    *,
    title: str,
    unit: str,
    history: Array,
    truth: Array,
    naive: Array,
    forecasts: Mapping[str, Array],
    levels: Sequence[float],
) -> None:
    """Write a PNG file: the end of the history, what came, the naive forecast, and each forecast with its band.

    Args:
        path: the file; it is written whole or not at all.
        title: what the picture shows.
        unit: name of the vertical axis.
        history: [T], target values before the forecast.
        truth: [F], what came.
        naive: [F], the seasonal naive forecast.
        forecasts: label to quantiles [F, Q]; the first gets the band between its outermost quantiles.
        levels: the Q quantiles, ascending.

    Raises:
        PictureError: matplotlib cannot be loaded.
        RunFolderError: the file cannot be written; an UnwritableError unless the disk is full or broken.
    """
    figure = empty_figure((9.0, 4.0))
    axes = figure.add_subplot()
    shown = history[-_SHOWN_SEASONS * max(1, len(truth)) :]
    past, ahead = np.arange(-len(shown) + 1, 1), np.arange(1, len(truth) + 1)
    axes.plot(past, shown, color="black", linewidth=1.2, label="history")
    axes.plot(ahead, truth, color="black", linewidth=1.2, linestyle="dotted", label="actual")
    axes.plot(ahead, naive, color="grey", linewidth=1.0, linestyle="dashed", label="seasonal naive")
    middle = int(np.argmin(np.abs(np.asarray(levels) - 0.5)))
    for place, (label, quantiles) in enumerate(forecasts.items()):
        color = _COLORS[place % len(_COLORS)]
        axes.plot(ahead, quantiles[:, middle], color=color, linewidth=1.6, label=_line(label, levels[middle]))
        if place == 0 and len(levels) > 1:
            band = f"{label} P{levels[0] * 100:g} to P{levels[-1] * 100:g}"
            axes.fill_between(ahead, quantiles[:, 0], quantiles[:, -1], color=color, alpha=0.25, label=band)
    axes.axvline(0.5, color="grey", linewidth=0.8)
    axes.set(title=title, xlabel="steps from the start of the forecast", ylabel=unit)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    _save(figure, path)


def empty_figure(size: tuple[float, float]) -> Figure:
    """Return a figure of that width and height in inches, which draws without a display.

    Raises:
        PictureError: matplotlib cannot be loaded.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except OSError as failure:  # it needs a folder of its own to load
        raise PictureError(
            f"matplotlib cannot be loaded: {failure}",
            next_step="Set the environment variable MPLCONFIGDIR to a folder that may be written to",
        ) from None
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _line(label: str, level: float) -> str:
    return f"{label} P{level * 100:g}"


def _save(figure: Figure, path: Path) -> None:
    try:
        with written_whole(path) as unfinished:
            figure.savefig(unfinished, format="png", metadata={"Software": None})
    except OSError as failure:
        raise cannot_write(" the picture", str(path), failure) from None
