"""Training steps: equal in every checkpoint mode, planned as they are, without a copy of an LSTM's weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from qat_tft.checkpointing.recompute import runner_for
from qat_tft.checkpointing.segments import Mode
from qat_tft.config.model import ModelConfig
from qat_tft.config.quantization import QuantizationConfig
from qat_tft.data.loading.prefetch import prefetched
from qat_tft.data.windows import Batch
from qat_tft.model.forms import variables_together
from qat_tft.profiling.measurement import OptimizerStep, measure
from qat_tft.profiling.step_simulator import StepSimulator
from qat_tft.profiling.synthetic_step import SyntheticStep
from qat_tft.quantization.lstm import QuantizedLSTM
from qat_tft.quantization.ranges import Phase
from qat_tft.quantization.scheme import scheme_for
from qat_tft.schema import GroupSize

GROUPS = GroupSize(2, (3,)), GroupSize(40, (4, 6)), GroupSize(3, (3,))
PASSES, WINDOWS = 3, 4

ORDER_OF_SUMS = {"cpu": 0.0, "cuda": 1e-4}
"""How far losses, gradients and ranges of two modes may be apart, relative to the largest gradient and so on. On the
CPU nothing depends on the mode; kernels of a GPU may add up in another order each time they run
(docs/gradient-checkpointing.md)."""

IN_BF16 = 100
"""By how much more in bf16, which keeps 16 bits less."""

OTHER_KERNELS = 5e-3
"""How far outputs of an LSTM may be apart between devices: cuDNN rounds products to 10 bits by default (TF32)."""

PLANNED = {"cpu": 0.05, "cuda": 0.15}
"""How far a simulated peak may be from the measured one: a GPU's allocator rounds sizes up and lends kernels scratch
space, neither of which is simulated."""


def step_for(device: torch.device, selection: str, **more: object) -> SyntheticStep:
    chunk = variables_together(selection, None, device.type)
    shape = {"history": 6, "horizon": 3, "hidden": 8, "heads": 2, "knots": 5, "dropout": 0.1}
    # Without a linear path, whose head would start at zero and let no gradient pass.
    model = ModelConfig(selection=selection, selection_chunk=chunk, linear_path="off", **shape)  # type: ignore[arg-type]
    return SyntheticStep(model, GROUPS, QuantizationConfig(products="integer"), **more)  # type: ignore[arg-type]


def passes(step: SyntheticStep, kind: str, mode: str, device: torch.device) -> dict[str, Tensor]:
    """Return losses, gradients and ranges of some forward and backward passes on batches that change."""
    torch.manual_seed(0)
    model = step.build(kind).to(device)
    found = {}
    for number in range(PASSES):
        model.zero_grad()
        loss, _ = step.loss(model, runner_for(mode), WINDOWS, device)
        loss.backward()
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        found[f"loss {number}"] = loss.detach()
        found[f"gradients {number}"] = torch.cat([gradient.flatten() for gradient in gradients])
        found[f"ranges {number}"] = torch.cat([buffer.flatten().double() for buffer in model.buffers()])
    return found


def apart(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """Return the largest difference, relative to the largest number among what it is compared with."""
    assert one.keys() == other.keys()
    assert all(bool(value.isfinite().all()) and bool(value.any()) for value in one.values())
    return max(float((one[name] - other[name]).abs().max() / one[name].abs().max()) for name in one)


@pytest.mark.parametrize("kind", ["fp32", "qat"])
@pytest.mark.parametrize("selection", ["tabulated", "exact"])
def test_gradients_do_not_depend_on_what_is_recomputed(device, selection, kind):
    step = step_for(device, selection)
    direct = passes(step, kind, Mode.OFF, device)
    for mode in (Mode.AGGRESSIVE, Mode.FULL):
        assert apart(direct, passes(step, kind, mode, device)) <= ORDER_OF_SUMS[device.type], mode


@pytest.mark.parametrize("kind", ["fp32", "qat"])
def test_gradients_in_bf16_do_not_depend_on_it_either(device, kind):
    step = step_for(device, "tabulated", precision="bf16")
    limit = IN_BF16 * ORDER_OF_SUMS[device.type]
    assert apart(passes(step, kind, Mode.OFF, device), passes(step, kind, Mode.FULL, device)) <= limit


@pytest.mark.parametrize(("kind", "mode"), [("fp32", Mode.OFF), ("fp32", Mode.FULL), ("qat", Mode.FULL)])
def test_a_planned_peak_is_the_measured_one(device, kind, mode):
    on_cpu = device.type == "cpu"
    shape = {"history": 24, "horizon": 8, "hidden": 16 if on_cpu else 128, "heads": 2, "selection": "exact"}
    chunk = variables_together("exact", None, device.type)
    model = ModelConfig(selection_chunk=chunk, **shape)  # type: ignore[arg-type]
    groups = GroupSize(2), GroupSize(60), GroupSize(3)
    simulator = StepSimulator(model, groups, QuantizationConfig(products="integer"))
    windows = 32 if on_cpu else 256

    def make_step() -> OptimizerStep:
        built = simulator.build(kind).to(device)
        return OptimizerStep(built, lambda: simulator.loss(built, runner_for(mode), windows, device))

    measured = measure(make_step, device, steps=1).live_bytes
    assert simulator(kind, mode, windows).peak == pytest.approx(measured, rel=PLANNED[device.type])


def test_a_quantized_lstm_computes_what_it_does_on_the_cpu_and_warns_of_nothing(device):
    torch.manual_seed(0)
    layer = QuantizedLSTM(torch.nn.LSTM(8, 8, batch_first=True), scheme_for("x86"))
    layer.input.phase = Phase.CALIBRATE
    x, states = torch.randn(4, 5, 8), (torch.randn(1, 4, 8), torch.randn(1, 4, 8))
    layer(x, states)
    layer.input.phase = Phase.FROZEN
    expected, _ = layer(x, states)
    there = layer.to(device)
    found, _ = there(x.to(device), (states[0].to(device), states[1].to(device)))
    found.square().sum().backward()
    assert torch.allclose(found.cpu(), expected, atol=OTHER_KERNELS)
    assert all(parameter.grad.isfinite().all() for parameter in there.parameters())


def test_batches_reach_the_device_as_they_are(device):
    given = [Batch(*torch.randn(6, 3, 2)) for _ in range(5)]
    found = list(prefetched(iter(given), device))
    assert len(found) == len(given)
    for one, other in zip(found, given, strict=True):
        assert all(tensor.is_pinned() is (device.type == "cuda") for tensor in one[:5])
        there = one.windows(slice(1, 3)).to(device)
        assert there.static.device.type == device.type
        assert all(torch.equal(a.cpu(), b) for a, b in zip(there[:5], other.windows(slice(1, 3))[:5], strict=True))
