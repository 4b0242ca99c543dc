"""Temporary files of a check that do not fit on the disk are told as such, and are gone."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from qat_tft.errors import OnnxFileError, RunFolderError, UserError
from qat_tft.export.verify.check import check_model
from qat_tft.export.verify.operators import operators_of
from qat_tft.runs.folder import RunFolder
from qat_tft.temporary import temporary_folder

FullDisk = Callable[[int], AbstractContextManager[None]]


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files; in the end it is empty."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield tmp_path
    assert os.listdir(tmp_path) == []


def test_a_disk_without_room_for_temporary_files_is_one_message(temporary: Path, full_disk: FullDisk) -> None:
    def write() -> None:
        with temporary_folder() as folder:
            (folder / "file").write_text("too long")

    with (
        full_disk(3),
        pytest.raises(UserError, match=f"{temporary}.*: cannot write temporary files.*too large.*TMPDIR"),
    ):
        write()


def test_a_graph_that_cannot_be_written_is_not_taken_for_a_damaged_file(
    exported_run: RunFolder, full_disk: FullDisk
) -> None:
    with full_disk(100), pytest.raises(OnnxFileError, match=r"optimized\.onnx: onnxruntime cannot write the graph"):
        operators_of(exported_run.onnx_file("fp32"))


def test_a_damaged_file_is_not_taken_for_a_full_disk(tmp_path_factory: pytest.TempPathFactory) -> None:
    damaged = tmp_path_factory.mktemp("files") / "model.onnx"
    damaged.write_bytes(b"no graph")
    with pytest.raises(OnnxFileError, match=r"onnxruntime cannot load this file.*damaged"):
        operators_of(damaged)


def test_a_run_that_another_process_writes_to_is_not_checked(exported_run: RunFolder) -> None:
    before = exported_run.load_check()
    with exported_run.held(), pytest.raises(RunFolderError, match="another process is working on this run"):
        check_model(exported_run.onnx_file("fp32"), exported_run)
    assert exported_run.load_check() == before
