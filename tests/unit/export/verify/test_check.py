import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from qat_tft.cli.app import main
from qat_tft.errors import CheckFailed, OnnxFileError, RunFolderError, UserError
from qat_tft.export.metadata import METADATA_KEY, ModelMetadata
from qat_tft.export.verify.check import check_model, find_export
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
    assert min(report.found.sqnr_db["optimized"], report.found.sqnr_db["unoptimized"]) > 100
    assert set(report.found.sqnr_by_batch) == {"1", "3", "64"}
    assert report.found.batch_mates_change == 0.0
    assert report.found.tensors.equal
    assert report.rows == len(run.load_check_windows().target)
    assert set(report.latency_ms["fp32"]) == {"1", "32"}
    assert json.loads((run.path / layout.CHECK).read_text()) == json.loads(json.dumps(report.to_json()))


def test_a_run_folder_that_cannot_be_written_to_changes_nothing_in_the_verdict(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    (run.path / layout.CHECK / "in the way").mkdir(parents=True)
    assert main(["check", str(run.onnx_file("fp32")), "--seconds", "0", "--json"]) == 0
    output, messages = capsys.readouterr()
    assert json.loads(output)["passed"]
    assert f"The report is not kept: {run.path / layout.CHECK}: cannot write: Is a directory." in messages


def test_without_a_place_for_temporary_files_a_check_says_so(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    with pytest.raises(UserError, match=r"no folder for temporary files: No usable .*TMPDIR"):
        check_model(run.onnx_file("fp32"))


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
    assert report.reasons[0] == "tensors that are not those of the run: 1"
    assert "head.bias" in report.reasons[1]
    assert any(reason.startswith("SQNR optimized is ") for reason in report.reasons)
    with pytest.raises(CheckFailed, match=r"model\.fp32\.onnx failed the check: tensors that"):
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
    reason, other = check_model(run.onnx_file("fp32")).reasons
    assert "output quantiles" in reason
    assert "('batch', 3, 2)" in reason
    assert "the quantiles in the file's metadata are not those of" in other


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
