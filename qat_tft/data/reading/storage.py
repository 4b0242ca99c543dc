"""Where the arrays of a panel live: in memory, or in files of one folder that are mapped into it."""

import os
import sys
import warnings
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from qat_tft.errors import DataError, Way

Array = npt.NDArray[Any]


class Storage(Protocol):
    """Gives arrays to fill."""

    def array(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """An array that belongs to the panel, to be written whole."""
        ...

    def scratch(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """An array that is needed while reading only, to be written whole."""
        ...


class Memory:
    """Arrays in the memory of the process."""

    def array(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """As in ``Storage``."""
        return np.empty(shape, dtype)

    def scratch(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """As in ``Storage``."""
        return np.empty(shape, dtype)


class Mapped:
    """Arrays in files of a folder: the system keeps as much of them in memory as it can spare, shared by processes.

    Args:
        folder: an existing folder. Its files stay for as long as they are mapped, even where they are deleted.

    Attributes:
        files: address of each array in memory to its file; scratch has none.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[int, Path] = {}

    def array(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """As in ``Storage``; DataError where the disk has no room for it."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        path = self.folder / name
        try:
            allocate(path, size)
        except OSError as failure:
            raise not_written(self.folder, failure, size) from None
        array = mapped(path, shape, dtype, mode="r+")
        self.files[array.ctypes.data] = path
        return array

    def scratch(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """As in ``Storage``; the file has no name any more."""
        array = self.array(name, shape, dtype)
        self.files.pop(array.ctypes.data).unlink()
        return array


def allocate(path: Path, size: int) -> None:
    """Make a file of so many bytes to be mapped; OSError where the disk has no room for them."""
    with path.open("wb") as file:
        if sys.platform == "linux" and size:
            # A mapped file that turns out not to fit kills the process; this is an error.
            os.posix_fallocate(file.fileno(), 0, size)
        file.truncate(size)


def mapped(path: Path, shape: tuple[int, ...], dtype: npt.DTypeLike, *, mode: str = "r") -> Array:
    """A file as an array: mode ``r`` to read it, ``r+`` to write it."""
    if 0 in shape:  # no file of no bytes can be mapped
        return np.empty(shape, dtype)
    return np.memmap(path, dtype=dtype, mode=mode, shape=shape)  # type: ignore[call-overload, no-any-return]


def as_tensor(array: Array) -> torch.Tensor:
    """The array as a tensor that shares its memory; nobody may write to it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        return torch.from_numpy(array)


def not_written(folder: Path, failure: OSError, size: int = 0) -> DataError:
    """The error for a folder that cannot take what is to be kept in it."""
    needed = f" {size / 2**20:,.0f} MiB" if size else ""
    return DataError(
        f"cannot store{needed} of prepared rows there: {failure.strerror or failure}",
        where=str(folder),
        next_step="Free some space there.",
        ways=[Way("--cache-dir", "name another folder with --cache-dir", by_training=False)],
    )
