"""What a broken step may have changed comes back, loss scaling included."""

import torch

from qat_tft.training.steps.snapshot import StepSnapshot


def half_precision_step() -> tuple[torch.nn.Module, torch.optim.Optimizer, torch.amp.GradScaler]:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    return model, torch.optim.AdamW(model.parameters()), torch.amp.GradScaler("cpu", init_scale=8.0)


def unscaled(model, optimizer, scaler) -> torch.Tensor:
    scaler.scale(model(torch.ones(2, 3)).sum()).backward()
    scaler.unscale_(optimizer)
    return model.weight.grad.clone()


def test_a_step_that_broke_off_after_unscaling_can_be_made_again():
    model, optimizer, scaler = half_precision_step()
    for _ in range(2):
        before = StepSnapshot.of(model, optimizer, scaler)
        broken = unscaled(model, optimizer, scaler)
        before.restore()
        assert model.weight.grad is None
        assert torch.equal(unscaled(model, optimizer, scaler), broken)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert scaler.state_dict()["scale"] == 8.0
    assert scaler.state_dict()["_growth_tracker"] == 2, "rolled-back steps do not count"


def test_a_step_that_broke_off_before_any_scaling_can_be_made_again():
    model, optimizer, scaler = half_precision_step()
    StepSnapshot.of(model, optimizer, scaler).restore()
    unscaled(model, optimizer, scaler)
    assert scaler.get_scale() == 8.0


def test_buffers_of_every_kind_come_back_and_keep_their_place():
    model = torch.nn.BatchNorm1d(3)
    model.register_buffer("low", torch.ones(2, 2, dtype=torch.bfloat16))
    held = {name: (value, value.clone()) for name, value in model.named_buffers()}
    before = StepSnapshot.of(model, torch.optim.SGD(model.parameters()))
    model(torch.randn(4, 3))
    model.low.add_(1)
    before.restore()
    for name, value in model.named_buffers():
        assert value is held[name][0], name
        assert torch.equal(value, held[name][1]), name


def test_a_model_without_buffers_is_rolled_back_too():
    model = torch.nn.Linear(2, 2)
    state = torch.get_rng_state()
    before = StepSnapshot.of(model, torch.optim.SGD(model.parameters()))
    torch.randn(3)
    before.restore()
    assert torch.equal(torch.get_rng_state(), state)
