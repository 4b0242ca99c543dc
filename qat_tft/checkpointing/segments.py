"""Names of the model's segments, the modes that choose among them, and the runner that simply calls."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, TypeVar

from qat_tft.errors import ConfigError

if TYPE_CHECKING:  # settings are checked without importing torch
    from torch import Tensor

SELECTION_SEGMENTS = ("static_selection", "historical_selection", "future_selection")
"""The three selection networks. Each runs as several calls of its name: its weights, then chunks of variables."""

TABLE_SEGMENTS = ("static_tables", "historical_tables", "future_tables")
"""The tables of tabulated selection networks, a call for each chunk of variables. No mode recomputes them: what they
take grows with the weights, not with batch or history, and they are a large part of a step's work."""

SEGMENTS = (
    *SELECTION_SEGMENTS,
    "static_encoder",
    "historical_encoder",
    "future_encoder",
    "lstm_encoder",
    "lstm_decoder",
    "temporal_attention",
)
"""Every segment of the model but tables, in the order in which a forward pass reaches them; without the head."""

EVERY_SEGMENT = (*SEGMENTS, *TABLE_SEGMENTS)


class Mode(StrEnum):
    """Which segments are recomputed in the backward pass instead of being kept in memory."""

    OFF = "off"
    AGGRESSIVE = "aggressive"
    FULL = "full"


_SEGMENTS_OF_MODE = {
    Mode.OFF: frozenset[str](),
    Mode.AGGRESSIVE: frozenset(SEGMENTS) - frozenset(SELECTION_SEGMENTS),
    Mode.FULL: frozenset(SEGMENTS),
}

Result = TypeVar("Result")


class SegmentRunner(Protocol):
    """How a model runs one of its segments: now and keep everything, or now and again in the backward pass."""

    def __call__(self, name: str, function: Callable[..., Result], /, *tensors: Tensor | None) -> Result:
        """Return `function(*tensors)` for the segment called `name`."""
        ...


def run_directly(name: str, function: Callable[..., Result], /, *tensors: Tensor | None) -> Result:
    """Call the segment and let autograd keep what its backward pass needs."""
    return function(*tensors)


def segments_of(mode: Mode | str) -> frozenset[str]:
    """Return the names of the segments that a mode recomputes.

    Raises:
        ConfigError: no mode has that name.
    """
    try:
        return _SEGMENTS_OF_MODE[Mode(mode)]
    except ValueError:
        raise ConfigError(
            f"unknown checkpoint mode {str(mode)!r}",
            where="training.checkpoint_mode",
            allowed=", ".join(Mode),
            next_step="choose one of these modes, or omit it",
        ) from None


def choice_name(segments: frozenset[str]) -> str:
    """Return the name of the mode that recomputes these segments, or their own names where no mode does."""
    named = (str(mode) for mode, of_mode in _SEGMENTS_OF_MODE.items() if of_mode == segments)
    return next(named, ",".join(name for name in EVERY_SEGMENT if name in segments))


def parse_segments(text: str) -> frozenset[str]:
    """Return the segments named in a comma-separated list.

    Raises:
        ConfigError: a name is not a segment of the model, or the list is empty.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in EVERY_SEGMENT]
    if unknown or not names:
        raise ConfigError(
            f"unknown segment {', '.join(map(repr, unknown))}" if unknown else "no segment is given",
            where="training.checkpoint_segments",
            allowed=", ".join(EVERY_SEGMENT),
            next_step="choose segments from this list, separated by commas",
        )
    return frozenset(names)
