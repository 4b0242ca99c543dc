"""What tables and pages read of check.json: whether its parts have the types that a check writes."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter
from typing_extensions import TypedDict

Ratio = float | None


class _Layer(TypedDict, total=False):
    name: str
    qat_db: Ratio
    file_db: dict[str, Ratio] | None


class _Record(TypedDict, total=False):
    passed: bool
    reasons: list[str] | None
    rows: int | None
    products: str
    sqnr_db: dict[str, Ratio] | Ratio
    integer_share: Ratio
    q_risk: dict[str, dict[str, Ratio] | None] | None
    latency_ms: dict[str, dict[str, float] | None] | None
    layers: list[_Layer] | None


def require_record(value: dict[str, Any]) -> None:
    """Raise a ValueError where a JSON object is no report of a check of this or an earlier version."""
    TypeAdapter(_Record).validate_python(value, strict=True)
    if "passed" not in value or any("name" not in layer for layer in value.get("layers") or ()):
        raise ValueError("it says nothing of passing, or layers have no names")
