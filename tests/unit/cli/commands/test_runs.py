"""`qat-tft runs` shows what runs there are, and `runs rm` removes those that were named and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from qat_tft.cli.app import main
from qat_tft.runs import layout
from qat_tft.runs.folder import RunFolder

RESULTS = {
    "run": "a",
    "quantiles": [0.1, 0.5],
    "season": 24,
    "q_risk": {
        "fp32": {"0.1": 0.1, "0.5": 0.4},
        "qat": {"0.1": 0.1, "0.5": 0.3},
        "ridge": {"0.1": 0.2, "0.5": 0.5},
        "last_value": {"0.1": 0.2, "0.5": 0.9},
    },
    "validation_loss": {"fp32": 0.25},
}
Refusal = Callable[..., str]


def finished(root: Path, name: str, *, at: int) -> Path:
    """A finished run of a certain time, as far as a listing reads it."""
    folder = root / name
    folder.mkdir(parents=True)
    (folder / layout.CONFIG).write_text('[data]\nparquet_files = ["in/bars.parquet", "more.parquet"]\n')
    (folder / layout.RESULTS).write_text(json.dumps(RESULTS))
    os.utime(folder / layout.RESULTS, (at, at))
    return folder


def unfinished(root: Path, name: str) -> Path:
    folder = root / f"{name}{layout.UNFINISHED}"
    folder.mkdir(parents=True)
    (folder / layout.CONFIG).write_text("")
    lines = [json.dumps({"phase": "fp32", "validation_loss": loss}) for loss in (0.5, 0.25, 0.3)]
    (folder / layout.METRICS).write_text("\n".join([*lines, '{"phase": "fp3']))
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three finished runs of which the newest is the latest, and an unfinished one."""
    root = tmp_path / "runs"
    for at, name in enumerate(("old", "middle", "new")):
        finished(root, name, at=1_000_000 * (at + 1))
    unfinished(root, "begun")
    (root / layout.LATEST).write_text("new\n")
    (root / layout.TRACKERS).mkdir()
    return root


def listed(root: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, object]]:
    assert main(["runs", "--runs-dir", str(root), "--json"]) == 0
    return {run["name"]: run for run in json.loads(capsys.readouterr().out)["runs"]}


def names(root: Path) -> set[str]:
    return {path.name for path in root.iterdir()}


def test_runs_are_listed_the_newest_first_with_their_figures(root, capsys):
    runs = listed(root, capsys)
    assert list(runs) == ["begun", "new", "middle", "old"]
    assert runs["new"]["q_risk"] == {"fp32": 0.4, "qat": 0.3, "simple": 0.5}
    assert runs["new"]["strongest_simple"] == "ridge"
    assert runs["new"]["data"] == ["in/bars.parquet", "more.parquet"]
    assert [name for name, run in runs.items() if run["latest"]] == ["new"]
    assert runs["begun"]["validation_loss"] == {"fp32": 0.25}
    assert runs["begun"]["data"] == ["embedded bike rentals"]


def test_the_table_names_the_strongest_simple_forecast_and_says_how_old_a_run_is(root, capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert main(["runs", "--runs-dir", str(root)]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "new (latest)" in line)
    assert "0.50000 (ridge regression)" in line
    assert "bars.parquet and 1 more" in line
    assert " days ago" in line


def test_the_state_of_a_run_says_whether_it_can_be_resumed(root, capsys):
    assert listed(root, capsys)["begun"]["state"] == "begun"
    (root / "begun.unfinished" / layout.STATE).touch()
    assert listed(root, capsys)["begun"]["state"] == "interrupted"
    with RunFolder(root / "begun.unfinished").held():
        assert listed(root, capsys)["begun"]["state"] == "training"


@pytest.mark.parametrize(
    ("record", "age", "said"),
    [
        pytest.param(None, 0, "not checked", id="none"),
        pytest.param({"passed": True, "kind": "int8"}, 1, "passed", id="passed"),
        pytest.param({"passed": False, "kind": "int8"}, 1, "failed", id="failed"),
        pytest.param({"passed": True, "kind": "fp32"}, 1, "not checked", id="of the FP32 file"),
        pytest.param({"passed": True, "kind": "int8"}, -1, "not checked", id="of an earlier file"),
    ],
)
def test_the_check_counts_for_the_newest_file_of_integers(root, capsys, record, age, said):
    assert listed(root, capsys)["new"]["integer_file"] is None
    model, check = root / "new" / layout.ONNX["int4"], root / "new" / layout.CHECK
    model.touch()
    os.utime(model, (1000, 1000))
    if record is not None:
        check.write_text(json.dumps(record))
        os.utime(check, (1000 + age, 1000 + age))
    assert listed(root, capsys)["new"]["integer_file"] == said


def test_a_damaged_run_is_listed_with_what_is_wrong(root, capsys):
    (root / "old" / layout.RESULTS).write_text("{")
    (root / "middle" / layout.CONFIG).write_text("[data")
    runs = listed(root, capsys)
    assert [runs[name]["state"] for name in ("old", "middle", "new")] == ["damaged", "damaged", "finished"]
    assert runs["old"]["problem"]
    assert main(["runs", "--runs-dir", str(root)]) == 0
    assert f"old: {runs['old']['problem']}" in capsys.readouterr().out


def test_a_folder_without_runs_says_so(tmp_path, capsys):
    assert main(["runs", "--runs-dir", str(tmp_path / "nowhere")]) == 0
    assert capsys.readouterr().out.startswith("No runs in ")


def test_listing_loads_no_large_library(root):
    program = (
        "import sys; from qat_tft.cli.app import main; main(['runs', '--runs-dir', sys.argv[1]]);"
        "sys.exit(bool(sys.modules.keys() & {'torch', 'numpy', 'pyarrow', 'onnx'}))"
    )
    assert subprocess.run([sys.executable, "-c", program, str(root)], check=False).returncode == 0


def test_runs_are_removed_and_the_newest_that_is_left_becomes_the_latest(root, capsys):
    assert main(["runs", "rm", "new", "begun", "--runs-dir", str(root), "--yes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"removed": ["new", "begun"], "latest": "middle"}
    assert names(root) == {"old", "middle", layout.LATEST, layout.TRACKERS}
    assert (root / layout.LATEST).read_text() == "middle\n"


def test_an_older_run_goes_without_a_new_latest_one(root):
    assert main(["runs", "--runs-dir", str(root), "rm", "old", "-y"]) == 0
    assert (root / layout.LATEST).read_text() == "new\n"
    assert "old" not in names(root)


def test_the_last_finished_run_takes_latest_along(root):
    assert main(["runs", "rm", "old", "middle", "new", "--runs-dir", str(root), "-y"]) == 0
    assert names(root) == {"begun.unfinished", layout.TRACKERS}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        pytest.param("../elsewhere", "'../elsewhere' is not the name of a run", id="path"),
        pytest.param(".", "'.' is not the name of a run", id="the folder itself"),
        pytest.param("trackers", "'trackers' is not the name of a run", id="stores of trackers"),
        pytest.param("latest", "'latest' is not the name of a run", id="latest"),
        pytest.param("nobody", "no run called 'nobody'", id="unknown"),
        pytest.param("notes", "no run called 'notes'", id="another folder"),
        pytest.param("link", "a link, not a run", id="link"),
    ],
)
def test_what_is_no_run_there_is_refused_and_nothing_goes(root, refusal: Refusal, name, said):
    finished(root.parent, "elsewhere", at=1)
    (root / "notes").mkdir()
    (root / "link").symlink_to(root.parent / "elsewhere")
    before = names(root)
    assert said in refusal("runs", "rm", "old", name, "--runs-dir", root, "--yes")
    assert names(root) == before
    assert (root.parent / "elsewhere" / layout.CONFIG).is_file()


def test_a_run_that_is_being_written_to_is_refused_with_all_others(root, refusal: Refusal):
    before = names(root)
    with RunFolder(root / "begun.unfinished").held():
        message = refusal("runs", "rm", "old", "begun", "--runs-dir", root, "--yes")
    assert "another process is working on this run" in message
    assert names(root) == before


@pytest.mark.parametrize(("answer", "gone"), [("y\n", True), ("n\n", False), ("\n", False)])
def test_a_terminal_is_asked(root, monkeypatch, capsys, answer, gone):
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda text, err: print(text, file=sys.stderr) or answer == "y\n")
    assert main(["runs", "rm", "old", "--runs-dir", str(root)]) == 0
    captured = capsys.readouterr()
    assert captured.err == f"Remove {root / 'old'}?\n"
    assert ("old" not in names(root)) == gone
    assert captured.out.startswith("Removed old." if gone else "Nothing is removed.")


@pytest.mark.parametrize("more", [[], ["--json"]], ids=["no terminal", "json"])
def test_without_a_terminal_nothing_is_removed_unless_that_is_confirmed(root, monkeypatch, capsys, more):
    monkeypatch.setattr("sys.stdin.isatty", lambda: bool(more), raising=False)
    assert main(["runs", "rm", "old", "--runs-dir", str(root), *more]) == 2
    assert "Add --yes." in capsys.readouterr().err
    assert "old" in names(root)


def test_a_removal_that_stops_halfway_leaves_no_half_run_and_its_rest_goes_later(root, monkeypatch, refusal: Refusal):
    def stop(path: Path) -> None:
        (path / layout.CONFIG).unlink()
        raise OSError(5, "Input/output error", str(path / layout.RESULTS))

    with monkeypatch.context() as broken:
        broken.setattr(shutil, "rmtree", stop)
        assert "cannot remove: Input/output error" in refusal("runs", "rm", "new", "--runs-dir", root, "--yes")
    assert "new" not in names(root)
    assert (root / layout.LATEST).read_text() == "middle\n"
    RunFolder.create(root, "another")
    assert {name for name in names(root) if name.startswith(".")} == set()
