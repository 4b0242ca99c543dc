"""A frame carries level and scale of the window, and a linear forecast, past the network without touching either."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from qat_tft.checkpointing.recompute import runner_for
from qat_tft.model.frame import FramedTemporalFusionTransformer, FrameShape, window_level
from qat_tft.model.tft import TemporalFusionTransformer
from qat_tft.quantization.calibrate import calibrate
from qat_tft.quantization.prepare import QATTemporalFusionTransformer
from qat_tft.quantization.scheme import scheme_for
from qat_tft.schema import GroupSize

PRESENT, MISSING = 3, 4
STATIC, HISTORICAL, FUTURE = GroupSize(1, (3,)), GroupSize(5, (4,), PRESENT, MISSING), GroupSize(2)
T, F, Q = 8, 5, 3
SHAPE = {"history": T, "horizon": F, "hidden": 8, "heads": 2, "quantiles": (0.1, 0.5, 0.9)}
WHOLE = FrameShape(window=True, scale_input=True, path=True)
ROUNDING = 2e-5  # float32, through a network
ZERO = torch.tensor(0.0)


def framed(shape: FrameShape = WHOLE, **more) -> FramedTemporalFusionTransformer:
    """A model whose head and path are neither zero."""
    torch.manual_seed(0)
    model = FramedTemporalFusionTransformer(STATIC, HISTORICAL, FUTURE, frame=shape, **{**SHAPE, **more})
    with torch.no_grad():
        model.head.weight.normal_(std=0.3)
        for name in ("weight", "offsets"):
            if hasattr(model.frame, name):
                getattr(model.frame, name).normal_(std=0.3)
    return model.eval()


def inputs(windows: int = 4, seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Every step is there."""
    generator = torch.Generator().manual_seed(seed)
    static = torch.cat([torch.randn(windows, 1, generator=generator), torch.ones(windows, 1)], 1)
    historical = torch.randn(windows, T, 6, generator=generator)
    historical[..., PRESENT], historical[..., MISSING], historical[..., 5] = 1.0, 0.0, 2.0
    return static, historical, torch.randn(windows, F, 2, generator=generator)


def with_target(historical: Tensor, target: Tensor) -> Tensor:
    return torch.cat([target.unsqueeze(-1), historical[..., 1:]], -1)


@torch.no_grad()
def test_a_forecast_is_the_paths_plus_the_networks_in_units_of_the_window():
    model, (static, historical, future) = framed(), inputs()
    model.frame.log_center.fill_(0.3)
    model.frame.log_spread.fill_(2.0)
    found = model(static, historical, future).quantiles
    inner = TemporalFusionTransformer(GroupSize(2, (3,)), HISTORICAL, GroupSize(3), **SHAPE).eval()
    inner.load_state_dict({name: one for name, one in model.state_dict().items() if not name.startswith("frame.")})
    for window in range(len(static)):
        values = historical[window, :, 0].double()
        mean = values.sum() / T
        scale = math.sqrt(float(((values - mean) ** 2).sum() / T) + float(model.frame.least_variance))
        z = (values - mean) / scale
        column = torch.tensor([(math.log(scale) - 0.3) / 2.0])
        own_static = torch.cat([static[window, :1], column, static[window, 1:]]).unsqueeze(0)
        own_history = with_target(historical[window : window + 1], z.float().unsqueeze(0))
        path = (model.frame.weight.double() @ z).unsqueeze(-1)
        own_future = torch.cat([future[window], path.float()], 1).unsqueeze(0)
        network = inner(own_static, own_history, own_future).quantiles[0]
        expected = mean + scale * (path + model.frame.offsets + network)
        assert torch.allclose(found[window].double(), expected, atol=ROUNDING)


@torch.no_grad()
@pytest.mark.parametrize("path", [True, False], ids=["path", "no path"])
@pytest.mark.parametrize(("a", "b"), [(1.0, 50.0), (3.0, -7.0), (1e-3, 0.0), (1e4, 1e4)])
def test_a_window_normalized_model_follows_any_level_and_scale(a, b, path):
    model = framed(FrameShape(window=True, path=path))
    model.frame.least_variance.zero_()
    static, historical, future = inputs()
    expected = a * model(static, historical, future).quantiles.double() + b
    found = model(static, with_target(historical, a * historical[..., 0] + b), future).quantiles
    assert torch.allclose(found.double(), expected, rtol=0, atol=ROUNDING * (a + abs(b)))


@torch.no_grad()
def test_a_model_that_is_normalized_by_its_series_does_not_follow_a_level():
    model, (static, historical, future) = framed(FrameShape(path=True)), inputs()
    expected = model(static, historical, future).quantiles + 50.0
    found = model(static, with_target(historical, historical[..., 0] + 50.0), future).quantiles
    assert not torch.allclose(found, expected, atol=1.0)


@pytest.mark.parametrize("level", [0.0, 3.7, -1e6, 1e-30])
@pytest.mark.parametrize("floor", [0.0, 0.1], ids=["no floor", "floor"])
@pytest.mark.parametrize("counted", [None, T, 3, 1], ids=["all", "all of them", "three", "one"])
def test_equal_steps_are_normalized_to_exact_zeros(level, floor, counted):
    counts = None if counted is None else (torch.arange(T) >= T - counted).expand(2, T)
    found = window_level(torch.full((2, T), level), counts, torch.tensor(floor) ** 2)
    assert torch.equal(found.normalized, torch.zeros(2, T))
    assert torch.equal(found.mean, torch.full((2, 1), level))
    assert torch.allclose(found.scale, torch.tensor(floor))


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan, 1e30], ids=str)
def test_what_stands_at_other_steps_changes_no_bit(value):
    target = inputs()[1][..., 0]
    counts = torch.tensor([[step >= first for step in range(T)] for first in (0, 3, 7, 8)])
    expected = window_level(target, counts, torch.tensor(0.01))
    found = window_level(torch.where(counts, target, value), counts, torch.tensor(0.01))
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    for window, first in enumerate((0, 3, 7)):
        alone = window_level(target[window : window + 1, first:], None, torch.tensor(0.01))
        for ours, theirs in zip(found, alone, strict=True):
            assert torch.allclose(ours[window, -theirs.shape[1] :], theirs[0], atol=1e-6)


def test_a_window_without_any_step_has_the_level_of_training_and_the_least_scale():
    found = window_level(torch.full((1, T), torch.nan), torch.zeros(1, T, dtype=torch.bool), torch.tensor(0.04))
    assert (float(found.mean), float(found.scale)) == (0.0, pytest.approx(0.2))
    assert torch.equal(found.normalized, torch.zeros(1, T))


def test_normalized_values_are_bounded_however_heavy_the_tails():
    target = torch.zeros(1, T)
    target[0, 2] = 1e15
    assert float(window_level(target, None, ZERO).normalized.abs().max()) == pytest.approx(math.sqrt(T - 1))


@torch.no_grad()
def test_padding_and_filled_targets_do_not_count():
    model, (static, historical, future) = framed(), inputs()
    historical[0, :3, PRESENT] = 0.0
    historical[1, 2:5, MISSING] = 1.0
    expected = model(static, historical, future).quantiles
    target = historical[..., 0].clone()
    target[0, :3], target[1, 2:5] = torch.inf, 1e6
    changed = with_target(historical, target)
    assert torch.equal(model(static, changed, future).quantiles, expected)
    historical[0, :3, PRESENT] = 1.0
    assert not torch.allclose(model(static, historical, future).quantiles[0], expected[0])


@torch.no_grad()
def test_a_window_alone_is_forecast_as_among_others():
    model, (static, historical, future) = framed(), inputs(64)
    historical[:, :, 0] *= torch.logspace(-3, 3, 64).unsqueeze(1)
    together = model(static, historical, future).quantiles
    for window in (0, 31, 63):
        alone = model(*(one[window : window + 1] for one in (static, historical, future))).quantiles[0]
        assert torch.allclose(alone, together[window], rtol=1e-5, atol=1e-5 * float(historical[window, :, 0].std()))


@torch.no_grad()
def test_with_a_path_a_new_model_forecasts_what_the_path_does():
    torch.manual_seed(0)
    model = FramedTemporalFusionTransformer(STATIC, HISTORICAL, FUTURE, frame=WHOLE, **SHAPE).eval()
    model.frame.weight.normal_()
    model.frame.offsets.normal_()
    static, historical, future = inputs()
    level = model.frame.level(historical[..., 0].double(), historical)
    path = (level.normalized @ model.frame.weight.double().T).unsqueeze(-1) + model.frame.offsets
    expected = level.mean.unsqueeze(-1) + level.scale.unsqueeze(-1) * path
    assert torch.allclose(model(static, historical, future).quantiles.double(), expected, atol=1e-5)


def test_an_empty_frame_is_none_and_what_is_in_one_is_not_trained():
    assert FrameShape().is_empty
    assert not any(one.is_empty for one in (FrameShape(window=True), FrameShape(path=True), FrameShape(offsets=True)))
    assert list(framed().frame.parameters()) == []


@pytest.mark.parametrize("kind", ["fp32", "qat"])
@pytest.mark.parametrize("mode", ["aggressive", "full"])
def test_checkpointing_changes_no_bit(mode, kind):
    found = []
    for chosen in ("off", mode):
        model = framed(dropout=0.2)
        if kind == "qat":
            model = QATTemporalFusionTransformer(model, scheme_for("x86"))
            calibrate(model, [inputs(seed=seed) for seed in (2, 3)])
            model.set_phase("qat")
        torch.manual_seed(1)
        forecast = model.train()(*inputs(), run_segment=runner_for(chosen)).quantiles
        forecast.square().sum().backward()
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        found.append([forecast.detach(), *gradients, *model.buffers()])
    off, on = found
    assert len(off) == len(on)
    assert all(torch.equal(one, other) for one, other in zip(off, on, strict=True))
    assert sum(bool(one.any()) for one in off) > 20


@torch.no_grad()
def test_ranges_hold_when_the_level_shifts_by_100_deviations():
    model = QATTemporalFusionTransformer(framed(FrameShape(window=True, path=True)), scheme_for("x86")).eval()
    calibrate(model, [inputs(32, seed) for seed in (1, 2)])
    model.set_phase("frozen")
    static, historical, future = inputs(32)
    expected = model(static, historical, future).quantiles + 100.0
    found = model(static, with_target(historical, historical[..., 0] + 100.0), future).quantiles
    off = (found - expected).abs()
    assert float(off.median()) < 1e-4  # rounding of 100 in single precision
    assert float(off.max()) < 0.1  # some value may fall on the other side of a rounding boundary
    plain = QATTemporalFusionTransformer(framed(FrameShape(path=True)), scheme_for("x86")).eval()
    calibrate(plain, [inputs(32, seed) for seed in (1, 2)])
    plain.set_phase("frozen")
    shifted = plain(static, with_target(historical, historical[..., 0] + 100.0), future).quantiles
    assert float((shifted - plain(static, historical, future).quantiles - 100.0).abs().median()) > 1.0


@torch.no_grad()
def test_under_a_lower_number_format_the_frame_stays_in_single_precision():
    model, (static, historical, future) = framed(FrameShape(window=True, path=True)), inputs()
    model.head.weight.zero_()
    model.head.bias.zero_()
    shifted = with_target(historical, historical[..., 0] + 1000.0)
    expected = model(static, shifted, future).quantiles
    with torch.autocast("cpu", torch.bfloat16):
        found = model(static, shifted, future).quantiles
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)
