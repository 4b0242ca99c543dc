"""Files of a run folder are whole, ours, or refused."""

import os

import pytest
import torch
from safetensors.torch import save_file

from qat_tft.errors import RunFolderError
from qat_tft.runs import files


def test_tensors_and_header_come_back(tmp_path):
    path = tmp_path / "weights.safetensors"
    shared = torch.arange(6.0)
    tensors = {"a": shared, "b": shared.view(2, 3).t(), "c": torch.tensor(3, dtype=torch.uint8)}
    files.write_tensors(path, tensors, kind="fp32", note="hello")
    found, header = files.read_tensors(path, kind="fp32")
    assert header["note"] == "hello"
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_equal_tensors_are_equal_files(tmp_path):
    tensors, written = {"b": torch.arange(3.0), "ä": torch.ones(2, 2, dtype=torch.int8)}, set()
    for _ in range(20):
        files.write_tensors(tmp_path / "weights", tensors, kind="fp32", one="1", other="ü")
        written.add((tmp_path / "weights").read_bytes())
    assert len(written) == 1
    found, header = files.read_tensors(tmp_path / "weights", kind="fp32")
    assert header == {"format": "qat-tft", "kind": "fp32", "one": "1", "other": "ü"}
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


def test_a_file_is_taken_where_there_are_no_links_too(tmp_path, monkeypatch):
    (tmp_path / "source").write_bytes(b"rows")
    files.take_file(tmp_path / "source", tmp_path / "linked")
    assert (tmp_path / "linked").samefile(tmp_path / "source")
    monkeypatch.setattr(os, "link", refuse)
    files.take_file(tmp_path / "source", tmp_path / "copied")
    assert (tmp_path / "copied").read_bytes() == b"rows"
    assert not (tmp_path / "copied").samefile(tmp_path / "source")
    with pytest.raises(RunFolderError, match="cannot write"):
        files.take_file(tmp_path / "nothing", tmp_path / "lost")
    assert not (tmp_path / "lost").exists()


def refuse(*_):
    raise PermissionError(1, "Operation not permitted")


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600)], ids=["shared", "private"])
def test_a_tensor_file_may_be_read_by_whom_the_umask_lets(tmp_path, mask, mode):
    before = os.umask(mask)
    try:
        files.write_tensors(tmp_path / "weights.safetensors", {"a": torch.ones(1)}, kind="fp32")
    finally:
        os.umask(before)
    assert (tmp_path / "weights.safetensors").stat().st_mode & 0o777 == mode


def test_a_truncated_tensor_file_is_refused(tmp_path):
    path = tmp_path / "weights.safetensors"
    files.write_tensors(path, {"a": torch.ones(100)}, kind="fp32")
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(RunFolderError, match=r"weights\.safetensors: truncated"):
        files.read_tensors(path, kind="fp32")


def test_a_foreign_tensor_file_is_refused(tmp_path):
    path = tmp_path / "weights.safetensors"
    save_file({"a": torch.ones(1)}, path)
    with pytest.raises(RunFolderError, match="not written by qat-tft"):
        files.read_tensors(path, kind="fp32")


def test_weights_of_another_kind_are_refused(tmp_path):
    path = tmp_path / "weights.safetensors"
    files.write_tensors(path, {"a": torch.ones(1)}, kind="qat")
    with pytest.raises(RunFolderError, match="holds 'qat', not 'fp32'"):
        files.read_tensors(path, kind="fp32")


@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff\xfe"], ids=["cut-short", "a-list", "not-text"])
def test_a_damaged_json_file_is_refused(tmp_path, content):
    path = tmp_path / "results.json"
    path.write_bytes(content)
    with pytest.raises(RunFolderError, match=r"results\.json"):
        files.read_json(path)


def test_what_was_there_stays_when_writing_fails(tmp_path):
    path = tmp_path / "results.json"
    files.write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="Out of range float"):
        files.write_json(path, {"a": float("nan")})
    assert files.read_json(path) == {"a": 1}


def test_an_unwritable_place_is_named(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(RunFolderError, match="cannot write"):
        files.write_text(blocked / "config.toml", "")


def test_weights_are_written_as_every_other_file(tmp_path, monkeypatch):
    """Not under a temporary name of the library, which nobody could take for ours, and not for their owner alone."""
    seen = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda one, other: (seen.append(os.listdir(tmp_path)), replace(one, other)))
    files.write_json(tmp_path / "results.json", {})
    files.write_tensors(tmp_path / "weights.safetensors", {"a": torch.ones(3)}, kind="fp32")
    modes = {path.stat().st_mode for path in tmp_path.iterdir()}
    assert len(modes) == 1
    assert sorted(seen[1])[0].startswith(".weights.safetensors.")


@pytest.mark.parametrize("size", [0, 20, 200], ids=["nothing", "part of the header", "part of the tensors"])
def test_tensors_that_a_disk_has_no_room_for_leave_what_was_there(tmp_path, full_disk, size):
    path = tmp_path / "weights.safetensors"
    files.write_tensors(path, {"a": torch.zeros(2)}, kind="fp32")
    with full_disk(size), pytest.raises(RunFolderError, match=r"weights\.safetensors: cannot write: File too large"):
        files.write_tensors(path, {"a": torch.ones(1000)}, kind="fp32")
    assert files.read_tensors(path, kind="fp32")[0]["a"].tolist() == [0.0, 0.0]
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
