"""A saved state holds everything the next step depends on."""

import json

import pytest
import torch

from qat_tft.device import random_state, restore_random_state
from qat_tft.errors import RunFolderError
from qat_tft.runs import files
from qat_tft.training.state import (
    Position,
    load_state,
    restore_optimizer,
    save_state,
)


def trained(steps: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    step(model, optimizer, steps)
    return model, optimizer


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 3)).square().mean().backward()
        optimizer.step()


def test_going_on_from_a_file_equals_going_straight_on_to_the_bit(tmp_path):
    model, optimizer = trained(3)
    save_state(
        tmp_path / "state", Position(), model=model, best=model.state_dict(), optimizer=optimizer, scaler={}, figures={}
    )
    step(model, optimizer, 4)
    torch.randn(100)  # the generator is elsewhere by now

    saved = load_state(tmp_path / "state")
    again, fresh = trained(0)
    again.load_state_dict(saved.model)
    restore_optimizer(fresh, saved)
    restore_random_state(saved.random)
    step(again, fresh, 4)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name


def test_a_position_comes_back_to_the_last_digit(tmp_path):
    model, optimizer = trained(1)
    position = Position(phase="qat", epoch=2, loss_sum=0.1 + 0.2, best_loss=1 / 3, q_risk={"fp32": [0.1]})
    save_state(
        tmp_path / "state",
        position,
        model=model,
        best={},
        optimizer=optimizer,
        scaler={"scale": 2.0},
        figures={"codes": torch.tensor([1, -1], dtype=torch.int8)},
    )
    saved = load_state(tmp_path / "state")
    assert saved.position == position
    assert saved.scaler == {"scale": 2.0}
    assert saved.figures["codes"].tolist() == [1, -1]


def test_the_next_phase_keeps_what_the_run_has_found():
    position = Position(epoch=3, step=9, best_loss=0.1, seconds=5.0, q_risk={"fp32": [1.0]}, data_digest="x")
    following = position.next_phase("qat")
    assert (following.phase, following.epoch, following.step, following.best_loss) == ("qat", 0, 0, None)
    assert (following.seconds, following.q_risk, following.data_digest) == (5.0, {"fp32": [1.0]}, "x")


def test_a_state_of_another_version_is_refused(tmp_path):
    files.write_tensors(tmp_path / "state", random_state(), kind="state", version="0", rest="{}")
    with pytest.raises(RunFolderError, match="version '0'"):
        load_state(tmp_path / "state")


def saved_with(tmp_path, change):
    """A state whose JSON is changed in place."""
    model, optimizer = trained(1)
    path = tmp_path / "state"
    save_state(path, Position(), model=model, best=model.state_dict(), optimizer=optimizer, scaler={}, figures={})
    tensors, header = files.read_tensors(path, kind="state")
    rest = json.loads(header["rest"])
    rest = change(rest) or rest
    files.write_tensors(path, tensors, kind="state", version=header["version"], rest=json.dumps(rest))
    return path


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda rest: [1], id="a list"),
        pytest.param(lambda rest: {"x": 1}, id="nothing of it"),
        pytest.param(lambda rest: rest["position"].update(epoch="two"), id="text for a number"),
        pytest.param(lambda rest: rest["position"].update(notes=3), id="number for notes"),
        pytest.param(lambda rest: rest["position"].update(metrics_bytes=-1), id="less than nothing"),
        pytest.param(lambda rest: rest["position"].update(phase="later"), id="phase"),
        pytest.param(lambda rest: rest["position"].update(level={"x": 1}), id="level"),
        pytest.param(lambda rest: rest["position"].update(loss_sum=float("nan")), id="NaN"),
        pytest.param(lambda rest: rest.update(optimizer_groups="x"), id="groups"),
    ],
)
def test_a_damaged_state_is_refused(tmp_path, change):
    with pytest.raises(RunFolderError, match="state: the state is damaged"):
        load_state(saved_with(tmp_path, change))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda rest: rest["optimizer_groups"][0].update(lr="fast"), id="type"),
        pytest.param(lambda rest: rest.update(optimizer_groups=[]), id="number of groups"),
        pytest.param(lambda rest: rest["optimizer_groups"][0].update(params=[7]), id="parameters"),
    ],
)
def test_memory_of_another_optimizer_is_refused(tmp_path, change):
    saved = load_state(saved_with(tmp_path, change))
    with pytest.raises(ValueError):  # noqa: PT011 - ours and torch's
        restore_optimizer(trained(0)[1], saved)


def test_weights_of_another_model_are_refused(tmp_path):
    saved = load_state(saved_with(tmp_path, lambda rest: None))
    saved.require_like(trained(0)[0])
    for other in (trained(0)[0].double(), torch.nn.Linear(3, 3)):
        with pytest.raises(ValueError, match="missing, unknown, or of another type"):
            saved.require_like(other)
