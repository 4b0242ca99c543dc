"""Finds what recomputing a segment would change: modules that keep state of their own and are not under the tape.

Before training, each segment runs twice on a few windows, the second time as its recompute will: with the same
inputs and random numbers, and with the tape of the first run to read from. Whatever is written in the second run
would be written twice a step in training, and what it decides may differ from what the loss was computed with.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from qat_tft.checkpointing.segments import Result, SegmentRunner
from qat_tft.checkpointing.tape import Tape
from qat_tft.errors import HiddenStateError, some_of

_OF_EVERY_MODULE = frozenset(vars(nn.Module()))


def require_replayable(model: nn.Module, segments: frozenset[str], forward: Callable[[SegmentRunner], object]) -> None:
    """Check that the named segments can be recomputed: nothing but our quantizers changes state inside them.

    Buffers, tensors, numbers, texts and containers held by the modules are as before when this returns or raises,
    and so is torch's random state.

    Args:
        model: the model, in the mode that it trains in.
        segments: names of the segments that will be recomputed.
        forward: runs `model` on a few windows with the runner it is given.

    Raises:
        HiddenStateError: a module writes to a buffer or attribute when a segment is recomputed, or a segment
            computes something else the second time.
        TapeMismatchError: a quantizer is called in another way the second time.
    """
    probe = _Probe(model, segments)
    before = _states(model)
    try:
        with torch.random.fork_rng():
            forward(probe)
    finally:
        for state in before:
            state.restore()
    if probe.written:
        raise _hidden_state(probe.written)
    if probe.differing:
        raise _differing(probe.differing)


class _Probe:
    """A runner that runs each segment as forward and as recompute, and notes what the recompute writes."""

    def __init__(self, model: nn.Module, segments: frozenset[str]) -> None:
        self._model = model
        self._segments = segments
        self.written: dict[str, str] = {}  # module and attribute -> segment
        self.differing: list[str] = []

    def __call__(self, name: str, function: Callable[..., Result], /, *tensors: Tensor | None) -> Result:
        if name not in self._segments:
            return function(*tensors)
        record, replay = Tape(name).contexts()
        with torch.random.fork_rng(), record:
            first = function(*tensors)
        before = _states(self._model)
        with replay:
            second = function(*tensors)
        for state in before:
            self.written |= dict.fromkeys(state.written(), name)
        if not _equal(first, second):
            self.differing.append(name)
        return first


@dataclass
class _State:
    """What a module holds besides parameters: its buffers and plain attributes, with copies of their content."""

    name: str
    module: nn.Module
    held: dict[str, Any]
    content: dict[str, Any]
    versions: dict[str, int]

    def written(self) -> list[str]:
        """Return the names of what has been written or replaced since, be it with equal values.

        An observer that sees the same batch twice may write what is there already; other batches will tell.
        """
        now = _held(self.module)
        return [f"{self.name}.{key}" for key in {**self.held, **now} if self._is_written(key, now)]

    def _is_written(self, key: str, now: dict[str, Any]) -> bool:
        if key not in now or key not in self.held:
            return True
        value, before = now[key], self.content[key]
        if isinstance(value, Tensor):
            return value is not self.held[key] or value._version != self.versions[key] or not _same(value, before)
        return not _alike(_content(value), before)

    def restore(self) -> None:
        """Put back every object that was held, with the content that it had."""
        for key in set(_held(self.module)) - set(self.held):
            delattr(self.module, key)
        for key, value in self.held.items():
            if isinstance(value, Tensor):
                if value._version != self.versions[key] or not _same(value, self.content[key]):
                    with torch.no_grad():
                        value.resize_(self.content[key].shape).copy_(self.content[key])
            elif isinstance(value, list | deque | dict | set) and not _alike(value, self.content[key]):
                value.clear()
                (value.update if isinstance(value, dict | set) else value.extend)(self.content[key])
            if _held(self.module).get(key) is not value:
                setattr(self.module, key, value)


def _states(model: nn.Module) -> list[_State]:
    return [_state(name or type(model).__name__, module) for name, module in model.named_modules()]


def _state(name: str, module: nn.Module) -> _State:
    held = _held(module)
    content = {key: _content(value) for key, value in held.items()}
    versions = {key: value._version for key, value in held.items() if isinstance(value, Tensor)}
    return _State(name, module, held, content, versions)


def _held(module: nn.Module) -> dict[str, Any]:
    own = {key: value for key, value in vars(module).items() if key not in _OF_EVERY_MODULE}
    return {**own, **dict(module.named_buffers(recurse=False))}


def _content(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, list | deque | set | dict):
        return value.copy()
    return value


def _alike(one: Any, other: Any) -> bool:
    """Whether two contents are the same objects or equal plain values; what else an object holds is not seen."""
    if isinstance(one, dict) and isinstance(other, dict):
        return _alike([*one.keys(), *one.values()], [*other.keys(), *other.values()])
    if isinstance(one, list | deque | tuple) and type(one) is type(other):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, set) and isinstance(other, set):
        return {id(item) for item in one} == {id(item) for item in other}
    plain = isinstance(one, bool | int | float | complex | str | bytes)
    return one is other or (plain and type(one) is type(other) and one == other)


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one.nan_to_num(), other.nan_to_num())


def _equal(first: object, second: object) -> bool:
    """Whether two runs gave the same tensors; compared on the CPU alone, where bitwise identity is promised."""
    pairs = zip(tree_leaves(first), tree_leaves(second), strict=True)
    return all(
        _same(one, other)
        for one, other in pairs
        if isinstance(one, Tensor) and isinstance(other, Tensor) and one.device.type == "cpu"
    )


def _hidden_state(written: dict[str, str]) -> HiddenStateError:
    places = [f"{place} (segment {segment})" for place, segment in written.items()]
    return HiddenStateError(
        "recomputing a segment would change state that the quantization tape does not record",
        where=some_of(places),
        allowed="modules whose forward pass writes no state, and qat-tft's own quantizers",
        next_step="Replace the module (an observer by ActivationQuantizer, BatchNorm by LayerNorm), put it in eval(), "
        "let its state pass through qat_tft.checkpointing.tape.recall, or leave its segment out of checkpointing",
    )


def _differing(segments: list[str]) -> HiddenStateError:
    return HiddenStateError(
        "a segment gives a different result when it is recomputed with the same inputs and random numbers",
        where=", ".join(dict.fromkeys(segments)),
        next_step="Make its function depend only on its inputs, its parameters and torch's random numbers, "
        "or leave that segment out of checkpointing",
    )
