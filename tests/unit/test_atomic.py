"""A name belongs to what is whole and on the disk; what a killed process left goes, what another one makes stays."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from qat_tft import atomic
from qat_tft.atomic import made_whole, remove_abandoned, scratch_folder, written_together, written_whole
from qat_tft.lock import Hold

LEFT = ".table.0123abcd.tmp"
DAY = 86_400


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)


def test_a_file_has_its_name_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "table"
    path.write_text("before")
    with written_whole(path) as unfinished:
        unfinished.write_text("after")
        assert path.read_text() == "before"
    assert path.read_text() == "after"
    assert names(tmp_path) == ["table"]


def test_after_an_error_what_was_there_stays(tmp_path: Path) -> None:
    (tmp_path / "table").write_text("before")

    def stop() -> None:
        with written_whole(tmp_path / "table") as unfinished:
            unfinished.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop()
    assert (tmp_path / "table").read_text() == "before"
    assert names(tmp_path) == ["table"]


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: (done.append("sync"), sync(file)))
    monkeypatch.setattr(os, "replace", lambda one, other: (done.append(Path(other).name), replace(one, other)))
    with written_together(tmp_path / "one", tmp_path / "other"):
        pass
    assert done == ["sync", "sync", "one", "other"]


def test_files_that_belong_together_stay_as_they_were_if_one_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []

    def full(file: int) -> None:
        synced.append(file)
        if len(synced) == 2:
            raise OSError(errno.ENOSPC, "full")

    (tmp_path / "one").write_text("before")
    monkeypatch.setattr(os, "fsync", full)

    def write() -> None:
        with written_together(tmp_path / "one", tmp_path / "other") as unfinished:
            for path in unfinished:
                path.write_text("after")

    with pytest.raises(OSError, match="full"):
        write()
    assert (tmp_path / "one").read_text() == "before"
    assert names(tmp_path) == ["one"]


def test_a_file_has_the_permissions_that_the_user_gives_new_files(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with written_whole(tmp_path / "table"):
            pass
    finally:
        os.umask(before)
    assert (tmp_path / "table").stat().st_mode & 0o777 == 0o640


def test_a_folder_has_its_name_once_it_is_filled(tmp_path: Path) -> None:
    with made_whole(tmp_path / "run") as unfinished:
        (unfinished / "file").touch()
        assert not (tmp_path / "run").exists()
    assert names(tmp_path / "run") == ["file"]
    assert names(tmp_path) == ["run"]


def test_a_name_that_somebody_else_has_taken_is_left_to_them(tmp_path: Path) -> None:
    def fill() -> None:
        with made_whole(tmp_path / "run") as unfinished:
            (unfinished / "file").touch()
            (tmp_path / "run").mkdir()
            (tmp_path / "run" / "theirs").touch()

    with pytest.raises(FileExistsError):
        fill()
    assert names(tmp_path) == ["run"]
    assert names(tmp_path / "run") == ["theirs"]


def test_a_scratch_folder_goes_with_what_it_holds(tmp_path: Path) -> None:
    with scratch_folder(tmp_path / "rows") as folder:
        (folder / "file").touch()
        assert folder.stat().st_mode & 0o777 == 0o700
    assert names(tmp_path) == []


def test_writing_a_file_removes_what_a_killed_process_left_of_it_and_nothing_else(tmp_path: Path) -> None:
    for name in (LEFT, ".other.0123abcd.tmp", ".table.old.tmp", "table.0123abcd.tmp"):
        (tmp_path / name).touch()
    with written_whole(tmp_path / "table"):
        pass
    assert names(tmp_path) == [".other.0123abcd.tmp", ".table.old.tmp", "table", "table.0123abcd.tmp"]


def test_a_folder_is_cleared_of_every_file_and_folder_that_was_left(tmp_path: Path) -> None:
    (tmp_path / LEFT).touch()
    (tmp_path / ".run.unfinished.0123abcd.tmp").mkdir()
    (tmp_path / ".run.unfinished.0123abcd.tmp" / "file").touch()
    (tmp_path / "kept").touch()
    remove_abandoned(tmp_path)
    assert names(tmp_path) == ["kept"]


def test_what_another_process_is_writing_stays(tmp_path: Path) -> None:
    with written_whole(tmp_path / "table") as first:
        first.write_text("first")
        remove_abandoned(tmp_path)
        with written_whole(tmp_path / "table") as second:
            second.write_text("second")
        assert (tmp_path / "table").read_text() == "second"
    assert (tmp_path / "table").read_text() == "first"


def test_a_file_that_is_taken_for_abandoned_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[Path] = []

    def hold(path: Path) -> Hold:
        if not lost:
            lost.append(path)
            path.unlink()
        return Hold(path)

    monkeypatch.setattr(atomic, "Hold", hold)
    with written_whole(tmp_path / "table") as unfinished:
        assert unfinished.exists()
        assert unfinished != lost[0]
    assert names(tmp_path) == ["table"]


def test_where_there_are_no_locks_only_what_is_old_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_locks(monkeypatch)
    for name in (LEFT, ".run.0123abcd.tmp"):
        (tmp_path / name).touch()
    old = (tmp_path / LEFT).stat().st_mtime - DAY - 60
    os.utime(tmp_path / LEFT, (old, old))
    remove_abandoned(tmp_path)
    assert names(tmp_path) == [".run.0123abcd.tmp"]


def test_a_place_that_cannot_be_read_is_left_alone(tmp_path: Path) -> None:
    remove_abandoned(tmp_path / "nowhere")
