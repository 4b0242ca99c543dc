"""Measures the memory of live tensors while a function runs: every allocation that torch's operators make.

On CUDA the allocator's own peak is read. On the CPU, torch keeps no such figure, so each operator's new storages
are counted as they appear and as they are freed. That is exact for tensors; scratch space inside a kernel,
Python and the heap's own overhead are not in it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from qat_tft.device import allocated_peak


def peak_bytes(function: Callable[[], object], device: torch.device) -> int:
    """Return the peak of live tensor bytes while `function` runs, above what was alive when it began.

    Args:
        function: runs on `device` and may allocate and free as it likes; its result is dropped.
        device: where the tensors are; a CUDA device is read from its allocator, any other is counted.
    """
    allocated = allocated_peak(function, device)
    if allocated is not None:
        return allocated
    with LiveTensors() as live:
        function()
    peak: int = live.peak
    return peak


class LiveTensors(TorchDispatchMode):
    """Counts the bytes of storages that operators create while the mode is on, until each is freed.

    Attributes:
        live: bytes alive now; peak: the largest value that `live` took.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = 0
        self.peak = 0
        self._counted: set[int] = set()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the operator and count the storages of its results that are not those of its arguments."""
        given = {_address(tensor) for tensor in tree_iter((args, kwargs)) if isinstance(tensor, Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_iter(result):
            if isinstance(tensor, Tensor) and _address(tensor) not in given:
                self._count(tensor.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        address, size = int(storage._cdata), storage.nbytes()
        if address in self._counted:
            return
        self._counted.add(address)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._free, address, size)

    def _free(self, address: int, size: int) -> None:
        self._counted.discard(address)
        self.live -= size


def _address(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
