"""One optimizer step against a plain one, and what stops it."""

import pytest
import torch

from qat_tft.checkpointing.segments import run_directly
from qat_tft.data.loader import batches
from qat_tft.errors import NonFiniteLossError
from qat_tft.model.loss import quantile_loss
from qat_tft.training.build import build_model
from qat_tft.training.job import make_accelerator
from qat_tft.training.step import TrainingStep

CLIP = 0.05
ROUNDING = 1e-6


def step_for(config, data, accumulation: int = 1) -> TrainingStep:
    torch.manual_seed(0)
    model = build_model(config.model, data.preprocessing, data.schema)
    accelerator = make_accelerator(config.training.model_copy(update={"accumulation": accumulation}))
    return TrainingStep(
        accelerator=accelerator,
        model=model,
        scaling=data.preprocessing.scaling(),
        schema=data.schema,
        optimizer=accelerator.prepare_optimizer(torch.optim.SGD(model.parameters(), lr=0.5)),
        run_segment=run_directly,
        quantiles=config.model.quantiles,
        gradient_clip=CLIP,
    )


def plain_step(config, data, parts) -> tuple[torch.nn.Module, float]:
    torch.manual_seed(0)
    model = build_model(config.model, data.preprocessing, data.schema)
    scaling = data.preprocessing.scaling()
    total = 0.0
    for part in parts:
        inputs = scaling.scale_inputs(part.static, part.historical, part.future, part.series)
        target = scaling.scale_target(part.target, part.series)
        loss = quantile_loss(model(*inputs).quantiles, target, config.model.quantiles)
        (loss / len(parts)).backward()
        total += float(loss.detach()) / len(parts)
    norm = torch.stack([parameter.grad.norm() for parameter in model.parameters()]).norm()
    assert norm > CLIP
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.5 * parameter.grad * CLIP / norm
    return model, total


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_step_clips_the_gradient_of_all_its_batches_and_applies_it(config, data, accumulation):
    config = config.model_copy(update={"model": config.model.model_copy(update={"dropout": 0.0})})
    parts = list(batches(data.training, 8))[:accumulation]
    step = step_for(config, data, accumulation)
    outcome = step(parts, place="here")
    expected, loss = plain_step(config, data, parts)
    assert outcome.windows == 8 * accumulation
    assert outcome.loss == pytest.approx(loss)
    for (name, found), wanted in zip(step.model.named_parameters(), expected.parameters(), strict=True):
        assert torch.allclose(found, wanted, atol=ROUNDING), name


def test_a_batch_with_a_nan_stops_the_step_by_name_and_changes_nothing(config, data):
    step = step_for(config, data)
    before = [parameter.clone() for parameter in step.model.parameters()]
    poisoned = next(iter(batches(data.training, 8)))
    poisoned.historical[0, 3, 1] = torch.nan
    with pytest.raises(NonFiniteLossError, match=r"fp32 epoch 2, batch 7: .* non-finite values in 'wind'"):
        step([poisoned], place="fp32 epoch 2, batch 7")
    assert all(map(torch.equal, step.model.parameters(), before))
    assert all(parameter.grad is None for parameter in step.model.parameters())
