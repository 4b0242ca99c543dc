"""A saved state holds everything the next step depends on."""

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
