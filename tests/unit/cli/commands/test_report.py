"""A report is shown whether its picture can be drawn or not; a picture that was asked for is an error."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from qat_tft.cli.app import main
from qat_tft.config.run import RunConfig
from qat_tft.runs import layout
from qat_tft.runs.build import build_model
from qat_tft.runs.data import RunData
from qat_tft.runs.folder import RunFolder
from qat_tft.runs.results import RunResults
from qat_tft.schema import Schema


@pytest.fixture
def run(tmp_path: Path, config: RunConfig, schema: Schema, data: RunData) -> RunFolder:
    """A run in whose folder no picture can take its name."""
    folder = RunFolder.create(tmp_path, "mine")
    folder.write_setup(config, schema, data.preprocessing)
    folder.write_weights("fp32", build_model(config.model, data.preprocessing, schema).state_dict())
    folder.write_check_windows(data.test[[0, 1, 2]])
    levels = config.model.quantiles
    folder.write_results(
        RunResults(
            run="mine",
            quantiles=levels,
            season=24,
            q_risk={"fp32": (0.1,) * len(levels), "seasonal_naive": (0.2,) * len(levels)},
            windows={"test_evaluated": 3},
            validation_loss={"fp32": 0.5},
            parameters=7,
            seconds=1.5,
        )
    )
    folder.finish()
    (folder.path / layout.PICTURE / "in the way").mkdir(parents=True)
    return folder


def test_a_report_is_shown_without_the_picture_that_cannot_be_written(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(run.path), "--json"]) == 0
    output, messages = capsys.readouterr()
    assert json.loads(output)["picture"] is None
    assert "No forecast is plotted" in messages
    assert "Is a directory" in messages


def test_a_picture_that_was_asked_for_and_cannot_be_written_is_refused(
    run: RunFolder, refusal: Callable[..., str]
) -> None:
    assert "Is a directory" in refusal("report", run.path, "--picture", run.path / layout.PICTURE)
