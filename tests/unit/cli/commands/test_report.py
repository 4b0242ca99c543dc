"""A report is shown whether picture and page can be written or not; what was asked for by name is an error."""

import json
import subprocess
import sys
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


EPOCH = {"event": "epoch", "phase": "fp32", "epoch": 1, "train_loss": 0.9, "validation_loss": 0.8, "best": True}


@pytest.fixture
def unfinished(run: RunFolder) -> RunFolder:
    """The run as it is while it trains: no results, no weights, one epoch and the beginning of a line."""
    folder = run.path.rename(run.path.with_name("mine.unfinished"))
    for name in (layout.RESULTS, layout.CHECK_WINDOWS, layout.WEIGHTS["fp32"]):
        (folder / name).unlink()
    (folder / layout.METRICS).write_text(json.dumps(EPOCH) + '\n{"event": "ep')
    return RunFolder(folder)


@pytest.mark.parametrize("named", ["name", "path", "folder"])
def test_a_run_that_is_not_finished_shows_what_there_is_and_how_it_goes_on(
    unfinished: RunFolder, capsys: pytest.CaptureFixture[str], named: str
) -> None:
    path = unfinished.path
    words = {
        "name": ["mine", "--runs-dir", str(path.parent)],
        "path": [str(path.parent / "mine")],
        "folder": [str(path)],
    }
    (path / layout.STATE).touch()
    assert main(["report", *words[named], "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["run"], told["finished"], told["state"]) == ("mine", False, "interrupted")
    assert told["epochs"] == {"fp32": 1}
    assert told["missing"][0]["command"] == f"qat-tft train --resume mine --runs-dir {path.parent}"
    page = Path(told["page"]).read_text()
    assert "which is not finished" in page
    assert "Validation loss 0.8000" in page
    assert "Epochs of FP32 so far" in page
    assert "plants.parquet" in page


def test_the_page_of_a_run_that_trains_says_so(unfinished: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    (unfinished.path / layout.METRICS).unlink()
    assert main(["report", str(unfinished.path)]) == 0
    assert "begins anew when it is resumed" in " ".join(capsys.readouterr().out.split())
    program = "import sys; from qat_tft.cli.app import main; main(['report', sys.argv[1]])"
    with unfinished.held():
        words = [sys.executable, "-c", program, str(unfinished.path)]
        said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert "Another process is training this run" in said
    assert "--resume" not in said


def test_no_forecast_of_a_run_that_is_not_finished_is_plotted(
    unfinished: RunFolder, refusal: Callable[..., str], tmp_path: Path
) -> None:
    said = refusal("report", unfinished.path, "--picture", tmp_path / "some.png")
    assert "`qat-tft train --resume mine`" in said


def test_the_page_of_an_unfinished_run_does_not_outlive_that(unfinished: RunFolder) -> None:
    assert main(["report", str(unfinished.path)]) == 0
    (unfinished.path / layout.RESULTS).write_text("{}")
    unfinished.finish()
    assert [*unfinished.path.glob("*.html")] == []


def test_a_finished_run_comes_before_an_unfinished_one_of_its_name(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    run.path.with_name("mine.unfinished").mkdir()
    assert main(["report", "mine", "--runs-dir", str(run.path.parent), "--json"]) == 0
    assert "finished" not in json.loads(capsys.readouterr().out)


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
