"""Text, JSON and tensors of a run folder, written whole or not at all, read with errors that name the file."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from qat_tft import errors, texts
from qat_tft.atomic import written_whole
from qat_tft.errors import RunFolderError

FORMAT = "qat-tft"
"""What the header of every tensor file of ours says under `format`."""


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all.

    Raises:
        RunFolderError: the file system refuses.
    """
    try:
        with written_whole(path) as unfinished:
            unfinished.write_text(text, encoding="utf-8")
    except OSError as failure:
        raise cannot_write(path, failure) from None


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write one JSON object, indented, whole or not at all.

    Raises:
        RunFolderError: the file system refuses.
    """
    write_text(path, json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor], *, kind: str, **header: str) -> None:
    """Write a safetensors file whose header names our format and the kind of its content.

    Equal arguments give equal bytes.

    Raises:
        RunFolderError: the file system refuses.
    """
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    # save_file would make a temporary file of its own, which nobody could tell from another's and remove.
    head, values = _with_sorted_header(save(plain, metadata={"format": FORMAT, "kind": kind, **header}))
    try:
        with written_whole(path) as unfinished, unfinished.open("wb") as file:
            file.write(head)
            file.write(values)
    except OSError as failure:
        raise cannot_write(path, failure) from None


def _with_sorted_header(content: bytes) -> tuple[bytes, memoryview]:
    """Return the header of a safetensors file, whose texts the library writes in a random order, and its values."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # as the format has it, for values that are mapped
    return len(text).to_bytes(8, "little") + text, memoryview(content)[8 + size :]


def take_file(source: Path, path: Path) -> None:
    """Let a file stand at `path` too: as the same file where the file system can, else as a copy.

    Raises:
        RunFolderError: the file system refuses.
    """
    try:
        os.link(source, path)
    except OSError:
        try:
            with written_whole(path) as unfinished:
                shutil.copyfile(source, unfinished)
        except OSError as failure:
            raise cannot_write(path, failure) from None


def read_text(path: Path) -> str:
    """Return a text file of a run folder.

    Raises:
        RunFolderError: the file is missing or not text.
    """
    try:
        return texts.read_text(path)
    except (OSError, UnicodeDecodeError) as failure:
        raise _cannot_read(path, failure) from None


def read_bytes(path: Path) -> bytes:
    """Return the bytes of a file of a run folder.

    Raises:
        RunFolderError: the file is missing or cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as failure:
        raise _cannot_read(path, failure) from None


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file of a run folder.

    Raises:
        RunFolderError: the file is missing, cut short or no JSON object.
    """
    try:
        value = texts.parse_json(read_text(path))
    except ValueError as broken:
        raise RunFolderError(f"not JSON, or truncated: {broken}", where=str(path), next_step=RESTORE) from None
    if not isinstance(value, dict):
        raise RunFolderError("not a JSON object", where=str(path), next_step=RESTORE)
    return value


def read_tensors(path: Path, *, kind: str) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return the tensors and the header of a file that `write_tensors` wrote.

    Raises:
        RunFolderError: the file is missing, cut short, not ours, or of another kind.
    """
    if not path.is_file():
        raise _cannot_read(path, FileNotFoundError(2, "no such file"))
    try:
        with safe_open(path, framework="pt") as opened:
            header = dict(opened.metadata() or {})
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as failure:
        raise RunFolderError(
            f"truncated or not a safetensors file: {failure}", where=str(path), next_step=RESTORE
        ) from None
    if header.get("format") != FORMAT:
        raise RunFolderError("not written by qat-tft", where=str(path), next_step=RESTORE)
    if header.get("kind") != kind:
        raise RunFolderError(
            f"holds {header.get('kind')!r}, not {kind!r}", where=str(path), allowed=kind, next_step=RESTORE
        )
    return tensors, header


RESTORE = "Restore that file from a copy, or train again with `qat-tft train`"


def cannot_write(path: Path, failure: OSError) -> RunFolderError:
    """Return the error for a file of a run that the file system does not take."""
    return errors.cannot_write("", str(path), failure, "Free some space there, or choose another --runs-dir")


def _cannot_read(path: Path, failure: Exception) -> RunFolderError:
    reason = getattr(failure, "strerror", None) or "not UTF-8 text"
    return RunFolderError(f"cannot read: {reason}", where=str(path), next_step=RESTORE)
