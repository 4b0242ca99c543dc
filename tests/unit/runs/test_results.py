"""Results compare with the strongest simple forecast, say what is undefined, and survive JSON."""

import dataclasses
import json

import pytest
from rich.console import Console

from qat_tft.evaluation.names import LAST, NAIVE, RIDGE, quantile_name
from qat_tft.runs.results import RunResults


def results(qat: float = 0.8, **changes) -> RunResults:
    made = RunResults(
        run="mine",
        quantiles=(0.1, 0.5, 0.9),
        season=24,
        q_risk={
            "fp32": (0.3, 0.75, 0.4),
            "qat": (0.3, qat, 0.4),
            RIDGE: (0.4, 1.0, 0.5),
            NAIVE: (0.5, 1.25, 0.6),
            LAST: (0.5, 2.0, 0.6),
        },
        coverage={"fp32": (0.11, 0.52, 0.88), RIDGE: (0.125, 0.5, None)},
        windows={"train": 10, "validation": 5, "test": 5, "test_evaluated": 5},
        validation_loss={"fp32": 0.1},
        parameters=3,
        seconds=1.5,
    )
    return dataclasses.replace(made, **changes)


def undefined() -> RunResults:
    return results(q_risk=dict.fromkeys(results().q_risk, (None, None, None)))


def printed(one: RunResults) -> str:
    console = Console(width=100, record=True, file=None, quiet=False)
    with console.capture() as captured:
        for table in one.tables():
            console.print(table)
    return captured.get()


@pytest.mark.parametrize("one", [results(), undefined()], ids=["defined", "undefined"])
def test_they_survive_json(one):
    assert RunResults.from_json(json.loads(json.dumps(one.to_json(), allow_nan=False))) == one


def test_results_of_before_there_was_coverage_are_read():
    value = results().to_json()
    for name in ("coverage", "strongest_simple", "gain_over_strongest_simple"):
        del value[name]
    assert RunResults.from_json(value) == results(coverage={})


def test_the_gain_is_that_of_the_median_over_the_strongest_simple_forecast():
    value = results().to_json()
    assert value["strongest_simple"] == RIDGE
    assert value["gain_over_strongest_simple"] == {
        "fp32": pytest.approx(0.25),
        "qat": pytest.approx(0.2),
        RIDGE: 0.0,
        NAIVE: pytest.approx(-0.25),
        LAST: pytest.approx(-1.0),
    }


@pytest.mark.parametrize(
    ("qat", "said"),
    [
        pytest.param(0.8, "QAT beats the strongest simple forecast, a ridge regression, by 20.0%", id="better"),
        pytest.param(1.1, "a ridge regression, and its q-risk P50 is 10.0% higher.", id="worse"),
        pytest.param(1.0001, "QAT is as good as the strongest simple forecast, a ridge regression,", id="equal"),
    ],
)
def test_the_sentence_says_who_is_better_and_what_to_try(qat, said):
    sentence = results(qat).sentence()
    assert said in sentence
    assert ("To try: more --epochs" in sentence) == (qat > 0.9)


@pytest.mark.parametrize(
    ("strongest", "season", "named"),
    [
        pytest.param(NAIVE, 24, "the value of 24 steps before", id="season"),
        pytest.param(NAIVE, 1, "the last value", id="season of one step"),
        pytest.param(LAST, 24, "the last value", id="last value"),
    ],
)
def test_the_strongest_simple_forecast_is_named(strongest, season, named):
    risks = {"qat": (0.3, 0.8, 0.4), RIDGE: (0.4, 3.0, 0.5), NAIVE: (0.5, 2.0, 0.6), strongest: (0.5, 1.0, 0.6)}
    assert f"simple forecast, {named}, by" in results(q_risk=risks, season=season).sentence()


def test_with_a_season_of_one_step_the_last_value_is_named_in_the_table_too():
    risks = {"qat": (0.3, 0.8, 0.4), NAIVE: (0.5, 1.0, 0.6)}
    text = printed(results(q_risk=risks, season=1))
    assert "against last value" in text
    assert "seasonal naive" not in text


def test_the_tables_hold_every_forecast_and_coverage():
    text = printed(results())
    assert all(name in text for name in ("FP32", "QAT", "ridge regression", "seasonal naive", "P10", "P50", "P90"))
    assert all(cell in text for cell in ("0.75000", "+25.0 %", "11.0%", "52.0%", "88.0%"))


def test_what_is_undefined_is_a_dash_and_is_said():
    text = printed(undefined())
    assert "undefined on this test part, whose targets are all zero" in " ".join(text.split())
    assert "None" not in text
    assert "P50 against" not in text


@pytest.mark.parametrize("value", [{}, {"quantiles": 3}, {**results().to_json(), "q_risk": []}])
def test_foreign_json_is_refused(value):
    with pytest.raises(ValueError, match="not the results of a run"):
        RunResults.from_json(value)


def test_quantiles_have_their_usual_names():
    assert [quantile_name(level) for level in (0.1, 0.5, 0.025)] == ["P10", "P50", "P2.5"]


@pytest.mark.parametrize(
    ("ptq", "qat", "share", "said"),
    [
        (1.2, 1.05, 0.75, "Rounding alone raises the mean q-risk by 20.0%; QAT wins back 75% of that."),
        (1.2, 0.9, 1.5, "QAT wins all of that back."),
        (1.2, 1.3, -0.5, "QAT wins nothing back."),
        (1.004, 0.9, None, ""),
        (0.9, 0.8, None, ""),
    ],
)
def test_what_qat_wins_back_is_told_where_rounding_costs_anything(ptq, qat, share, said):
    risks = {"fp32": (1.0, 1.0, 1.0), "ptq": (ptq,) * 3, "qat": (qat,) * 3, "last_value": (2.0,) * 3}
    one = results(q_risk=risks)
    assert one.recovered == (None if share is None else pytest.approx(share))
    assert one.to_json()["recovered"] == one.recovered
    text = " ".join(printed(one).split())
    assert (said in text) if said else ("Rounding alone" not in text)


def test_without_qat_or_with_undefined_risks_nothing_is_won_back():
    assert results(q_risk={"fp32": (1.0,), "ptq": (1.2,)}, quantiles=(0.5,)).recovered is None
    assert undefined().recovered is None
