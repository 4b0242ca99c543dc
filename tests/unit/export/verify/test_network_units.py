"""Errors of a file are measured in what the network put out, whatever was done to it afterwards."""

import numpy as np
import pytest
import torch

from qat_tft.data.scaling import Affine, Scaling
from qat_tft.data.transform import TargetTransform
from qat_tft.data.windows import Batch
from qat_tft.export.verify.compare import NetworkUnits
from qat_tft.model.frame import FramedTemporalFusionTransformer, FrameShape
from qat_tft.model.seasonal import SeasonalTemporalFusionTransformer
from qat_tft.model.tft import TemporalFusionTransformer
from qat_tft.schema import GroupSize

ROUNDING = 1e-4  # float32 through an exponential and back
HISTORY, HORIZON, SEASON, SPREAD = 6, 5, 3, 0.25


@pytest.mark.parametrize("kind", ["level", "difference", "window"])
@pytest.mark.parametrize("transform", list(TargetTransform))
def test_raw_forecasts_are_taken_back_to_what_the_network_put_out(transform: TargetTransform, kind: str) -> None:
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
    base, spread = torch.zeros(4, HORIZON), torch.ones(4, 1)
    scaled_history = scaling.scale_target(history[..., 0], windows.series)
    if kind == "window":
        model = FramedTemporalFusionTransformer(*groups, frame=FrameShape(window=True, path=True), **shape)
        base = scaled_history.mean(1, keepdim=True).expand(4, HORIZON)
        spread = (scaled_history.var(1, correction=0, keepdim=True) + model.frame.least_variance).sqrt()
    if kind == "difference":
        spread = torch.full((4, 1), SPREAD)
        model = SeasonalTemporalFusionTransformer(*groups, season=SEASON, spread=SPREAD, **shape)
        last = scaled_history[:, -SEASON:]
        base = torch.stack([last[:, step % SEASON] for step in range(HORIZON)], 1)
    network = torch.randn(4, HORIZON, 3, generator=generator).sort(-1).values
    scaled = base.unsqueeze(-1) + spread.unsqueeze(-1) * network
    raw = scaling.unscale_target(scaled, windows.series)
    found = NetworkUnits.of(model, scaling, windows)(raw.numpy())
    assert torch.allclose(torch.from_numpy(found), network, atol=ROUNDING)


def test_the_resolution_is_that_of_the_raw_forecast() -> None:
    units = NetworkUnits(torch.full((2, 1), 1e4).double(), torch.full((2, 1), 0.5).double(), TargetTransform.NONE)
    raw = np.array([[[1e4]], [[3e4]]], np.float32)
    one_up = units(np.nextafter(raw, np.float32(np.inf))).astype(np.float64) - units(raw)
    assert np.allclose(units.resolution(raw), one_up, rtol=1e-3)
    assert units.resolution(raw)[1, 0, 0] > units.resolution(raw)[0, 0, 0] > 1e-3
