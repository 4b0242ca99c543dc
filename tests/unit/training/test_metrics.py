"""metrics.jsonl holds one object a line, and nothing after the point a run resumes from."""

import json
from collections.abc import Mapping

import pytest

from qat_tft.errors import RunFolderError
from qat_tft.tracking.tracking import Tracking
from qat_tft.training.metrics import MetricsLog


def test_each_record_is_a_line(tmp_path):
    with MetricsLog(tmp_path) as metrics:
        metrics.write({"phase": "fp32", "step": 1, "loss": 0.5})
        metrics.write({"phase": "fp32", "step": 2, "loss": 0.25})
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["loss"] for line in lines] == [0.5, 0.25]


def test_resuming_drops_the_lines_of_steps_that_are_made_again(tmp_path):
    with MetricsLog(tmp_path) as metrics:
        metrics.write({"step": 1})
        kept = metrics.synced()
        metrics.write({"step": 2})
    with MetricsLog(tmp_path, keep_bytes=kept) as metrics:
        metrics.write({"step": 3})
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 3]


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl"):
        MetricsLog(tmp_path / "nowhere")


def test_a_full_disk_is_one_error_and_resuming_drops_the_line_it_cut(tmp_path, full_disk):
    with MetricsLog(tmp_path) as metrics:
        metrics.write({"step": 1})
        kept = metrics.synced()
    with (
        full_disk(kept + 5),
        pytest.raises(RunFolderError, match=r"metrics\.jsonl: cannot write: File too large"),
        MetricsLog(tmp_path, keep_bytes=kept) as metrics,
    ):
        metrics.write({"step": 2})
    assert (tmp_path / "metrics.jsonl").stat().st_size == kept + 5, "it was cut within the line"
    with MetricsLog(tmp_path, keep_bytes=kept) as metrics:
        metrics.write({"step": 2})
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]


def test_lines_that_are_gone_are_told_and_not_made_up(tmp_path):
    """A file that is made longer is filled with zero bytes."""
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(RunFolderError, match="3 bytes, but the run had written 300"):
        MetricsLog(tmp_path, keep_bytes=300)
    assert (tmp_path / "metrics.jsonl").read_text() == "{}\n"


def test_lines_are_on_the_disk_before_a_state_counts_on_them(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("os.fsync", synced.append)
    with MetricsLog(tmp_path) as metrics:
        metrics.write({"step": 1})
        assert synced == []
        assert metrics.synced() == len('{"step": 1}\n')
    assert len(synced) == 1


def test_every_line_goes_to_the_trackers_as_well(tmp_path):
    class Lines(Tracking):
        def __init__(self) -> None:
            self.got: list[object] = []

        def line(self, line: Mapping[str, object]) -> None:
            self.got.append(line)

    lines = Lines()
    with MetricsLog(tmp_path, tracking=lines) as metrics:
        metrics.write({"phase": "fp32", "step": 1})
    assert lines.got == [{"phase": "fp32", "step": 1}]
