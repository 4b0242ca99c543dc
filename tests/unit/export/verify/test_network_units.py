"""Errors of a file are measured in what the network put out, whatever was done to it afterwards."""

import pytest
import torch

from qat_tft.data.scaling import Affine, Scaling
from qat_tft.data.transform import TargetTransform
from qat_tft.data.windows import Batch
from qat_tft.export.verify.compare import NetworkUnits
from qat_tft.model.seasonal import SeasonalTemporalFusionTransformer
from qat_tft.model.tft import TemporalFusionTransformer
from qat_tft.schema import GroupSize

ROUNDING = 1e-4  # float32 through an exponential and back
HISTORY, HORIZON, SEASON, SPREAD = 6, 5, 3, 0.25


@pytest.mark.parametrize("seasonal", [False, True], ids=["level", "difference"])
@pytest.mark.parametrize("transform", list(TargetTransform))
def test_raw_forecasts_are_taken_back_to_what_the_network_put_out(transform: TargetTransform, seasonal: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    nothing = Affine(torch.zeros(1, 0), torch.ones(1, 0))
    statistics = Affine(torch.tensor([[0.5], [1.0], [2.0]]), torch.tensor([[1.0], [0.5], [2.0]]))
    scaling = Scaling(
        nothing, statistics, Affine(torch.zeros(3, 0), torch.ones(3, 0)), per_series=True, transform=transform
    )
    history = torch.rand(4, HISTORY, 1, generator=generator) + 0.5
    windows = Batch(
        torch.zeros(4, 0), history, torch.zeros(4, HORIZON, 0), torch.ones(4, HORIZON), torch.tensor([1, 0, 2, 1])
    )
    groups = GroupSize(0), GroupSize(1), GroupSize(0)
    shape = {"history": HISTORY, "horizon": HORIZON, "hidden": 4, "heads": 1}
    model = TemporalFusionTransformer(*groups, **shape)
    base = torch.zeros(4, HORIZON)
    if seasonal:
        model = SeasonalTemporalFusionTransformer(*groups, season=SEASON, spread=SPREAD, **shape)
        last = scaling.scale_target(history[..., 0], windows.series)[:, -SEASON:]
        base = torch.stack([last[:, step % SEASON] for step in range(HORIZON)], 1)
    network = torch.randn(4, HORIZON, 3, generator=generator).sort(-1).values
    scaled = base.unsqueeze(-1) + (SPREAD if seasonal else 1.0) * network
    raw = scaling.unscale_target(scaled, windows.series)
    found = NetworkUnits.of(model, scaling, windows)(raw.numpy())
    assert torch.allclose(torch.from_numpy(found), network, atol=ROUNDING)
