"""Large panels kept in a folder, so that the next reading of the same files is at once.

A panel is a folder of plain arrays and one JSON header that is written last; nothing is pickled. The folder's name
follows from the files' paths, the schema and the preparation; the header says in which state the files were.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import astuple, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from qat_tft.atomic import made_whole, remove_abandoned, scratch_folder
from qat_tft.data.panel import Panel
from qat_tft.data.preparation import Preparation
from qat_tft.data.reading.files.data_file import DataFile, State, for_each
from qat_tft.data.reading.files.failures import reading
from qat_tft.data.reading.files.find import Files
from qat_tft.data.reading.files.partitions import folder_keys
from qat_tft.data.reading.storage import Array, Mapped, Storage, as_tensor, mapped, not_written
from qat_tft.data.time.kind import TimeKind
from qat_tft.errors import DataError
from qat_tft.lock import turn
from qat_tft.schema import Schema
from qat_tft.temporary import temporary_place

FORMAT = 3
HEADER = "header.json"
_ARRAYS = ("values", "time", "static", "series_start", "stretch_start")
_PLAIN = ("series_ids", "time_zone", "dictionaries", "notes", "largest", "fingerprint")

Read = Callable[[Storage], Panel]
FileStates = list[list[int | str]]


@dataclass(frozen=True)
class Key:
    """What a kept panel was made of."""

    files: Files
    schema: Schema
    preparation: Preparation

    @property
    def name(self) -> str:
        """Name of its folder: the same files, schema and declared preparation give the same one."""
        made_of = [
            FORMAT,
            [file.identity for file in self.files.each],
            [folder_keys(file.parts) for file in self.files.each],
            self.schema.model_dump(mode="json"),
            self.preparation.declared.to_json(),
        ]
        return hashlib.blake2b(json.dumps(made_of).encode(), digest_size=16).hexdigest()

    def state(self) -> FileStates:
        """Size, time of modification and mark of each file."""
        return [[*astuple(state)] for state in for_each(self.files.each, _state)]


@dataclass(frozen=True)
class Kept:
    """What a folder keeps of some files.

    Attributes:
        panel: None where there is none that could be used.
        note: why not; "" where none was kept.
        state: of the files, when this was found.
    """

    panel: Panel | None
    note: str
    state: FileStates


def find_kept(folder: Path, key: Key) -> Kept:
    """Look for the panel in ``folder``: nothing is read of the files, whose state is asked for."""
    state = key.state()
    return Kept(*_opened(folder / key.name, key, state), state)


def read_and_keep(folder: Path, key: Key, read: Read, kept: Kept) -> Panel:
    """Read a panel that ``find_kept`` has not found, and keep it in ``folder``.

    Of processes that want the same panel at once, such as the ranks of a training, one reads and the others wait.

    In a folder where nothing may be written, nothing is kept, and a note of the panel says so.

    Raises:
        DataError: what ``read`` raises, the files have changed since, or the folder has no room.
    """
    place, note, state = folder / key.name, kept.note, kept.state
    try:
        refused = _refusal_to_write(folder)
        if refused:
            panel = read_without_keeping(read)
            unkept = f"rows are not cached, as {folder} cannot be written to ({refused})."
            return dataclasses.replace(panel, notes=(unkept, *panel.notes))
        with turn(folder / f".{key.name}.turn"):
            if _opened(place, key, key.state())[0] is None:  # nobody has kept them while this process waited
                _read_anew(place, key, state, read)
    except OSError as failure:
        raise not_written(folder, failure) from None
    now = key.state()
    found, damage = _opened(place, key, now)
    if found is None:
        raise DataError(
            "the rows changed while they were read" if now != state else damage,
            where=key.files.label,
            next_step="Read them again once no other process writes to them.",
        )
    return dataclasses.replace(found, notes=(*([note] if note else []), *found.notes))


def _read_anew(place: Path, key: Key, state: FileStates, read: Read) -> None:
    remove_abandoned(place.parent)
    with suppress(FileExistsError), made_whole(place) as unfinished:
        storage = Mapped(unfinished)
        _keep(read(storage), storage, state)
        if _opened(place, key, key.state())[0] is None:  # nor has anybody where there are no locks
            _set_aside(place)


def read_without_keeping(read: Read) -> Panel:
    """A panel whose mapped files have no name any more and go with the process."""
    # /tmp is often memory; /var/tmp is a disk.
    room = Path("/var/tmp")
    if "TMPDIR" in os.environ or not os.access(room, os.W_OK):
        room = temporary_place()
    try:
        with scratch_folder(room / "qat-tft") as folder:
            return read(Mapped(folder))
    except OSError as failure:
        raise not_written(room, failure) from None


def _state(file: DataFile) -> State:
    with reading(str(file)):
        return file.state()


def _refusal_to_write(folder: Path) -> str:
    """Why a folder takes no files, in the words of the system; "" where it does."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with scratch_folder(folder / "rows"):
            return ""
    except OSError as failure:
        return failure.strerror or str(failure)


def _set_aside(place: Path) -> None:
    """Free the name at once; whoever reads from there goes on with what it has mapped."""
    with scratch_folder(place) as aside, suppress(FileNotFoundError):
        place.rename(aside / place.name)


def _keep(panel: Panel, storage: Mapped, state: FileStates) -> None:
    folder, arrays = storage.folder, {}
    for name in _ARRAYS:
        tensor = getattr(panel, name)
        if tensor is None:
            continue
        array = tensor.numpy()
        path = folder / f"{name}.bin"
        written = storage.files.pop(array.ctypes.data, None)
        if written is None:
            array.tofile(path)
        else:  # it may have room for rows that were duplicates
            written.rename(path)
            os.truncate(path, array.nbytes)
        with path.open("rb+") as file:
            os.fsync(file.fileno())
        stat = path.stat()
        arrays[name] = [array.shape, str(array.dtype), stat.st_size, stat.st_mtime_ns]
    for unused in storage.files.values():
        unused.unlink()
    header = {
        "format": FORMAT,
        "version": version("qat-tft"),
        "files": state,
        "arrays": arrays,
        "schema": panel.schema.model_dump(mode="json"),
        "preparation": panel.preparation.to_json(),
        "time_kind": str(panel.time_kind),
        **{name: getattr(panel, name) for name in _PLAIN},
    }
    text = json.dumps(header, ensure_ascii=False)
    with (folder / HEADER).open("w", encoding="utf-8") as file:
        file.write(json.dumps({"digest": _digest(text), "header": text}))
        file.flush()
        os.fsync(file.fileno())


def _opened(place: Path, key: Key, state: FileStates) -> tuple[Panel | None, str]:
    """The kept panel, or None and why there is none that could be used ("" where none was kept)."""
    try:
        if not place.exists():
            return None, ""
        header = _header(place)
        arrays = {name: _array(place / f"{name}.bin", *described) for name, described in header["arrays"].items()}
        if header["version"] != version("qat-tft"):
            return None, f"rows cached by qat-tft {header['version']} were read again."
        learned = Preparation.from_json(header["preparation"])
        if key.preparation.time is not None and key.preparation != learned:
            return None, f"rows of {key.files.label} that were cached with another meaning of time were read again."
        if header["files"] != state:
            return None, f"{key.files.label} has changed since its rows were cached: they were read again."
        return _panel(header, arrays, key.files), ""
    except (OSError, ValueError, KeyError, TypeError) as damage:
        reason = str(damage).splitlines()[0] if str(damage) else type(damage).__name__
        return None, f"the rows cached in {place} were damaged ({reason}): they were read again."


def _header(place: Path) -> dict[str, Any]:
    outer = json.loads((place / HEADER).read_text(encoding="utf-8"))
    if _digest(outer["header"]) != outer["digest"]:
        raise ValueError(f"{HEADER} does not match its digest")
    header: dict[str, Any] = json.loads(outer["header"])
    if header["format"] != FORMAT:
        raise ValueError(f"format {header['format']}")
    return header


def _array(path: Path, shape: list[int], dtype: str, size: int, modified: int) -> Array:
    stat = path.stat()
    if (stat.st_size, stat.st_mtime_ns) != (size, modified):
        raise ValueError(f"{path.name} was modified")
    return mapped(path, tuple(shape), dtype)


def _panel(header: dict[str, Any], arrays: dict[str, Array], files: Files) -> Panel:
    small = {name: as_tensor(np.array(arrays[name])) for name in _ARRAYS[2:] if name in arrays}
    return Panel(
        schema=Schema.model_validate(header["schema"]),
        values=as_tensor(arrays["values"]),
        time=as_tensor(arrays["time"]),
        static=small["static"],
        series_start=small["series_start"],
        stretch_start=small.get("stretch_start"),
        series_ids=[tuple(ids) for ids in header["series_ids"]],
        series_code=small["series_start"].new_zeros(len(header["series_ids"])),
        time_kind=TimeKind(header["time_kind"]),
        time_zone=header["time_zone"],
        dictionaries={column: tuple(values) for column, values in header["dictionaries"].items()},
        source=files.label,
        notes=tuple(header["notes"]),
        preparation=Preparation.from_json(header["preparation"]),
        largest=header["largest"],
        fingerprint=header["fingerprint"],
    )


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
