"""What the benchmark of bits makes of q-risks: shares of a loss that are told only where there is a loss."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

LEVELS = ("0.1", "0.5", "0.9")


@pytest.fixture
def script(benchmark_named):
    return benchmark_named("bits")


def seed(script, fp32: float, continued: float, plain: float, best: float, qat: float):
    risks = dict(zip(script.MODELS, (fp32, continued, plain, best, qat), strict=True))
    return script.Quantized(SimpleNamespace(), {name: dict.fromkeys(LEVELS, risk) for name, risk in risks.items()})


def test_what_qat_wins_back_is_the_share_of_the_mean_loss(script):
    seeds = [seed(script, 1.0, 0.99, 1.2, 1.1, 1.05), seed(script, 1.0, 0.99, 1.3, 1.12, 1.05)]
    found = script.figures({"bikes": {2: seeds}})
    assert found["recovered"]["bikes"]["2"] == pytest.approx((1.25 - 1.05) / 0.25)
    assert found["recovered_best"]["bikes"]["2"] == pytest.approx((1.11 - 1.05) / 0.11)
    assert found["qat_over_fp32"]["bikes"]["2"] == pytest.approx(1.05)
    assert found["qat_over_continued"]["bikes"]["2"] == pytest.approx(1.05 / 0.99)
    assert found["q_risk"]["bikes"]["2"]["ptq_plain"] == pytest.approx(dict.fromkeys(LEVELS, 1.25))
    assert found["spread"]["bikes"]["2"]["ptq_plain"]["0.5"] == pytest.approx(0.1 / 2**0.5)
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("plain", [(1.0, 1.2), (0.9, 0.95), (1.1,)], ids=["wide", "no loss", "one seed"])
def test_a_loss_within_twice_its_spread_has_no_share(script, plain):
    seeds = [seed(script, 1.0, 1.0, risk, risk, 1.0) for risk in plain]
    assert script.recovered(seeds, "ptq_plain") is None


def test_the_table_has_a_row_for_each_set_and_number_of_bits(script):
    seeds = [seed(script, 1.0, 0.99, 1.2, 1.1, 1.05), seed(script, 2.0, 2.0, 2.2, 2.1, 1.9)]
    lines = list(script.model_table({"bikes": {4: seeds, 2: seeds[:1]}}))
    rows = [line for line in lines if line.startswith("| bikes")]
    assert rows[0].startswith("| bikes | 4 | 2 | 1.50000 |")
    assert rows[0].endswith("| -1.67% (-5.0% to +5.0%) |")
    assert rows[1].startswith("| bikes | 2 | 1 | 1.00000 |")


def test_a_set_that_is_none_is_refused(script):
    with pytest.raises(SystemExit, match="there is no set moon"):
        script._names("moon", {"bikes": None})
