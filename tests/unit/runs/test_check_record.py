"""What a check wrote is taken as it is; anything else in its place is refused before tables and pages read it."""

from __future__ import annotations

import pytest

from qat_tft.runs.check_record import require_record

WRITTEN = {
    "passed": True,
    "reasons": [],
    "rows": 8,
    "products": "float",
    "sqnr_db": {"optimized": 80.5, "unoptimized": None},
    "integer_share": None,
    "q_risk": {"fp32": {"0.5": 0.1}, "qat": None},
    "latency_ms": {"fp32": {"1": 0.2}, "int8": None},
    "layers": [{"name": "head", "operator": "Gemm", "qat_db": 60.0, "file_db": {"optimized": 70.0}}],
    "another": "figure",
}


def test_what_a_check_writes_is_taken_and_so_is_what_an_earlier_version_wrote() -> None:
    require_record(WRITTEN)
    require_record({"passed": False, "sqnr_db": 40.0})
    require_record({**WRITTEN, "layers": None, "q_risk": None, "latency_ms": None})


@pytest.mark.parametrize(
    "change",
    [
        {"passed": 1},
        {"sqnr_db": {"optimized": "high"}},
        {"q_risk": {"fp32": 3}},
        {"latency_ms": 5},
        {"latency_ms": {"fp32": {"1": "fast"}}},
        {"layers": [3]},
        {"layers": [{"qat_db": 60.0}]},
        {"rows": "many"},
    ],
    ids=str,
)
def test_a_part_of_another_type_is_refused(change: dict) -> None:
    with pytest.raises(ValueError, match=r"Record|says nothing"):
        require_record({**WRITTEN, **change})


def test_what_says_nothing_of_passing_is_refused() -> None:
    with pytest.raises(ValueError, match="passing"):
        require_record({name: value for name, value in WRITTEN.items() if name != "passed"})
