"""The quantization tape: what stateful calls computed in a segment's forward pass, given back on its recompute.

A fake quantizer updates its statistics and derives a scale from them each time it is called. Recomputing a
segment calls it again: the statistics would move twice in one step, and the second scale would differ from
the one the loss was computed with, so the gradient would be that of another function. Here each such call is
written down in the forward pass, and the recompute reads the same values back by index and updates nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from types import TracebackType

import torch
from torch import Tensor

from qat_tft.errors import TapeMismatchError

Values = tuple[Tensor, ...]


def recall(owner: object, like: Tensor, compute: Callable[[], Values]) -> Values:
    """Return `compute()`, or on the recompute of a segment what this very call computed in the forward pass.

    Args:
        owner: the module that calls; a replay checks that it is the one that was recorded.
        like: the tensor the values are for; a replay checks its shape, dtype and device.
        compute: the stateful computation. It is not called on a recompute.

    Raises:
        TapeMismatchError: the recompute calls in another order, more often, or with another kind of tensor.
    """
    frames = _frames.get()
    recorders: list[_Recording] = []
    values: Values | None = None
    for frame in reversed(frames):
        if isinstance(frame, _Replaying):
            values = frame.next(owner, like)
            break
        recorders.append(frame)
    if values is None:
        values = compute()
    # Only recordings opened inside the innermost replay write: an outer forward pass is not what runs now.
    for recorder in recorders:
        recorder.tape.entries.append(_Entry(owner, _signature(like), tuple(v.detach().clone() for v in values)))
    return values


@dataclass
class Tape:
    """The calls of one run of one segment, in order, and the two contexts that write and read them."""

    segment: str
    entries: list[_Entry] = field(default_factory=list)

    def contexts(self) -> tuple[_Context, _Context]:
        """Return the context of the forward pass and that of the recompute, as torch's `context_fn` must."""
        return _Context(self, replay=False), _Context(self, replay=True)


@dataclass(frozen=True)
class _Entry:
    owner: object
    signature: tuple[torch.Size, torch.dtype, torch.device]
    values: Values


def _signature(tensor: Tensor) -> tuple[torch.Size, torch.dtype, torch.device]:
    return tensor.shape, tensor.dtype, tensor.device


@dataclass
class _Recording:
    tape: Tape


@dataclass
class _Replaying:
    tape: Tape
    position: int = 0

    def next(self, owner: object, like: Tensor) -> Values:
        entries, position = self.tape.entries, self.position
        if position >= len(entries):
            raise self._mismatch(f"the recompute made more than the {len(entries)} recorded calls")
        entry = entries[position]
        if entry.owner is not owner:
            raise self._mismatch(f"call {position} was made by {_name(entry.owner)} and is now made by {_name(owner)}")
        if entry.signature != _signature(like):
            raise self._mismatch(
                f"call {position} of {_name(owner)} saw {_text(entry.signature)} but now sees {_text(_signature(like))}"
            )
        self.position += 1
        return entry.values

    def finish(self) -> None:
        if self.position != len(self.tape.entries):
            raise self._mismatch(
                f"the recompute ended after {self.position} of {len(self.tape.entries)} recorded calls"
            )

    def _mismatch(self, what: str) -> TapeMismatchError:
        return TapeMismatchError(
            f"segment {self.tape.segment!r} does not recompute what its forward pass did: {what}; "
            "a segment's function must depend on its inputs and parameters alone"
        )


class _Context:
    """A context that can be entered again: each entry starts at the tape's first call (retain_graph)."""

    def __init__(self, tape: Tape, *, replay: bool) -> None:
        self._tape = tape
        self._replay = replay
        self._entered: list[tuple[_Recording | _Replaying, Token[tuple[_Recording | _Replaying, ...]]]] = []

    def __enter__(self) -> None:
        frame = _Replaying(self._tape) if self._replay else _Recording(self._tape)
        self._entered.append((frame, _frames.set((*_frames.get(), frame))))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        frame, token = self._entered.pop()
        _frames.reset(token)
        # An exception is also how torch stops early, once every saved tensor has been recomputed.
        if kind is None and isinstance(frame, _Replaying):
            frame.finish()


_frames: ContextVar[tuple[_Recording | _Replaying, ...]] = ContextVar("quantization_tape_frames", default=())


def _name(owner: object) -> str:
    return f"{type(owner).__name__} at {id(owner):#x}"


def _text(signature: tuple[torch.Size, torch.dtype, torch.device]) -> str:
    shape, dtype, device = signature
    return f"{list(shape)} {str(dtype).removeprefix('torch.')} on {device}"
