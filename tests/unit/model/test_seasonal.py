"""The TFT on seasonal differences is the plain TFT between a subtraction and an addition."""

import pytest
import torch

from qat_tft.model.seasonal import SeasonalTemporalFusionTransformer
from qat_tft.model.tft import TemporalFusionTransformer
from qat_tft.schema import GroupSize

SIZES = GroupSize(1, (3,)), GroupSize(3), GroupSize(2)
SHAPE = {"history": 8, "horizon": 5, "hidden": 8, "heads": 2, "quantiles": (0.1, 0.5, 0.9)}
ROUNDING = 1e-5


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    draw = [torch.randn(shape, generator=generator) for shape in ((4, 8, 3), (4, 5, 2))]
    return torch.tensor([[0.5, 0.0], [-1.0, 1.0], [0.2, 2.0], [0.0, 1.0]]), draw[0], draw[1]


@pytest.mark.parametrize("season", [1, 3, 5, 8])
def test_it_forecasts_the_change_over_a_season(season):
    torch.manual_seed(0)
    model = SeasonalTemporalFusionTransformer(*SIZES, season=season, spread=0.25, **SHAPE).eval()
    plain = TemporalFusionTransformer(*SIZES, **SHAPE).eval()
    plain.load_state_dict({name: value for name, value in model.state_dict().items() if name != "spread"})

    static, historical, future = inputs()
    changed = historical.clone()
    for step in range(8):
        before = historical[:, step - season, 0] if step >= season else historical[:, step, 0]
        changed[:, step, 0] = (historical[:, step, 0] - before) / 0.25
    expected = plain(static, changed, future).quantiles * 0.25
    for step in range(5):
        row = 8 + step - season
        while row >= 8:
            row -= season
        expected[:, step] += historical[:, row, :1]
    assert torch.allclose(model(static, historical, future).quantiles, expected, atol=ROUNDING)


def test_checkpointing_changes_no_gradient():
    torch.manual_seed(0)
    model = SeasonalTemporalFusionTransformer(*SIZES, season=3, spread=0.25, dropout=0.2, **SHAPE)
    gradients = []
    for use_checkpointing in (False, True):
        torch.manual_seed(1)
        model.zero_grad()
        model.forward_with_checkpointing(*inputs(), use_checkpointing).quantiles.square().sum().backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    assert all(torch.equal(off, on) for off, on in zip(*gradients, strict=True))
    assert all(bool(gradient.any()) for gradient in gradients[0])


@pytest.mark.parametrize(
    ("season", "spread", "named"),
    [
        (0, 1.0, "season is 0"),
        (9, 1.0, "season is 9"),
        (3, 0.0, "spread is 0"),
        (3, float("nan"), "spread is nan"),
    ],
)
def test_impossible_arguments_are_refused(season, spread, named):
    with pytest.raises(ValueError, match=named):
        SeasonalTemporalFusionTransformer(*SIZES, season=season, spread=spread, **SHAPE)
