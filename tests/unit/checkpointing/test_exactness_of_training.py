"""Checkpointing changes nothing in what training adds around a step: accumulation, clipping, bf16, ranks, sharing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from qat_tft.checkpointing.recompute import CheckpointRunner, runner_for
from qat_tft.checkpointing.segments import run_directly
from qat_tft.quantization.ranges import ActivationQuantizer, Phase
from qat_tft.quantization.scheme import scheme_for

KINDS = ["fp32", "qat"]
MODES = ["aggressive", "full"]
CLIP = 0.05


@pytest.fixture(params=KINDS)
def build(request, make_model, make_qat_model):
    """Build the same model of one kind each time it is called; dropout is on."""
    make = {"fp32": make_model, "qat": make_qat_model}[request.param]
    return lambda: make(dropout=0.2)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("accumulation", [2, 3])
def test_accumulated_gradients_are_equal_to_the_bit(build, mode, accumulation, train, differing):
    plain = train(build(), run_directly, steps=4, accumulation=accumulation)
    recomputed = train(build(), runner_for(mode), steps=4, accumulation=accumulation)
    assert differing(plain, recomputed) == []


@pytest.mark.parametrize("mode", MODES)
def test_clipped_gradients_and_their_norms_are_equal_to_the_bit(build, mode, train, differing):
    plain = train(build(), run_directly, accumulation=2, clip=CLIP)
    recomputed = train(build(), runner_for(mode), accumulation=2, clip=CLIP)
    assert all(plain[f"norm {step}"] > CLIP for step in range(10)), "the test must clip"
    assert differing(plain, recomputed) == []


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("early_stop", [True, False], ids=["early stop", "no early stop"])
def test_ten_steps_under_bf16_autocast_are_equal_to_the_bit(build, mode, early_stop, train, differing):
    """torch restores the forward pass's autocast in a recompute, and no weight is cast by two segments.

    Were one weight used by two segments, autocast's cache would add its two gradients up in bf16 without
    checkpointing and in single precision with it; the test below shows that difference, and its bound.
    """
    plain = train(build(), run_directly, autocast=True)
    recomputed = train(build(), CheckpointRunner(runner_for(mode).segments, early_stop=early_stop), autocast=True)
    assert differing(plain, recomputed) == []
    assert differing(plain, train(build(), run_directly)) != [], "autocast must change something"


class Shared(nn.Module):
    """One block used by two segments, neither inside the other."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block, self.between = block, nn.Linear(4, 4)

    def forward(self, x: Tensor, run_segment) -> Tensor:
        once = run_segment("first", self.block, x)
        return run_segment("second", self.block, torch.relu(self.between(once)))


def float_block() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(0.2), nn.Linear(4, 4))


def quantized_block() -> nn.Module:
    quantizer = ActivationQuantizer(scheme_for("x86").activations)
    quantizer.phase = Phase.QAT
    return nn.Sequential(quantizer, *float_block())


def train_shared(make_block, run_segment, *, autocast: bool = False) -> dict[str, Tensor]:
    torch.manual_seed(0)
    model, kept = Shared(make_block()), {}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            out = model((step + 1.0) * torch.randn(6, 4), run_segment)
        loss = out.float().square().mean()
        loss.backward()
        kept[f"loss {step}"] = loss.detach()
        kept |= {f"gradient {step} {name}": p.grad.clone() for name, p in model.named_parameters()}
        optimizer.step()
    return kept | {f"buffer {name}": value.clone() for name, value in model.named_buffers()}


BOTH = frozenset({"first", "second"})


@pytest.mark.parametrize("make_block", [float_block, quantized_block], ids=KINDS)
@pytest.mark.parametrize("segments", [BOTH, frozenset({"first"})], ids=["both", "one of them"])
@pytest.mark.parametrize("early_stop", [True, False], ids=["early stop", "no early stop"])
def test_a_module_used_by_two_segments_is_equal_to_the_bit(make_block, segments, early_stop, differing):
    plain = train_shared(make_block, run_directly)
    recomputed = train_shared(make_block, CheckpointRunner(segments, early_stop=early_stop))
    assert differing(plain, recomputed) == []


def test_a_quantizer_used_by_two_segments_is_caught_without_a_tape(differing):
    def untaped(name, function, /, *tensors):
        return checkpoint(function, *tensors, use_reentrant=False)

    differences = differing(train_shared(quantized_block, run_directly), train_shared(quantized_block, untaped))
    assert any(name.startswith("buffer") for name in differences)
    assert any(name.startswith("gradient") for name in differences)


BF16_ROUNDING = 2.0**-8
"""Half a unit in the last place of bf16, which keeps 8 significant bits."""


def test_under_bf16_a_weight_used_by_two_segments_differs_by_one_rounding_of_its_gradient():
    """Without checkpointing its two gradients are added in bf16, with it in single precision: one rounding apart."""
    plain = train_shared(float_block, run_directly, autocast=True)
    recomputed = train_shared(float_block, CheckpointRunner(BOTH), autocast=True)
    for name in (name for name in plain if name.startswith("gradient 0")):
        limit = BF16_ROUNDING * plain[name].abs() + torch.finfo(torch.float32).tiny
        assert ((plain[name] - recomputed[name]).abs() <= limit).all(), name


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two ranks wrote that trained together, each in a process of its own."""
    folder = tmp_path_factory.mktemp("ranks")
    words = [sys.executable, str(Path(__file__).with_name("two_ranks.py")), str(folder)]
    processes = [subprocess.Popen([*words, str(rank)], stderr=subprocess.PIPE, text=True) for rank in (0, 1)]
    for process in processes:
        _, said = process.communicate(timeout=120)
        assert process.returncode == 0, said
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_are_bitwise_identical_and_agree_on_every_range(kind, two_ranks, differing):
    kept = {(mode, rank): load_file(two_ranks / f"{kind}.{mode}.{rank}") for mode in ("off", "full") for rank in (0, 1)}
    for rank in (0, 1):
        assert differing(kept["off", rank], kept["full", rank]) == []
    parted = differing(kept["full", 0], kept["full", 1])
    assert parted, "ranks see different batches, so their losses differ"
    assert [name for name in parted if not name.startswith("loss")] == []
