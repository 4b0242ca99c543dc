"""metrics.jsonl holds one object a line, and nothing after the point a run resumes from."""

import json

import pytest

from qat_tft.errors import RunFolderError
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
        kept = metrics.length
        metrics.write({"step": 2})
    with MetricsLog(tmp_path, keep_bytes=kept) as metrics:
        metrics.write({"step": 3})
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 3]


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl"):
        MetricsLog(tmp_path / "nowhere")
