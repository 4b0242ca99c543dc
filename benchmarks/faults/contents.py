"""What a folder holds, as values that can be compared: files that are whole, and those that are not."""

from __future__ import annotations

import io
import json
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx
import pyarrow.parquet as pq
from matplotlib.image import imread
from safetensors import safe_open

Contents = dict[str, Any]
"""Path below the folder to what the file holds."""
_MEASURED = {"seconds", "samples_per_second", "peak_mib", "latency_ms", "digest", "header"}
_SCRATCH = ("temporary",)
_RUNNING_LOG = ".unfinished/metrics.jsonl"
"""Written to while a run trains: a line may be cut off, and is dropped on resuming."""


class HalfWritten(Exception):  # noqa: N818 - it names what was found
    """A file stands under its final name and is not whole."""


def contents(folder: Path) -> Contents:
    """Read every file below a folder.

    Raises:
        HalfWritten: one is not whole.
    """
    return {name: _read(name, path) for name, path in _files(folder)}


def finals(folder: Path) -> Contents:
    """Read every file below a folder that stands under a final name: it and its folders are not hidden."""
    final = [(name, path) for name, path in _files(folder) if not is_hidden(name) and not name.endswith(_RUNNING_LOG)]
    return {name: _read(name, path) for name, path in final}


def names(folder: Path) -> set[str]:
    """The paths of every file and every empty folder below a folder."""
    empty = (path for path in folder.rglob("*") if path.is_dir() and not any(path.iterdir()))
    there = {str(path.relative_to(folder)) for path in empty} | {name for name, _ in _files(folder)}
    return {name for name in there if Path(name).parts[0] not in _SCRATCH}


def is_hidden(name: str) -> bool:
    """Whether a file or one of its folders has a temporary name."""
    return any(part.startswith(".") for part in Path(name).parts)


def differing(one: Contents, other: Contents) -> list[str]:
    """The names of files that only one side has, or that differ."""
    return sorted(name for name in one.keys() | other.keys() if name not in one or one[name] != other.get(name, ...))


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and name.parts[0] not in _SCRATCH:
            yield str(name), path


def _read(name: str, path: Path) -> Any:
    try:
        return _READERS.get(path.suffix, Path.read_bytes)(path)
    except Exception as problem:  # whatever a reader says of a file that is cut off
        raise HalfWritten(f"{name} is not whole: {problem}") from problem


def _tensors(path: Path) -> Any:
    with safe_open(path, framework="np") as opened:
        arrays = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        header = {name: _without_measured(text) for name, text in (opened.metadata() or {}).items()}
    return {name: (array.dtype.str, array.shape, array.tobytes()) for name, array in arrays.items()}, header


def _without_measured(text: str) -> Any:
    return _plain(json.loads(text)) if text.startswith("{") else text


def _json(path: Path) -> Any:
    return _plain(json.loads(path.read_text()))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items() if name not in _MEASURED}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value


def _lines(path: Path) -> Any:
    text = path.read_text()
    if text and not text.endswith("\n"):
        raise ValueError("the last line is cut off")
    return [_plain(json.loads(line)) for line in text.splitlines()]


def _toml(path: Path) -> Any:
    found = tomllib.loads(path.read_text())
    if not found:
        raise ValueError("it is empty")
    return found


def _graph(path: Path) -> bytes:
    content = path.read_bytes()
    onnx.load_model_from_string(content)
    if not content:
        raise ValueError("it is empty")
    return content


def _table(path: Path) -> Any:
    return pq.read_table(path).to_pydict()


def _picture(path: Path) -> Any:
    return imread(io.BytesIO(path.read_bytes()), format="png").tobytes()


def _word(path: Path) -> str:
    text = path.read_text()
    if not text.strip():
        raise ValueError("it is empty")
    return text


_READERS: dict[str, Callable[[Path], Any]] = {
    ".safetensors": _tensors,
    ".json": _json,
    ".jsonl": _lines,
    ".toml": _toml,
    ".onnx": _graph,
    ".parquet": _table,
    ".png": _picture,
    "": _word,
}
