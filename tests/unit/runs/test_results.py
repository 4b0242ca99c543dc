"""Results compare with the seasonal naive forecast and survive JSON."""

import dataclasses
import json

import pytest
from rich.console import Console

from qat_tft.evaluation.names import NAIVE, quantile_name
from qat_tft.runs.results import RunResults


def results(qat: float = 0.8) -> RunResults:
    return RunResults(
        run="mine",
        quantiles=(0.1, 0.5, 0.9),
        season=24,
        q_risk={"fp32": (0.3, 0.75, 0.4), "qat": (0.3, qat, 0.4), NAIVE: (0.5, 1.0, 0.6)},
        windows={"train": 10, "validation": 5, "test": 5, "test_evaluated": 5},
        validation_loss={"fp32": 0.1},
        parameters=3,
        seconds=1.5,
    )


def test_they_survive_json():
    assert RunResults.from_json(json.loads(json.dumps(results().to_json()))) == results()


def test_the_gain_is_that_of_the_median():
    assert results().gain("fp32") == pytest.approx(0.25)
    assert results().to_json()["gain_over_seasonal_naive"] == {
        "fp32": pytest.approx(0.25),
        "qat": pytest.approx(0.2),
    }


@pytest.mark.parametrize(
    ("qat", "said"),
    [(0.8, "QAT beats the seasonal naive forecast"), (1.1, "does not beat"), (1.0, "does not beat")],
    ids=["better", "worse", "equal"],
)
def test_the_sentence_says_who_is_better(qat, said):
    assert said in results(qat).sentence()


def test_a_season_of_one_step_is_called_the_last_value():
    assert "(season of 24 steps)" in results().sentence()
    assert "(the last value)" in dataclasses.replace(results(), season=1).sentence()


def test_the_tables_hold_every_forecast():
    console = Console(width=100, record=True, file=None, quiet=False)
    with console.capture() as captured:
        for table in results().tables():
            console.print(table)
    text = captured.get()
    assert all(name in text for name in ("FP32", "QAT", "seasonal naive", "P10", "P50", "P90", "20.0%"))


@pytest.mark.parametrize("value", [{}, {"quantiles": 3}, {**results().to_json(), "q_risk": []}])
def test_foreign_json_is_refused(value):
    with pytest.raises(ValueError, match="not the results of a run"):
        RunResults.from_json(value)


def test_quantiles_have_their_usual_names():
    assert [quantile_name(level) for level in (0.1, 0.5, 0.025)] == ["P10", "P50", "P2.5"]
