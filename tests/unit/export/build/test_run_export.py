import os
from pathlib import Path
from typing import Any

import onnx
import pytest

from qat_tft.errors import ExportError, RunFolderError
from qat_tft.export.build.graph import IR_VERSION, OPSET
from qat_tft.export.build.run_export import export_run, write_files
from qat_tft.export.inference.session import ForecastSession
from qat_tft.runs.folder import RunFolder


@pytest.fixture(scope="module")
def graph(exported_run: RunFolder) -> onnx.ModelProto:
    return onnx.load(exported_run.onnx_file("fp32"))


def test_versions_are_pinned_in_the_file(graph: onnx.ModelProto) -> None:
    assert graph.ir_version == IR_VERSION
    assert [(entry.domain, entry.version) for entry in graph.opset_import] == [("", OPSET)]


def test_the_batch_is_the_only_free_dimension(exported_run: RunFolder) -> None:
    file = ForecastSession(exported_run.onnx_file("fp32"))
    inputs, outputs = file.signature()
    assert inputs == {spec.name: (spec.dtype, spec.shape) for spec in file.inputs}
    assert outputs == {"quantiles": ("float32", ("batch", 3, 3))}


def test_the_file_tells_nothing_about_the_machine_that_wrote_it(exported_run: RunFolder) -> None:
    content = (exported_run.onnx_file("fp32")).read_bytes()
    assert b"site-packages" not in content
    assert os.getcwd().encode() not in content
    assert b"torch.onnx" not in content


def test_lstms_are_whole_and_operators_are_standard(graph: onnx.ModelProto) -> None:
    kinds = [node.op_type for node in graph.graph.node]
    assert kinds.count("LSTM") == 2
    assert {node.domain for node in graph.graph.node} == {""}


def test_exporting_int8_from_a_run_without_qat_says_how_to_train_one(exported_run: RunFolder, damaged) -> None:
    run = damaged(exported_run)
    run.weights_file("qat").unlink()
    with pytest.raises(RunFolderError, match=r"without quantization.*--use-qat"):
        export_run(run, int8=True)
    assert not (run.onnx_file("int8")).exists()


def test_a_written_file_replaces_the_old_one_at_once(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"old")
    write_files({path: b"new"})
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["model.onnx"]


def test_a_folder_that_is_not_there_is_one_message_and_no_file(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"model\.onnx: the file cannot be written: No such file"):
        write_files({tmp_path / "none" / "model.onnx": b"new"})


def test_files_are_written_all_or_none(tmp_path: Path, full_disk: Any) -> None:
    paths = [tmp_path / "model.fp32.onnx", tmp_path / "model.int8.onnx"]
    for path in paths:
        path.write_bytes(b"old")
    with full_disk(5), pytest.raises(ExportError, match=r"int8\.onnx: the file cannot be written: File too large"):
        write_files({paths[0]: b"new", paths[1]: b"too long"})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == dict.fromkeys(
        ("model.fp32.onnx", "model.int8.onnx"), b"old"
    )


def test_a_run_that_another_process_writes_to_is_not_exported(exported_run: RunFolder) -> None:
    with exported_run.held(), pytest.raises(RunFolderError, match="another process is working on this run"):
        export_run(exported_run, int8=True)
