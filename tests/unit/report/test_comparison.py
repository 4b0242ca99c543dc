"""Two runs side by side: the better one is named, and what does not compare is not ranked."""

from dataclasses import replace

import pytest

from qat_tft.report.comparison import compare_runs
from qat_tft.runs.folder import RunFolder


def with_risk(run: RunFolder, **risks: float) -> None:
    """Give forecasts of a run another q-risk P50."""
    results = run.load_results()
    changed = {name: (results.q_risk[name][0], risk, results.q_risk[name][2]) for name, risk in risks.items()}
    run.write_results(replace(results, q_risk={**results.q_risk, **changed}))


@pytest.mark.parametrize(
    ("risk", "said"),
    [
        (0.42, "mine is better than other: its q-risk P50 is 50.0% lower, 0.21000 against 0.42000."),
        (0.105, "other is better than mine: its q-risk P50 is 50.0% lower, 0.10500 against 0.21000."),
        (0.21, "mine and other are equally good in q-risk P50, 0.21000."),
    ],
)
def test_the_better_run_is_named(finished: RunFolder, changeable: RunFolder, risk: float, said: str) -> None:
    with_risk(changeable, qat=risk)
    changeable.path = changeable.path.rename(changeable.path.with_name("other"))
    compared = compare_runs(finished, changeable)
    assert (compared.lead, compared.caveats) == (said, ())
    (figure,) = (one for one in compared.figures if one.name == "q-risk P50, QAT")
    assert (figure.first, figure.second) == ("0.21000", f"{risk:.5f}")


def test_runs_with_other_test_windows_are_not_ranked(finished: RunFolder, changeable: RunFolder) -> None:
    windows = changeable.load_check_windows()
    changeable.write_check_windows(windows._replace(target=windows.target + 1))
    with_risk(changeable, qat=0.1)
    compared = compare_runs(finished, changeable)
    assert compared.lead == "mine and mine cannot be ranked."
    assert {one.change for one in compared.figures} == {""}
    assert "tested on different windows" in compared.caveats[0]


def test_options_that_differ_are_named_with_both_values(finished: RunFolder, changeable: RunFolder) -> None:
    config = changeable.load_config()
    changeable.write_config(config.model_copy(update={"training": config.training.model_copy(update={"seed": 7})}))
    compared = compare_runs(finished, changeable)
    assert compared.options == (("training.seed", "0", "7"),)
    assert compared.columns == ()
    assert compared.to_json()["options"] == {"training.seed": ["0", "7"]}


def test_a_run_without_files_or_qat_has_dashes(finished: RunFolder, changeable: RunFolder) -> None:
    for name in ("qat.safetensors", "model.int8.onnx", "check.json"):
        (changeable.path / name).unlink()
    results = changeable.load_results()
    q_risk = {name: risks for name, risks in results.q_risk.items() if name != "qat"}
    changeable.write_results(replace(results, q_risk=q_risk))
    figures = {one.name: one for one in compare_runs(finished, changeable).figures}
    dash = "\N{EN DASH}"
    assert (figures["q-risk P50, QAT"].second, figures["q-risk P50, QAT"].change) == (dash, "")
    assert (figures["INT8 ONNX file, KB"].first, figures["INT8 ONNX file, KB"].second) == ("1.0", dash)
    assert figures["integer file, ms at batch 1"].second == dash
    assert figures["FP32 weights, KB"].change == "+0.0 %"
