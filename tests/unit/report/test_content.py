"""What a report says: computed from a run, compared with plain loops over the same models and windows."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from qat_tft.model.frame import Frame, FrameShape
from qat_tft.report.content import ReportContent, collect
from qat_tft.report.evidence import Evidence, FileForecasts, gather_evidence
from qat_tft.report.explanations import (
    Explanations,
    GroupImportance,
    Spread,
    VariableImportance,
    explain,
    signed_points,
)
from qat_tft.report.fans import choose_fans
from qat_tft.report.missing import Missing
from qat_tft.runs import layout
from qat_tft.runs.build import PATH, SCALE, variables_by_group
from qat_tft.runs.folder import RunFolder
from qat_tft.runs.report import RunReport
from qat_tft.schema import PRESENT, Columns, GroupSize

MIDDLE, LEVELS, HISTORY = 1, (0.1, 0.5, 0.9), 6
SAME_SUMS = 1e-5
"""Relative: single precision, summed in another order."""


@pytest.fixture(scope="session")
def evidence(finished: RunFolder) -> Evidence:
    return gather_evidence(finished, season=2)


def said_by(run: RunFolder, model: torch.nn.Module) -> object:
    windows, scaling = run.load_check_windows(), run.load_preprocessing().scaling()
    with torch.no_grad():
        return model(*scaling.scale_inputs(windows.static, windows.historical, windows.future, windows.series))


def test_weights_are_the_models_own_and_sum_to_one(finished: RunFolder, evidence: Evidence) -> None:
    windows = finished.load_check_windows()
    place = finished.load_effective_schema().group("historical").columns.index(PRESENT)
    padded = 0
    for view, model in zip(evidence.views, (finished.load_fp32_model(), finished.load_qat_model()), strict=True):
        said = said_by(finished, model)
        for window in range(len(windows.target)):
            there = [step for step in range(HISTORY) if windows.historical[window, step, place] == 1]
            padded += HISTORY - len(there)
            own = torch.stack([said.historical_weights[window, step] for step in there]).mean(0)
            torch.testing.assert_close(view.selection["historical"][window], own, rtol=SAME_SUMS, atol=1e-6)
        for weights in (*view.selection.values(), view.attention):
            torch.testing.assert_close(weights.sum(1), torch.ones(len(weights)), rtol=SAME_SUMS, atol=1e-5)
    assert padded > 0


def test_padding_is_no_variable(finished: RunFolder, evidence: Evidence) -> None:
    schema, model = finished.load_effective_schema(), finished.load_config().model
    assert PRESENT in schema.group("historical").columns
    assert variables_by_group(model, schema)["historical"] == ("load", "<b>x</b> & $y$", "hour")
    assert {name: weights.shape[1] for name, weights in evidence.last.selection.items()} == {
        name: len(variables) for name, variables in evidence.variables.items()
    }


def test_what_the_frame_adds_stands_where_the_model_has_it(finished: RunFolder) -> None:
    known = Columns(real=("hour",), category=("shift",))
    schema = finished.load_schema().model_copy(update={"known": known})
    model = finished.load_config().model
    framed = model.model_copy(update={"scale_input": True, "linear_path": "ridge"})
    assert variables_by_group(framed, schema)["future"] == ("hour", PATH, "shift")
    assert variables_by_group(framed, schema)["static"] == (SCALE, "plant")
    bare = model.model_copy(update={"linear_path": "off", "scale_input": False})
    assert variables_by_group(bare, schema)["future"] == ("hour", "shift")
    differenced = framed.model_copy(update={"seasonal_difference": 2})
    assert variables_by_group(differenced, schema)["static"] == ("plant",)
    frame = Frame(FrameShape(True, path=True), GroupSize(3), 0, 1, history=6, horizon=3, quantiles=1)
    frame.weight.fill_(7.0)
    view = frame(torch.zeros(1, 1), torch.rand(1, 6, 3), torch.zeros(1, 3, 2))
    assert [bool(view.future[..., place].any()) for place in range(3)] == [False, True, False]


def test_no_more_windows_are_looked_at_than_asked_for(finished: RunFolder) -> None:
    few = gather_evidence(finished, season=2, most=5)
    assert (len(few.series), few.kept) == (5, len(finished.load_check_windows().target))
    assert len(few.last.quantiles) == len(few.simple) == 5


def test_importance_is_the_mean_over_windows_and_falls(evidence: Evidence) -> None:
    told = explain(evidence.views, evidence.variables, HISTORY)
    (historical,) = (group for group in told.groups if group.group == "historical")
    means = [one.weights["int8"].mean for one in historical.variables]
    assert means == sorted(means, reverse=True)
    for one in historical.variables:
        place = evidence.variables["historical"].index(one.variable)
        fp32, int8 = (view.selection["historical"][:, place].numpy() for view in evidence.views)
        assert one.weights["fp32"].mean == pytest.approx(fp32.mean(), rel=SAME_SUMS)
        assert one.weights["fp32"].low == pytest.approx(np.quantile(fp32, 0.1), rel=SAME_SUMS)
        assert one.weights["fp32"].high == pytest.approx(np.quantile(fp32, 0.9), rel=SAME_SUMS)
        assert one.change == pytest.approx(int8.mean() - fp32.mean(), rel=1e-3, abs=1e-7)
    fp32, int8 = (view.selection["historical"].numpy() for view in evidence.views)
    moved = np.mean([sum(abs(int8[window] - fp32[window])) / 2 for window in range(len(fp32))])
    assert historical.moved == pytest.approx(moved, rel=1e-4)
    assert historical.moved > 0


def test_attention_stands_at_its_lag(evidence: Evidence) -> None:
    told = explain(evidence.views, evidence.variables, HISTORY).attention[0]
    assert told.lags == (-5, -4, -3, -2, -1, 0, 1, 2, 3)
    newest = evidence.views[0].attention[:, HISTORY - 1]
    assert told.mean[HISTORY - 1] == pytest.approx(float(newest.mean()), rel=SAME_SUMS)
    past = {lag: told.mean[place] for place, lag in enumerate(told.lags) if lag <= 0}
    assert told.highest(2) == tuple(sorted(past, key=past.__getitem__, reverse=True)[:2])


def test_what_integers_change_is_said_in_points(content: ReportContent) -> None:
    sentences = content.explanations.changes("INT8")
    assert len(sentences) == len(content.explanations.groups) + 1
    moved = f"{content.explanations.attention_moved:.1%}"
    assert sentences[-1] == f"{moved} of the attention goes to other steps with INT8."
    shares = [signed_points(share) for share in (0.0312, -0.0001, -0.013)]
    assert shares == ["+3.1 points", "0.0 points", "\N{MINUS SIGN}1.3 points"]


def test_series_are_ranked_by_the_error_of_the_last_model(finished: RunFolder, evidence: Evidence) -> None:
    fans = choose_fans(evidence, finished.load_effective_schema(), LEVELS, MIDDLE)
    errors = {}
    for series in set(evidence.series):
        inside = [window for window, name in enumerate(evidence.series) if name == series]
        wrong = sum(
            abs(float(evidence.last.quantiles[window, step, MIDDLE] - evidence.windows.target[window, step]))
            for window in inside
            for step in range(3)
        )
        errors[series] = wrong / float(evidence.windows.target[inside].abs().sum())
    ranking = sorted(errors, key=errors.__getitem__)
    assert (fans.ranked, fans.count, [fan.rank for fan in fans.shown]) == ("series", 4, ["best", "median", "worst"])
    assert [fan.series for fan in fans.shown] == [ranking[0], ranking[1], ranking[-1]]
    assert [fan.error for fan in fans.shown] == pytest.approx([errors[fan.series] for fan in fans.shown], rel=1e-4)


def test_with_few_series_windows_are_ranked_and_zero_targets_are_not(finished: RunFolder, evidence: Evidence) -> None:
    one_series = replace(evidence, series=("one",) * len(evidence.series))
    schema = finished.load_effective_schema()
    fans = choose_fans(one_series, schema, LEVELS, MIDDLE)
    assert (fans.ranked, fans.count) == ("windows", len(evidence.series))
    windows = evidence.windows._replace(target=torch.zeros_like(evidence.windows.target))
    assert choose_fans(replace(one_series, windows=windows), schema, LEVELS, MIDDLE).shown == ()


def test_errors_by_step_are_means_over_windows(content: ReportContent, evidence: Evidence) -> None:
    assert [one.label for one in content.steps] == ["FP32", "INT8", "last season repeated"]
    for one, point in zip(
        content.steps,
        (*(view.quantiles[..., MIDDLE] for view in evidence.views), evidence.simple),
        strict=True,
    ):
        expected = [float((point[:, step] - evidence.windows.target[:, step]).abs().mean()) for step in range(3)]
        assert one.error == pytest.approx(expected, rel=1e-4)
    low, high = evidence.views[0].quantiles[:, 0, 0], evidence.views[0].quantiles[:, 0, 2]
    target = evidence.windows.target[:, 0]
    assert content.steps[0].inside[0] == pytest.approx(float(((low <= target) & (target <= high)).float().mean()))


def test_the_answer_comes_in_figures(content: ReportContent) -> None:
    assert content.lead.startswith("QAT beats the strongest simple forecast, a ridge regression, by 30.0%")
    figures = {fact.title: (fact.value, fact.tone) for fact in content.facts}
    assert figures == {
        "Against the best simple forecast": ("\N{MINUS SIGN}30.0 %", "good"),
        "What INT8 costs": ("+5.0 %", "plain"),
        "Size of the INT8 file": ("25%", "good"),
        "Memory saved by checkpointing": ("50%", "good"),
        "Check in onnxruntime": ("passed", "good"),
    }
    assert content.missing == ()


@pytest.mark.parametrize(
    ("qat", "value", "said"),
    [
        (0.22, "+10.0 %", "INT8 raises q-risk P50 from 0.20000 to 0.22000; over all quantiles it changes by +5.0 %."),
        (0.18, "\N{MINUS SIGN}10.0 %", "INT8 lowers q-risk P50 from 0.20000 to 0.18000"),
        (0.200001, "0.0 %", "INT8 leaves q-risk P50 at 0.20000."),
    ],
)
def test_what_integers_cost_is_said_in_words(changeable: RunFolder, qat: float, value: str, said: str) -> None:
    results = changeable.load_results()
    changeable.write_results(replace(results, q_risk={**results.q_risk, "qat": (0.1, qat, 0.1)}))
    (fact,) = (one for one in collect(changeable).facts if one.title == "What INT8 costs")
    assert fact.value == value
    assert fact.sentence.startswith(said)


def test_a_model_that_adds_nothing_is_as_good_as_the_simple_forecast(changeable: RunFolder) -> None:
    results = changeable.load_results()
    q_risk = {**results.q_risk, "fp32": results.q_risk["ridge"], "qat": (0.2, 0.30001, 0.2)}
    changeable.write_results(replace(results, q_risk=q_risk))
    told = collect(changeable)
    assert (told.facts[0].value, told.facts[0].tone) == ("0.0 %", "plain")
    assert [row.name for row in told.risks if row.strongest_simple] == ["ridge"]


def test_changes_that_nobody_would_notice_are_called_so(content: ReportContent) -> None:
    unmoved = tuple(replace(group, moved=1e-5) for group in content.explanations.groups)
    sentences = replace(content.explanations, groups=unmoved, attention_moved=1e-5).changes("INT4")
    assert sentences[-1] == "Next to nothing of the attention goes to other steps with INT4."
    assert all("INT4 puts next to nothing of the weight on other variables" in one for one in sentences[:-1])


def test_variables_whose_weight_moved_are_named_and_no_others() -> None:
    fp32, int8 = (Spread(mean, 0.0, 1.0) for mean in (0.5, 0.4))
    variables = tuple(
        VariableImportance(name, {"fp32": fp32, "int8": after}) for name, after in (("moved", int8), ("still", fp32))
    )
    told = Explanations((GroupImportance("static", variables, 0.1),), (), None)
    assert told.changes("INT8") == (
        "Static columns: INT8 puts 10.0% of the weight on other variables; most: moved \N{MINUS SIGN}10.0 points.",
    )
    still = Explanations((GroupImportance("static", variables[1:], 0.001),), (), None)
    assert still.changes("INT8") == ("Static columns: INT8 puts 0.1% of the weight on other variables.",)


def test_forecasts_are_the_files_and_weights_the_models(finished: RunFolder, content: ReportContent) -> None:
    """A file that forecasts 7 everywhere: fans and errors are its own, explanations are not touched."""
    seven = FileForecasts("model.int8.onnx", {}, lambda windows: torch.full((*windows.target.shape, 3), 7.0))
    told, alone = collect(finished, seven), collect(finished)
    assert (told.file, alone.file) == ("model.int8.onnx", "")
    for fan in told.fans.shown:
        by_kind = {kind: quantiles for kind, _, quantiles in fan.forecasts}
        assert (by_kind["int8"] == 7.0).all()
        assert not (by_kind["fp32"] == 7.0).any()
    (own,), (other,) = ([one.error for one in run.steps if one.kind == "int8"] for run in (told, alone))
    assert own != other
    assert told.explanations == alone.explanations == content.explanations
    assert alone.fans.shown[0].error == content.fans.shown[0].error  # the same model, in torch


def test_one_export_makes_both_files(changeable: RunFolder) -> None:
    changeable.onnx_file("int8").unlink()
    changeable.onnx_file("fp32").unlink()
    assert [one.command for one in collect(changeable).missing] == ["qat-tft export mine --int8"]


def test_costs_are_those_of_check_and_results(content: ReportContent) -> None:
    cost = content.cost
    assert [(layer.name, layer.bits, layer.rounding_db, layer.file_db) for layer in cost.layers] == [
        ("lstm_encoder.cell", 8, 36.7, 120.0),
        ("head", 8, 43.0, None),
    ]
    assert cost.latency == (("1", 2.0, 1.0), ("32", 60.0, 40.0))
    assert cost.memory.with_bytes == 40 * 2**20
    assert (cost.memory.without_seconds, cost.memory.with_seconds) == (1.25, 1.5)
    assert {file.name: file.size for file in cost.files}["model.int8.onnx"] == 1000


def test_a_run_of_before_steps_were_timed_has_memory_and_no_times(changeable: RunFolder) -> None:
    results = changeable.load_results()
    saved = {name: value for name, value in (results.checkpointing or {}).items() if "seconds" not in name}
    changeable.write_results(replace(results, checkpointing=saved))
    cost = collect(changeable).cost
    assert (cost.memory.with_bytes, cost.memory.with_seconds) == (40 * 2**20, None)
    assert "MiB a step." in RunReport.of(changeable).memory()
    assert "times as long" not in RunReport.of(changeable).memory()


def test_the_card_names_data_columns_and_versions(content: ReportContent) -> None:
    data, card = dict(content.card.data), content.card
    assert data["Series"] == "3 seen in training, named by plant"
    assert data["Shortest history"] == "3 steps, padded at the front"
    assert data["Time step"] == "1 hour"
    roles = {(one.role, one.kind): (one.columns, one.derived) for one in card.columns}
    assert roles["observed", "real"] == (("<b>x</b> & $y$",), (PRESENT,))
    assert roles["static", "category"] == (("plant",), ())
    assert dict(card.versions) == {"qat-tft": "0.1.0", "torch": "2.13.0"}
    assert dict(card.options["model"])["hidden"] == "8"


def without_qat(run: RunFolder) -> None:
    run.weights_file("qat").unlink()
    results = run.load_results()
    run.write_results(replace(results, q_risk={name: one for name, one in results.q_risk.items() if name != "qat"}))


LACKING = {
    "no QAT": (without_qat, "There is no quantization-aware model", "qat-tft quantize mine"),
    "no INT8 file": (
        lambda run: run.onnx_file("int8").unlink(),
        "There is no INT8 file.",
        "qat-tft export mine --int8",
    ),
    "no FP32 file": (lambda run: run.onnx_file("fp32").unlink(), "There is no FP32 ONNX file.", "qat-tft export mine"),
    "no check": (lambda run: (run.path / layout.CHECK).unlink(), "was checked", "qat-tft check --run mine"),
    "no checkpointing": (
        lambda run: run.write_results(replace(run.load_results(), checkpointing=None)),
        "trained without it",
        "qat-tft profile",
    ),
}


@pytest.mark.parametrize(("change", "said", "command"), LACKING.values(), ids=LACKING)
def test_what_a_run_lacks_is_said_with_the_command_that_makes_it(
    changeable: RunFolder, change: Callable[[RunFolder], object], said: str, command: str
) -> None:
    change(changeable)
    (missing,) = collect(changeable).missing
    assert said in missing.what
    assert missing.command == command


@pytest.mark.parametrize("key", ["coverage", "windows", "seconds"])
def test_what_an_earlier_version_did_not_write_is_named(
    changeable: RunFolder, results_without: Callable[[RunFolder, str], None], key: str
) -> None:
    results_without(changeable, key)
    (missing,) = collect(changeable).missing
    assert missing == Missing(f"An earlier version wrote the results, which tell nothing of {key}.", "qat-tft train")


def test_a_run_without_qat_is_told_of_in_fp32_alone(changeable: RunFolder) -> None:
    without_qat(changeable)
    alone = collect(changeable)
    assert (alone.integers, alone.explanations.attention_moved) == ("", None)
    assert alone.explanations.changes("INT8") == ()
    assert [fact.value for fact in alone.facts if fact.title == "What INT8 costs"] == ["\N{EN DASH}"]


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "cannot read"), ('{"event": "ep\n', "is not JSON"), ("", "holds no epoch")],
    ids=["gone", "damaged", "empty"],
)
def test_curves_that_cannot_be_read_are_named(changeable: RunFolder, text: str | None, said: str) -> None:
    path = changeable.path / layout.METRICS
    path.unlink() if text is None else path.write_text(text)
    curves = collect(changeable).curves
    assert isinstance(curves, Missing)
    assert said in curves.what


def test_curves_are_read_phase_by_phase(content: ReportContent) -> None:
    fp32, qat = content.curves
    assert [(one.phase, one.kind, len(one.epochs)) for one in (fp32, qat)] == [("fp32", "fp32", 2), ("qat", "int8", 1)]
    assert (fp32.kept.number, fp32.seconds, fp32.peak_mib) == (1, 7, None)
    assert (qat.kept.number, qat.seconds) == (1, None)


def test_a_line_that_is_being_written_does_not_count(changeable: RunFolder) -> None:
    path = changeable.path / layout.METRICS
    whole = collect(changeable).curves
    path.write_text(path.read_text() + '{"event": "epoch", "phase": "qat", "ep')
    assert collect(changeable).curves == whole
    path.write_text(path.read_text().rpartition("\n")[0])  # edited by hand: no newline at the end
    assert collect(changeable).curves == whole
