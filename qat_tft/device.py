"""The device that tensors live on: chosen, its memory measured, its random numbers kept. Every CUDA branch is here."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import psutil
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor

from qat_tft import ranks
from qat_tft.errors import ConfigError

MIB = 2**20

_STATUS, _CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_PHRASES = ("DefaultCPUAllocator", "CUDA error: out of memory", "STATUS_ALLOC_FAILED")
"""What torch's allocators and CUDA's libraries say in a plain RuntimeError."""
ONEDNN_FAILURES = ("could not create a primitive", "could not execute a primitive")
"""All that oneDNN, which runs the LSTM on CPUs, says when it gets no memory; then it fails for ever in a process."""


def make_accelerator(device: str, precision: str) -> Accelerator:
    """Return the accelerator for a device and a number format; it leaves gradients as they are.

    Args:
        device: "auto", "cpu" or "cuda".
        precision: "fp32", "bf16" or "fp16".

    Raises:
        ConfigError: the device or format is not there, or processes were started by no launcher.
        LostRankError: several were started, and do not meet.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("no CUDA device is available", where="training.device", allowed="auto, cpu")
    on_cpu = training_device(device) == "cpu"
    if precision == "fp16" and on_cpu:
        raise ConfigError("fp16 needs a CUDA device", where="training.precision", allowed="fp32, bf16")
    # accelerate keeps its choice for the whole process; a later run may choose otherwise
    AcceleratorState._reset_state(reset_partial_state=True)
    ranks.join("cpu" if on_cpu else "cuda")
    return Accelerator(cpu=on_cpu, mixed_precision="no" if precision == "fp32" else precision)


class Later:
    """Numbers on their way from the device, which the host reads when the device has got there.

    Args:
        tensor: [n], in double precision; it may be computed on until it is read.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        if tensor.device.type == "cuda":
            self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._host.copy_(tensor, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()
        else:
            self._host = tensor.clone()

    def read(self) -> list[float]:
        """Return the numbers; wait for them where the device has not got there."""
        if self._event is not None:
            self._event.synchronize()
        return self._host.tolist()


def training_device(device: str) -> str:
    """Return the type of the device that training takes here for "auto", "cpu" or "cuda": "cpu" or "cuda"."""
    return "cuda" if device == "cuda" or (device == "auto" and torch.cuda.is_available()) else "cpu"


def half_precision(precision: str, device: torch.device) -> torch.dtype:
    """Return the 16-bit format that stands for `precision` on a device; on the CPU fp16 counts as bf16, as wide."""
    return torch.float16 if precision == "fp16" and device.type == "cuda" else torch.bfloat16


def visible_cores() -> int:
    """Return how many CPU cores this process may use, at least one."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def cpu_runs_bf16_lstm() -> bool:
    """Whether oneDNN has an LSTM in bf16 for this CPU, forward and backward; without AVX-512 it has none.

    It is asked by running one: what a CPU's flags promise is not what a build of oneDNN offers.
    """
    # In a thread of its own: a checkpointed segment that asks first would take the tensors for its own and miss them in
    # its recompute, and a simulated step would answer for oneDNN.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_runs_bf16_lstm).result()


def lstm_leaves_autocast(device: torch.device) -> bool:
    """Whether an LSTM on a device is to compute in single precision although autocast is on.

    It is under bf16: on a CPU that has no such LSTM, and on a GPU, where torch's autocast runs cuDNN's LSTM in fp16
    whatever format it is set to, and without scaled losses fp16 loses small gradients.
    """
    kind = device.type
    if not torch.is_autocast_enabled(kind) or torch.get_autocast_dtype(kind) is not torch.bfloat16:
        return False
    return kind != "cpu" or not cpu_runs_bf16_lstm()


def _runs_bf16_lstm() -> bool:
    try:
        with torch.random.fork_rng(devices=()), torch.enable_grad(), torch.autocast("cpu", torch.bfloat16):
            torch.nn.LSTM(1, 1)(torch.zeros(1, 1, 1))[0].sum().backward()
    except RuntimeError:
        return False
    return True


def lstm_weights_for(device: torch.device, weights: Sequence[Tensor]) -> list[Tensor]:
    """Return the weights of an LSTM layer as the device's kernel takes them without a copy of its own.

    cuDNN wants them in one piece of memory, in the order in which torch has them, and else puts them there at each
    call, with a warning. torch does that once for the weights of `nn.LSTM`; these are computed anew in each step.
    """
    return in_one_piece(weights) if device.type == "cuda" else list(weights)


def in_one_piece(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors of the same values and number format as the first one, one after the other in one piece of memory.

    Gradients pass to the tensors that were given.
    """
    whole = torch.cat([tensor.to(tensors[0].dtype).flatten() for tensor in tensors])
    pieces = whole.split([tensor.numel() for tensor in tensors])
    return [piece.view_as(tensor) for piece, tensor in zip(pieces, tensors, strict=True)]


def is_out_of_memory(failure: BaseException) -> bool:
    """Say whether a failure means that memory ran out, on the CPU or on CUDA."""
    if isinstance(failure, MemoryError | torch.OutOfMemoryError):
        return True
    if not isinstance(failure, RuntimeError):
        return False
    said = str(failure).strip()
    return said in ONEDNN_FAILURES or any(phrase in said for phrase in _PHRASES)


def pinning_for(device: torch.device) -> Callable[[Tensor], Tensor] | None:
    """Return what puts a tensor of the CPU where a device copies it from by itself; None where nothing is copied."""
    return Tensor.pin_memory if device.type == "cuda" else None


def release_cached_memory() -> None:
    """Give back to the device what torch's allocator keeps for later; nothing to do on the CPU."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def free_bytes(device: torch.device) -> int:
    """Return how much memory is free on a device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return int(psutil.virtual_memory().available)


def allocated_peak(function: Callable[[], object], device: torch.device) -> int | None:
    """Return the peak that a function adds to what the device's allocator holds; None on the CPU, which keeps none."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    start = torch.cuda.memory_allocated(device)
    function()
    torch.cuda.synchronize(device)
    return int(torch.cuda.max_memory_allocated(device)) - start


def seconds_of(function: Callable[[], object], device: torch.device) -> float:
    """Return the seconds that a function takes until the device has done its work."""
    start = time.perf_counter()
    function()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def peak_taken(device: torch.device) -> int:
    """Return the most bytes taken so far: by the allocator from a CUDA device, by this process on the CPU."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_reserved(device))
    return int(peak_process_mib() * MIB)


def peak_process_mib() -> float:
    """Return the peak of this process's memory, in MiB: allocated on CUDA, resident on the CPU.

    It counts from the last `forget_peak` on Linux and CUDA, elsewhere from the start of the process.
    """
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated() / MIB
    if sys.platform == "win32":
        return float(psutil.Process().memory_info().peak_wset) / MIB
    if _STATUS.exists():
        peak = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(peak.split()[1]) * 1024 / MIB
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MIB  # bytes on macOS


def forget_peak() -> None:
    """Count the peak from here, where the system can: proc(5), clear_refs, value 5."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with contextlib.suppress(OSError):
        _CLEAR_REFS.write_text("5")


def random_state() -> dict[str, Tensor]:
    """Return the state of torch's random generators: CPU and every CUDA device, as bytes."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        for index, state in enumerate(torch.cuda.get_rng_state_all()):
            states[f"cuda{index}"] = state
    return states


def restore_random_state(states: Mapping[str, Tensor]) -> None:
    """Set torch's random generators; a device that is not there any more is passed over."""
    torch.set_rng_state(states["cpu"])
    for index in range(torch.cuda.device_count()):
        if f"cuda{index}" in states:
            torch.cuda.set_rng_state(states[f"cuda{index}"], index)
