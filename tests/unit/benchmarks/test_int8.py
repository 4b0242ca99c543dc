"""The INT8 benchmark's ratios point the right way round, and a failure of another tool is a result."""

from __future__ import annotations

import pytest


def measured(int8, *, fp32_ms: float, int8_ms: float, steps: float = 0.0):
    report = {
        "sqnr_db": {"optimized": 60.0, "unoptimized": 70.0},
        "layer_max_steps": steps,
        "layer_off": {"gate": 0.0},
        "saturating_products": 0,
        "q_risk": {"fp32": {"0.5": 2.0, "0.9": 1.0}, "int8": {"0.5": 2.1, "0.9": 0.9}},
        "bytes": {"fp32_file": 1000, "int8_file": 250},
        "latency_ms": {"fp32": {"1": fp32_ms, "32": 10 * fp32_ms}, "int8": {"1": int8_ms, "32": 5 * int8_ms}},
    }
    static = {
        "q_risk": {"0.5": 4.0, "0.9": 2.0},
        "bytes": 500,
        "latency_ms": {"fp32": {"1": 3.0, "32": 3.0}, "int8": {"1": 1.0, "32": 2.0}},
    }
    return int8.Measured(report, {int8.STATIC: static, int8.DYNAMIC: {"failure": "Fail: no"}}, 30.0)


@pytest.fixture
def int8(benchmark_named):
    return benchmark_named("int8")


@pytest.fixture
def result(int8):
    found = {
        int8.WIDE: measured(int8, fp32_ms=6.0, int8_ms=3.0),
        "ett_h1": measured(int8, fp32_ms=2.0, int8_ms=4.0, steps=0.5),
    }
    plain = {"latency_ms": {"plain": {"1": 9.0, "32": 60.0}, "int8": {"1": 3.0, "32": 15.0}}}
    return int8.figures(found, plain)


def test_speed_is_how_many_times_as_fast_the_int8_file_is(result):
    assert result["speedup_own"] == {"b1": 2.0, "b32": 4.0}
    assert result["speedup_plain"] == {"b1": 3.0, "b32": 4.0}
    assert result["speedup_by_set"]["ett_h1"] == {"b1": 0.5, "b32": 1.0}


def test_bytes_and_risks_are_those_of_int8_over_fp32(int8, result):
    assert result["file_ratio"] == 0.25
    assert result["q_risk_ratio"]["ett_h1"] == {"0.5": pytest.approx(1.05), "0.9": pytest.approx(0.9)}
    assert result["ptq_q_risk_ratio"]["ett_h1"] == {"0.5": 2.0, "0.9": 2.0}
    assert result["int8_against_fp32"][int8.WIDE][int8.STATIC]["bytes"] == 0.5


def test_the_worst_of_all_sets_counts(result):
    assert result["layer_max_steps"] == 0.5


def test_the_tables_show_every_figure_and_what_failed(int8, result):
    text = "\n".join(int8._tables(result))
    assert "| time FP32 / INT8, ett_h1, batch 1 | `speedup_by_set` | at least 1 | 0.5 |" in text
    assert "| q-risk INT8 / FP32, ett_h1, worst quantile | `q_risk_ratio` | at most 1.005 | 1.05 |" in text
    assert "| tft225 | quantize_dynamic | Fail: no... | | |" in text
