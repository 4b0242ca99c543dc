"""A report is shown whether picture and page can be written or not; what was asked for by name is an error."""

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


def test_the_page_is_written_and_its_path_comes_last(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run.path)]) == 0
    lines = capsys.readouterr().out.replace("\n", "").split("Report: ")
    assert lines[-1] == str(run.path / layout.PAGE)
    assert "Against the best simple forecast" in (run.path / layout.PAGE).read_text()


def test_tables_are_shown_without_the_page_that_cannot_be_written(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    (run.path / layout.PAGE / "in the way").mkdir(parents=True)
    assert main(["report", str(run.path), "--json"]) == 0
    output, messages = capsys.readouterr()
    assert json.loads(output)["page"] is None
    assert "No page is written" in messages
    assert "--out FILE writes it elsewhere" in messages


def test_a_page_that_was_asked_for_and_cannot_be_written_is_refused(
    run: RunFolder, refusal: Callable[..., str], tmp_path: Path
) -> None:
    assert "No such file" in refusal("report", run.path, "--out", tmp_path / "nowhere" / "page.html")


def test_the_browser_is_given_the_page(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda address: bool(shown.append(address)))
    page = tmp_path / "a page.html"
    assert main(["report", str(run.path), "--out", str(page), "--open"]) == 0
    assert shown == [page.as_uri()]
    assert f"no browser to show {page}" in capsys.readouterr().err


def test_a_run_that_is_not_finished_is_refused_with_the_way_to_finish_it(
    run: RunFolder, refusal: Callable[..., str]
) -> None:
    run.path.rename(run.path.with_name("mine.unfinished"))
    for named in (run.path, run.path.with_name("mine.unfinished")):
        assert "`qat-tft train --resume mine`" in refusal("report", named)


def test_two_runs_are_compared_in_the_runs_folder(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["report", "--compare", "mine", "mine", "--runs-dir", str(run.path.parent), "--json"]
    assert main(words) == 0
    compared = json.loads(capsys.readouterr().out)
    assert compared["runs"] == ["mine", "mine"]
    assert Path(compared["page"]) == run.path.parent / layout.COMPARISON
    assert "equally good" in (run.path.parent / layout.COMPARISON).read_text()


@pytest.mark.parametrize("given", [["mine"], ["--picture", "some.png"]], ids=["a run", "a picture"])
def test_a_comparison_takes_two_runs_and_nothing_else(
    run: RunFolder, refusal: Callable[..., str], given: list[str]
) -> None:
    folder = run.path.parent
    assert "beside --compare" in refusal("report", *given, "--compare", "mine", "mine", "--runs-dir", folder)
