"""A run folder begins whole, is written to by one process at a time, and ends whole, whenever a process is killed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from qat_tft.errors import RunFolderError
from qat_tft.runs import files, layout, lifecycle
from qat_tft.runs.folder import RunFolder

LEFT = ".x.unfinished.0123abcd.tmp"


class Killed(BaseException):
    """Stands for a process that ends at once."""


def write_config(path: Path) -> None:
    (path / layout.CONFIG).write_text("")
    (path / layout.RESULTS).write_text("{}")
    (path / layout.STATE).write_text("")


def run_called(root: Path, name: str) -> Path:
    return lifecycle.begin(root, name, write_config)


def latest(root: Path) -> str:
    return (root / layout.LATEST).read_text().strip()


def cut_before_it_is_the_latest(path: Path) -> Path:
    """What a process leaves that is killed once it has renamed a run."""
    final = lifecycle.final_path(path)
    os.rename(path, final)
    return final


def set_time(path: Path, seconds: float) -> None:
    os.utime(path, (seconds, seconds))


def test_no_process_sees_a_run_without_what_it_begins_with(tmp_path: Path) -> None:
    def write(path: Path) -> None:
        write_config(path)
        assert list(tmp_path.glob(f"*{layout.UNFINISHED}")) == []
        raise Killed

    with pytest.raises(Killed):
        lifecycle.begin(tmp_path, "x", write)
    run_called(tmp_path, "x")


def test_what_is_left_of_a_run_that_never_began_is_no_run_and_goes(tmp_path: Path) -> None:
    (tmp_path / LEFT).mkdir()
    with pytest.raises(RunFolderError, match="no unfinished run"):
        RunFolder.unfinished(tmp_path)
    run_called(tmp_path, "y")
    assert [path.name for path in tmp_path.iterdir()] == ["y.unfinished"]


@pytest.mark.parametrize(
    ("theirs", "told"),
    [("x.unfinished", "unfinished run of that name already exists.*--resume x"), ("x", "a finished run")],
)
def test_a_name_that_another_process_takes_meanwhile_is_refused(tmp_path: Path, theirs: str, told: str) -> None:
    def write(path: Path) -> None:
        write_config(path)
        (tmp_path / theirs).mkdir()
        (tmp_path / theirs / "theirs").touch()

    with pytest.raises(RunFolderError, match=told):
        lifecycle.begin(tmp_path, "x", write)
    assert [path.name for path in tmp_path.iterdir()] == [theirs]
    assert [path.name for path in (tmp_path / theirs).iterdir()] == ["theirs"]


def test_a_run_without_a_name_gets_another_one_where_its_own_is_taken_meanwhile(tmp_path: Path) -> None:
    taken: list[Path] = []

    def write(path: Path) -> None:
        write_config(path)
        if not taken:
            taken.append(tmp_path / path.name.split(".")[1])
            run_called(tmp_path, taken[0].name)

    found = lifecycle.begin(tmp_path, None, write)
    assert found.name.startswith(taken[0].name)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_run_that_is_held_is_held_once(tmp_path: Path) -> None:
    run = RunFolder(run_called(tmp_path, "x"))
    with run.held():
        with pytest.raises(RunFolderError, match=r"x\.unfinished: another process is working on this run"), run.held():
            pytest.fail("both hold it")
        run.finish()
        with pytest.raises(RunFolderError, match="another process"), RunFolder.open(run.path).held():
            pytest.fail("both hold it")
    with run.held():
        pass
    assert {path.name for path in run.path.iterdir()} == {layout.CONFIG, layout.RESULTS}


def test_a_run_that_was_finished_meanwhile_is_no_traceback(tmp_path: Path) -> None:
    found = RunFolder(run_called(tmp_path, "x"))
    lifecycle.finish(found.path)
    with pytest.raises(RunFolderError, match="cannot open the run folder: No such file"), found.held():
        pytest.fail("there is nothing to hold")


def test_a_run_that_was_cut_before_it_was_the_latest_is_made_so(tmp_path: Path) -> None:
    lifecycle.finish(run_called(tmp_path, "before"))
    set_time(tmp_path / layout.LATEST, 1000)
    final = cut_before_it_is_the_latest(run_called(tmp_path, "x"))
    assert RunFolder.latest(tmp_path).path == final
    assert latest(tmp_path) == "x"
    assert not (final / layout.STATE).exists()


def test_a_run_that_was_cut_does_not_take_the_place_of_a_later_one(tmp_path: Path) -> None:
    final = cut_before_it_is_the_latest(run_called(tmp_path, "x"))
    set_time(final / layout.RESULTS, 1000)
    lifecycle.finish(run_called(tmp_path, "later"))
    assert RunFolder.open(final).path == final
    assert latest(tmp_path) == "later"
    assert not (final / layout.STATE).exists()


def test_an_unfinished_run_keeps_its_state_whoever_asks_for_the_latest(tmp_path: Path) -> None:
    lifecycle.finish(run_called(tmp_path, "before"))
    path = run_called(tmp_path, "x")
    assert RunFolder.latest(tmp_path).name == "before"
    assert (path / layout.STATE).exists()


def test_a_place_that_cannot_be_written_is_read_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lifecycle.finish(run_called(tmp_path, "before"))
    final = cut_before_it_is_the_latest(run_called(tmp_path, "x"))

    def refuse(path: Path, text: str) -> None:
        raise RunFolderError("read-only")

    monkeypatch.setattr(files, "write_text", refuse)
    assert RunFolder.open(final).path == final
    assert RunFolder.latest(tmp_path).name == "before"


def test_what_a_killed_process_left_in_a_run_goes_with_the_next_look_at_it(tmp_path: Path) -> None:
    final = lifecycle.finish(run_called(tmp_path, "x"))
    (final / ".check.json.0123abcd.tmp").touch()
    RunFolder.open(final)
    assert {path.name for path in final.iterdir()} == {layout.CONFIG, layout.RESULTS}
