"""One optimizer step against a plain one, and what stops it."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch

from qat_tft.checkpointing.segments import run_directly
from qat_tft.data.loading.loader import batches
from qat_tft.data.windows import Batch
from qat_tft.errors import NonFiniteLossError
from qat_tft.evaluation.window_forecasts import validation_loss
from qat_tft.model.loss import loss_of, pinball, quantile_loss
from qat_tft.profiling.operator_count import OperatorCount
from qat_tft.runs.build import accelerator_for, build_model
from qat_tft.training.steps import step as steps
from qat_tft.training.steps.step import TrainingStep

CLIP = 0.05
ROUNDING = 1e-6


def step_for(config, data) -> TrainingStep:
    torch.manual_seed(0)
    model = build_model(config.model, data.preprocessing, data.schema)
    accelerator = accelerator_for(config.training.model_copy(update={"accumulation": 1}))
    return TrainingStep(
        accelerator=accelerator,
        model=model,
        scaling=data.preprocessing.scaling(),
        schema=data.schema,
        optimizer=accelerator.prepare_optimizer(torch.optim.SGD(model.parameters(), lr=0.5, fused=True)),
        run_segment=run_directly,
        loss=loss_of(config.model.quantiles),
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


@pytest.mark.parametrize("count", [1, 2])
def test_a_step_clips_the_gradient_of_all_its_batches_and_applies_it(config, data, count):
    config = config.model_copy(update={"model": config.model.model_copy(update={"dropout": 0.0})})
    parts = list(batches(data.training, 8))[:count]
    step = step_for(config, data)
    outcome = step(parts, place="here").settled()
    expected, loss = plain_step(config, data, parts)
    assert outcome.windows == 8 * count
    assert outcome.loss == pytest.approx(loss)
    for (name, found), wanted in zip(step.model.named_parameters(), expected.parameters(), strict=True):
        assert torch.allclose(found, wanted, atol=ROUNDING), name


def test_a_rank_with_fewer_windows_makes_as_many_passes_as_the_others_and_the_more_count_for_nothing(
    config, data, monkeypatch
):
    config = config.model_copy(update={"model": config.model.model_copy(update={"dropout": 0.0})})
    part = next(iter(batches(data.training, 8)))
    alone, one_of_two = step_for(config, data), step_for(config, data)
    outcome = alone([part], place="here").settled()
    passes = []
    one_of_two.model.register_forward_hook(lambda *_: passes.append(1))
    other = [0.0, 0.0, 3.0]  # another rank, which has the same batch in three passes and no target in any
    monkeypatch.setattr(steps.ranks, "ask_numbers_of_all", lambda *own: lambda: [list(own), other])
    assert one_of_two([part], place="here").settled().loss == pytest.approx(outcome.loss)
    assert len(passes) == 3
    for found, wanted in zip(one_of_two.model.parameters(), alone.model.parameters(), strict=True):
        assert torch.allclose(found, wanted, atol=ROUNDING)


def test_a_batch_with_a_nan_stops_the_step_by_name_and_changes_nothing(config, data):
    step = step_for(config, data)
    before = [parameter.clone() for parameter in step.model.parameters()]
    poisoned = next(iter(batches(data.training, 8)))
    poisoned.historical[0, 3, 1] = torch.nan
    made = step([poisoned], place="fp32 epoch 2, batch 7")
    step([next(iter(batches(data.training, 8)))], place="the next one, which is under way by then")
    with pytest.raises(NonFiniteLossError, match=r"fp32 epoch 2, batch 7: .* non-finite values in 'wind'"):
        made.settled()
    assert all(map(torch.equal, step.model.parameters(), before))
    assert all(parameter.grad is None for parameter in step.model.parameters())


def test_nothing_in_a_step_waits_for_the_device(config, data, monkeypatch):
    on_the_host = "present_windows"  # asks the raw targets, which are there
    monkeypatch.setattr(steps, on_the_host, lambda target: np.isfinite(target.numpy()).sum() / target.shape[-1])
    step = step_for(config, data)
    first, second = islice(batches(data.training, 8), 2)
    step([first], place="the first one, after which everything has its memory")
    with OperatorCount() as count:
        made = step([second], place="here")
    waiting = [name for name in count.calls if "_local_scalar_dense" in name or "nonzero" in name or "equal" in name]
    assert waiting == []
    assert made.settled().loss > 0


def with_missing_targets(batch: Batch, seed: int) -> Batch:
    """The same windows with a different number of missing targets in each half."""
    missing = torch.rand(batch.target.shape, generator=torch.Generator().manual_seed(seed)) < 0.4
    missing[: len(missing) // 2] &= torch.arange(missing.shape[1]) < 1
    return batch._replace(target=batch.target.masked_fill(missing, torch.nan))


def gradients(config, data, batches_of_step: list[Batch], *, micro_batch: int | None = None):
    """What a step accumulates, taken from what plain gradient descent does to the weights, without clipping."""
    step = replace(step_for(config, data), gradient_clip=1e9, micro_batch=micro_batch)
    before = [parameter.detach().clone() for parameter in step.model.parameters()]
    outcome = step(batches_of_step, place="here").settled()
    return outcome, [old - new.detach() for old, new in zip(before, step.model.parameters(), strict=True)]


@pytest.mark.parametrize(
    ("cuts", "micro_batch"),
    [((16,), 3), ((16,), 1), ((8, 8), None), ((4, 4, 4, 4), 3), ((9, 7), None), ((6, 6, 3, 1), 4)],
    ids=str,
)
def test_however_windows_with_missing_targets_are_cut_the_step_is_that_of_the_whole_batch(
    config, data, cuts, micro_batch
):
    config = config.model_copy(update={"model": config.model.model_copy(update={"dropout": 0.0})})
    whole = with_missing_targets(next(iter(batches(data.training, 16, shuffle=True))), seed=1)
    parts = [
        Batch(*group)
        for group in zip(*(tensor.split(list(cuts)) for tensor in whole if tensor is not None), strict=True)
    ]
    expected, wanted = gradients(config, data, [whole])
    outcome, found = gradients(config, data, parts, micro_batch=micro_batch)
    assert outcome.loss == pytest.approx(expected.loss)
    assert outcome.weight == pytest.approx(float((~whole.target.isnan()).float().mean(1).sum()))
    for ours, theirs in zip(found, wanted, strict=True):
        assert torch.allclose(ours, theirs, atol=ROUNDING)


@pytest.mark.parametrize("count", [2, 3, 5, 7])
def test_equal_complete_batches_count_alike_to_the_bit(config, data, count):
    config = config.model_copy(update={"model": config.model.model_copy(update={"dropout": 0.0})})
    parts = list(batches(data.training, 4))[:count]
    step = step_for(config, data)
    kept = {}
    step.optimizer.zero_grad = lambda: kept.update((name, p.grad) for name, p in step.model.named_parameters())
    replace(step, gradient_clip=1e9)(parts, place="here")
    torch.manual_seed(0)
    model, scaling = build_model(config.model, data.preprocessing, data.schema), data.preprocessing.scaling()
    for part in parts:
        inputs = scaling.scale_inputs(part.static, part.historical, part.future, part.series)
        target = scaling.scale_target(part.target, part.series)
        (quantile_loss(model(*inputs).quantiles, target, config.model.quantiles) / count).backward()
    assert [name for name, p in model.named_parameters() if not torch.equal(p.grad, kept[name])] == []


def test_validation_counts_every_present_target_once(config, data):
    model = step_for(config, data).model
    scaling, levels = data.preprocessing.scaling(), config.model.quantiles

    class Holed:
        panel = data.panel

        def __getitem__(self, indices):
            return with_missing_targets(data.validation[indices], seed=int(indices[0]))

    options = {"loss": loss_of(levels), "batch_size": 5, "device": torch.device("cpu")}
    found = validation_loss(model, scaling, Holed(), torch.arange(12), **options)
    total, count = 0.0, 0
    for indices in torch.arange(12).split(5):
        batch = with_missing_targets(data.validation[indices], seed=int(indices[0]))
        inputs = scaling.scale_inputs(batch.static, batch.historical, batch.future, batch.series)
        target = scaling.scale_target(batch.target, batch.series)
        there = ~target.isnan()
        with torch.no_grad():
            total += pinball(model.eval()(*inputs).quantiles, target, levels)[there].sum().item()
        count += int(there.sum())
    assert found == pytest.approx(total / count)
