import json
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from shutil import copytree

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from rich.console import Console

from qat_tft.errors import CheckFailed, OnnxFileError, RunFolderError
from qat_tft.export.metadata import METADATA_KEY, ModelMetadata
from qat_tft.export.verify.check import breaches, check_model, find_export
from qat_tft.export.verify.check_report import CheckReport
from qat_tft.runs import layout
from qat_tft.runs.folder import RunFolder


@pytest.fixture
def run(exported_run: RunFolder, tmp_path: Path) -> RunFolder:
    """A copy that a test may damage."""
    return RunFolder(copytree(exported_run.path, tmp_path / "plants"))


def edit(path: Path, change: Callable[[onnx.ModelProto], None]) -> None:
    model = onnx.load(path)
    change(model)
    onnx.save(model, path)


def test_a_sound_fp32_file_passes_and_leaves_its_report(run: RunFolder) -> None:
    report = check_model(run.onnx_file("fp32"))
    assert report.passed, report.reasons
    assert min(report.sqnr_db["optimized"], report.sqnr_db["unoptimized"]) > 100
    assert set(report.sqnr_by_batch) == {"1", "3", "64"}
    assert report.batch_mates_change == 0.0
    assert report.rows == len(run.load_check_windows().target)
    assert set(report.latency_ms["fp32"]) == {"1", "32"}
    assert json.loads((run.path / layout.CHECK).read_text()) == json.loads(json.dumps(report.to_json()))


def test_fewer_windows_are_compared_when_time_is_short(run: RunFolder) -> None:
    assert len(run.load_check_windows().target) > 64
    assert check_model(run.onnx_file("fp32"), seconds=0.0).rows == 64


def test_a_file_with_other_weights_fails_by_its_values(run: RunFolder) -> None:
    def shift(model: onnx.ModelProto) -> None:
        bias = next(tensor for tensor in model.graph.initializer if tensor.name.endswith("head.bias"))
        bias.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(bias) + np.float32(0.1), bias.name))

    edit(run.onnx_file("fp32"), shift)
    report = check_model(run.onnx_file("fp32"))
    assert not report.passed
    assert report.reasons[0].startswith("SQNR optimized is ")
    with pytest.raises(CheckFailed, match=r"model\.fp32\.onnx failed the check: SQNR optimized"):
        report.require_passed()


def test_another_contract_ends_the_check_before_any_value(run: RunFolder) -> None:
    def rename(model: onnx.ModelProto) -> None:
        model.graph.input[0].name = "static_values"
        for node in model.graph.node:
            node.input[:] = ["static_values" if name == "static_real" else name for name in node.input]

    edit(run.onnx_file("fp32"), rename)
    report = check_model(run.onnx_file("fp32"))
    (reason,) = report.reasons
    assert reason.startswith("the inputs are called static_values, ")
    assert report.rows == 0


def test_a_promise_of_another_shape_is_a_breach(run: RunFolder) -> None:
    def promise(model: onnx.ModelProto) -> None:
        entry = next(entry for entry in model.metadata_props if entry.key == METADATA_KEY)
        described = ModelMetadata.from_text(entry.value, "test")
        entry.value = replace(described, quantiles=(0.1, 0.9)).to_text()

    edit(run.onnx_file("fp32"), promise)
    (reason,) = check_model(run.onnx_file("fp32")).reasons
    assert "output quantiles" in reason
    assert "('batch', 3, 2)" in reason


def test_weights_that_changed_after_the_export_are_noticed(run: RunFolder) -> None:
    weights = run.load_fp32_model().state_dict()
    run.write_weights("fp32", {name: tensor * 1.5 for name, tensor in weights.items()})
    (reason,) = check_model(run.onnx_file("fp32")).reasons
    assert "not those the file was made from: export it again" in reason


def test_a_file_outside_its_run_folder_needs_the_run(run: RunFolder, tmp_path: Path) -> None:
    alone = tmp_path / "alone.onnx"
    alone.write_bytes((run.onnx_file("fp32")).read_bytes())
    with pytest.raises(RunFolderError, match=r"alone\.onnx: the file does not lie in a run folder.*--run"):
        check_model(alone)
    assert check_model(alone, run, seconds=0.0).passed


def test_the_int8_file_of_a_run_is_checked_before_its_fp32_file(run: RunFolder) -> None:
    assert find_export(run) == run.onnx_file("fp32")
    (run.onnx_file("int8")).touch()
    assert find_export(run) == run.onnx_file("int8")
    (run.onnx_file("int8")).unlink()
    (run.onnx_file("fp32")).unlink()
    with pytest.raises(OnnxFileError, match=r"no ONNX file yet.*export --int8"):
        find_export(run)


SOUND = CheckReport(
    model=Path("runs/a/model.int8.onnx"),
    kind="int8",
    target="x86",
    reasons=(),
    rows=128,
    sqnr_db={"optimized": 50.0, "unoptimized": 51.0},
    sqnr_by_batch={"1": 50.0, "3": 50.0, "64": 50.0},
    max_error_steps=3.0,
    optimization_steps=1.0,
    batch_steps=1.0,
    batch_mates_change=0.0,
    q_risk={"fp32": {"0.5": 0.1}, "qat": {"0.5": 0.1}, "int8": {"0.5": 0.1}},
    quantile_crossings=4,
    bytes={
        "fp32_file": 40_000_000,
        "int8_file": 11_000_000,
        "int8_weights": 10_000_000,
        "float_weights": 500_000,
        "unchanged": 0,
    },
    integer_ops={"MatMulIntegerToFloat": 40},
    float_products={"LSTM": 2},
    float_layers={"elementwise": ("norm", "second.norm"), "no weight": ("attention scores",)},
    latency_ms={"fp32": {"1": 4.0, "32": 40.0}, "int8": {"1": 2.0, "32": 25.0}},
)


def test_a_sound_int8_report_has_no_breach_and_reads_well() -> None:
    assert list(breaches(SOUND)) == []
    console = Console(width=100, record=True, file=StringIO())
    for table in SOUND.tables():
        console.print(table)
    text = console.export_text()
    for part in (
        "QAT model",
        "50.00 dB",
        "P50",
        "0.28",
        "MatMulIntegerToFloat",
        "norm and 1 more",
        "no weight",
        "PASSED",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(
            {"sqnr_db": {"optimized": 21.6, "unoptimized": 81.0}}, "SQNR optimized is 21.6 dB", id="saturated"
        ),
        pytest.param({"sqnr_by_batch": {"1": 39.0}}, "SQNR at batch 1 is 39.0 dB", id="one batch size"),
        pytest.param({"sqnr_db": {"unoptimized": None}}, "forecasts unoptimized are not finite", id="NaN"),
        pytest.param({"optimization_steps": 2.5}, "changes by 2.5 steps with optimizations", id="optimizations"),
        pytest.param({"batch_steps": 2.5}, "changes by 2.5 steps with the batch size", id="batch size"),
        pytest.param({"batch_mates_change": 0.01}, "changes by 0.01 with its batch mates", id="batch mates"),
        pytest.param({"integer_ops": {}}, "no product of the file on integers", id="all float"),
        pytest.param({"saturating_products": 2}, "2 products could saturate on a CPU without VNNI", id="saturating"),
        pytest.param(
            {"bytes": SOUND.bytes | {"int8_file": 15_000_000}}, "38% of the FP32 file's bytes", id="too large"
        ),
        pytest.param({"bytes": SOUND.bytes | {"fp32_file": None}}, "no model.fp32.onnx beside", id="nothing beside"),
        pytest.param(
            {"q_risk": SOUND.q_risk | {"int8": {"0.5": 0.102}}},
            "2.0% above that of the QAT model",
            id="q-risk",
        ),
        pytest.param(
            {"q_risk": {"fp32": {"0.5": 0.09}, "qat": {"0.5": 0.1}, "int8": {"0.5": 0.1}}},
            "11.1% above that of the FP32 model",
            id="bad QAT",
        ),
    ],
)
def test_every_breach_is_named_with_its_number(change: dict[str, object], reason: str) -> None:
    (found,) = breaches(replace(SOUND, **change))
    assert reason in found


def test_a_file_for_a_cpu_with_vnni_may_saturate_without_it_and_says_so() -> None:
    report = replace(SOUND, target="x86-vnni", saturating_products=2)
    assert list(breaches(report)) == []
    console = Console(width=100, record=True, file=StringIO())
    for table in report.tables():
        console.print(table)
    assert "needs a CPU with VNNI" in console.export_text()


def test_rows_may_influence_each_other_in_dynamic_lstms_alone_and_the_report_says_so() -> None:
    change = {"batch_mates_change": 0.5, "batch_steps": 9.0, "sqnr_db": {"optimized": 30.0, "unoptimized": 30.0}}
    assert len(list(breaches(replace(SOUND, **change)))) == 4
    dynamic = replace(SOUND, lstm="dynamic", **change)
    assert list(breaches(dynamic)) == []
    (found,) = breaches(replace(dynamic, sqnr_db={"optimized": 20.0, "unoptimized": 30.0}))
    assert found == "SQNR optimized is 20.0 dB, below 25 dB"
    console = Console(width=200, record=True, file=StringIO())
    for table in dynamic.tables():
        console.print(table)
    assert "depends on the other rows of its batch" in console.export_text()


def test_a_tiny_int8_file_is_allowed_its_graph_but_must_still_be_smaller() -> None:
    small = SOUND.bytes | {"fp32_file": 300_000, "int8_file": 250_000}
    assert list(breaches(replace(SOUND, bytes=small))) == []
    large = small | {"fp32_file": 60_300_000, "int8_file": 60_250_000, "unchanged": 60_000_000}
    assert list(breaches(replace(SOUND, bytes=large))) == []
    (found,) = breaches(replace(SOUND, bytes=small | {"int8_file": 300_000}))
    assert "100% of the FP32 file's bytes" in found
