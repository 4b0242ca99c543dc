"""The strongest forecast without a network, and what another one gains over it."""

from __future__ import annotations

from collections.abc import Mapping

from qat_tft.evaluation.names import SIMPLE


def strongest_simple(risks: Mapping[str, float | None]) -> str | None:
    """Return the forecast without a network that has the lowest q-risk; None where none of them has one.

    Args:
        risks: forecast to its q-risk at one quantile; None where that is undefined.
    """
    known = {name: risk for name in SIMPLE if (risk := risks.get(name)) is not None}
    return min(known, key=known.__getitem__) if known else None


def gain_over(simple: float | None, own: float | None) -> float | None:
    """Return by which share a q-risk lies below another; None where either is undefined, or the other is zero."""
    return 1.0 - own / simple if simple and own is not None else None
