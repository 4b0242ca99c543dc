"""Simulates one training step without computing it: what its tensors take at the peak, and its floating-point work.

The model, its gradients, the optimizer's memory and every activation are fake tensors, which know shape and type and
hold no numbers. Our own count of live tensors (qat_tft.profiling.live_tensors) runs over them, so a simulated peak is
the peak that counting a real step on the CPU gives. The private parts of torch that this takes stand here and
nowhere else. Scratch space inside kernels, the CUDA context and fragmentation of an allocator are not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import flop_registry

from qat_tft.checkpointing.segments import Result, SegmentRunner
from qat_tft.profiling.live_tensors import LiveTensors
from qat_tft.runs.optimizer import make_optimizer


@dataclass(frozen=True)
class Footprint:
    """What the tensors of one training step take at its peak, in bytes, and the work of the step.

    Attributes:
        weights: parameters and buffers.
        gradients: those that were finished when the peak was reached.
        optimizer: what the optimizer keeps between steps.
        activations: what forward passes and recomputations made and still hold.
        temporaries: what the backward pass and the optimizer hold for themselves, unfinished gradients among it.
        flops: floating-point operations of the step's matrix products, recomputed ones included.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    temporaries: int
    flops: int

    @property
    def peak(self) -> int:
        """Bytes alive at once at the peak: the sum of the parts."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.temporaries

    def to_json(self) -> dict[str, int]:
        """Return the parts and their sum."""
        return {"peak": self.peak, **asdict(self)}


def simulate_step(
    build: Callable[[], nn.Module],
    loss: Callable[[nn.Module, SegmentRunner], tuple[Tensor, object]],
    run_segment: SegmentRunner,
    *,
    backwards: int = 1,
    averaging: float = 0.0,
) -> Footprint:
    """Return the footprint of one optimizer step of a model that has been trained before (its moments exist).

    Nothing is computed and torch's random state stays as it is.

    Args:
        build: makes the model, in training mode. It runs on torch's meta device, so it must not read a value.
        loss: makes inputs and returns the scalar loss of the model on them, run with the runner it is given, and
            whatever else stays alive until the backward pass is over.
        run_segment: which segments are recomputed.
        backwards: forward and backward passes whose gradients are added before the step. Every one after the first
            finds gradients in memory, so two stand for any larger number.
        averaging: as for the optimizer, which keeps an average of the weights unless it is 0.
    """
    with torch.device("meta"):
        model = build()
    with FakeTensorMode(allow_non_fake_inputs=True), _Ledger() as ledger:
        with ledger.booking(_Part.WEIGHTS):
            model.to_empty(device="cpu")
        optimizer = _warm_optimizer(model, ledger, averaging)
        ledger.follow_gradients(model)
        ledger.restart()
        for _ in range(backwards):
            with ledger.booking(_Part.ACTIVATIONS):
                total, held = loss(model, _booked(run_segment, ledger))
            total.backward()
            del total, held
        optimizer.step()
    return Footprint(**{str(part): ledger.at_peak[part] for part in _Part}, flops=ledger.flops)


class _Part(StrEnum):
    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer"
    ACTIVATIONS = "activations"
    TEMPORARIES = "temporaries"


def _warm_optimizer(model: nn.Module, ledger: _Ledger, averaging: float) -> torch.optim.Optimizer:
    """Return the optimizer with its memory in place and no gradients, as every step but the first finds it."""
    optimizer = make_optimizer(model, averaging=averaging)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    with ledger.booking(_Part.OPTIMIZER):
        optimizer.step()
    optimizer.zero_grad()
    return optimizer


def _booked(run_segment: SegmentRunner, ledger: _Ledger) -> SegmentRunner:
    """Return the runner; what a segment makes is booked as activations in the backward pass too."""

    def run(name: str, function: Callable[..., Result], /, *tensors: Tensor | None) -> Result:
        def booked(*inputs: Tensor | None) -> Result:
            with ledger.booking(_Part.ACTIVATIONS):
                return function(*inputs)

        return run_segment(name, booked, *tensors)

    return run


class _Ledger(LiveTensors):
    """Counts live tensors part by part, keeps the parts as they were at the peak, and adds up the work.

    Attributes:
        at_peak: bytes of each part when the largest sum was reached.
        flops: operations since `restart`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0
        self.at_peak: dict[_Part, int] = {}
        self._part = _Part.TEMPORARIES
        self._part_of: dict[int, _Part] = {}
        self._bytes = dict.fromkeys(_Part, 0)

    @contextmanager
    def booking(self, part: _Part) -> Iterator[None]:
        """Book what is made in this context under a part."""
        before, self._part = self._part, part
        try:
            yield
        finally:
            self._part = before

    def follow_gradients(self, model: nn.Module) -> None:
        """Book each parameter's gradient as one, as soon as it is complete."""
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(self._gradient_is_complete)

    def restart(self) -> None:
        """Forget the peak and the work so far, not what is alive."""
        self.peak, self.flops, self.at_peak = self.live, 0, dict(self._bytes)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the operator on fake tensors, count what it makes and how much work it is."""
        result = super().__torch_dispatch__(func, types, args, kwargs)
        packet = func._overloadpacket
        if packet in _LSTM_PASSES:
            self.flops += _LSTM_PASSES[packet] * _lstm_flops(args)
            if packet is torch.ops.aten.mkldnn_rnn_layer:
                result = (*result[:3], self._lstm_workspace(result))
        elif packet in flop_registry:
            self.flops += flop_registry[packet](*args, **(kwargs or {}), out_val=result)
        return result

    def _lstm_workspace(self, result: tuple[Tensor, ...]) -> Tensor:
        # The fake kernel says that nothing is kept for the backward pass. oneDNN keeps about 15 numbers for each
        # number of the output, and 16 for each of a state, measured at several shapes.
        steps, batch, hidden = result[0].shape
        workspace = torch.empty((15 * steps + 16) * batch * hidden * result[0].element_size(), dtype=torch.uint8)
        self._count(workspace.untyped_storage())
        return workspace

    def _count(self, storage: torch.UntypedStorage) -> None:
        live, peak = self.live, self.peak
        super()._count(storage)
        if self.live == live:
            return
        self._part_of[int(storage._cdata)] = self._part
        self._bytes[self._part] += self.live - live
        if self.peak > peak:
            self.at_peak = dict(self._bytes)

    def _free(self, address: int, size: int) -> None:
        super()._free(address, size)
        self._bytes[self._part_of.pop(address, self._part)] -= size

    def _gradient_is_complete(self, parameter: Tensor) -> None:
        assert parameter.grad is not None
        storage = parameter.grad.untyped_storage()
        address, size = int(storage._cdata), storage.nbytes()
        self._bytes[self._part_of[address]] -= size
        self._part_of[address] = _Part.GRADIENTS
        self._bytes[_Part.GRADIENTS] += size


_LSTM_PASSES = {torch.ops.aten.mkldnn_rnn_layer: 1, torch.ops.aten.mkldnn_rnn_layer_backward: 2}
"""The kernels of an LSTM layer, and how often each does the work of the forward pass."""


def _lstm_flops(args: tuple[Any, ...]) -> int:
    sequence, input_weight, recurrent_weight = args[:3]  # [T, B, inputs], [4H, inputs], [4H, H]
    steps, batch = sequence.shape[:2]
    return int(2 * steps * batch * (input_weight.numel() + recurrent_weight.numel()))
