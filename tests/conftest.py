"""Small models, batches and training trajectories that tests of several rooms compare."""

from __future__ import annotations

import gc
import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hypothesis import settings
from torch import Tensor, nn

from qat_tft.checkpointing.segments import SegmentRunner
from qat_tft.cli.app import main
from qat_tft.model.loss import quantile_loss
from qat_tft.model.tft import TemporalFusionTransformer
from qat_tft.quantization.bits import EIGHT_BITS, BitLayout
from qat_tft.quantization.calibrate import calibrate
from qat_tft.quantization.prepare import QATTemporalFusionTransformer
from qat_tft.quantization.scheme import scheme_for
from qat_tft.schema import GroupSize

# A busy machine is not a fault, so nothing is timed. Every run tries the same examples, so that what passes for one
# passes for all; `pytest --hypothesis-profile random` tries others.
settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("random", deadline=None)
settings.load_profile("same")

Inputs = tuple[Tensor, Tensor, Tensor]


@pytest.fixture(scope="module", autouse=True)
def unwatched_garbage() -> Iterator[None]:
    """Spare the garbage collector what torch keeps after an export: collecting took a tenth of all tests' time."""
    yield
    gc.collect()
    gc.freeze()


@dataclass(frozen=True)
class Sizes:
    """Shape of a test model: every kind of column, and chunks that do not divide the variables evenly."""

    static: GroupSize = GroupSize(2, (3,))
    historical: GroupSize = GroupSize(5, (4, 6))
    future: GroupSize = GroupSize(2, (4,))
    history: int = 6
    horizon: int = 3

    def inputs(self, batch: int, generator: torch.Generator) -> Inputs:
        """Return random inputs [B, ...]: reals, then codes."""
        leading = ((batch,), (batch, self.history), (batch, self.horizon))
        groups = zip(leading, (self.static, self.historical, self.future), strict=True)
        static, historical, future = (_columns(shape, size, generator) for shape, size in groups)
        return static, historical, future


def _columns(shape: tuple[int, ...], size: GroupSize, generator: torch.Generator) -> Tensor:
    real = torch.randn(*shape, size.real, generator=generator)
    codes = [torch.randint(0, k, (*shape, 1), generator=generator).float() for k in size.cardinalities]
    return torch.cat([real, *codes], -1)


@pytest.fixture
def sizes() -> Sizes:
    """The shape that `make_model` has when nothing else is asked for."""
    return Sizes()


@pytest.fixture
def make_model() -> Callable[..., TemporalFusionTransformer]:
    """Build an FP32 test model; equal arguments give equal weights."""
    return build_model


def build_model(sizes: Sizes | None = None, seed: int = 0, **changes: object) -> TemporalFusionTransformer:
    torch.manual_seed(seed)
    sizes = sizes or Sizes()
    options = {"hidden": 8, "heads": 2, "dropout": 0.0, "encoder_layers": 1, "selection_chunk": 3, **changes}
    return TemporalFusionTransformer(
        sizes.static,
        sizes.historical,
        sizes.future,
        history=sizes.history,
        horizon=sizes.horizon,
        **options,  # type: ignore[arg-type]
    )


@pytest.fixture
def make_qat_model() -> Callable[..., QATTemporalFusionTransformer]:
    """Build a calibrated QAT test model in phase `qat`; equal arguments give equal weights and ranges."""

    def build(
        sizes: Sizes | None = None,
        seed: int = 0,
        target: str = "x86",
        learned_ranges: bool = False,
        layout: BitLayout = EIGHT_BITS,
        **changes: object,
    ) -> QATTemporalFusionTransformer:
        sizes = sizes or Sizes()
        fp32 = build_model(sizes, seed, **changes)
        scheme = scheme_for(target)
        model = QATTemporalFusionTransformer(fp32, scheme, learned_ranges=learned_ranges, layout=layout)
        generator = torch.Generator().manual_seed(seed)
        calibrate(model, [sizes.inputs(8, generator) for _ in range(3)])
        model.set_phase("qat")
        return model

    return build


Trajectory = dict[str, Tensor]


@pytest.fixture
def train() -> Callable[..., Trajectory]:
    """Train a model for some steps and keep every bit of what happened."""
    return run_training


def run_training(
    model: nn.Module,
    run_segment: SegmentRunner,
    *,
    steps: int = 10,
    forwards: int = 1,
    accumulation: int = 1,
    clip: float | None = None,
    autocast: bool = False,
    seed: int = 1,
) -> Trajectory:
    """Return losses and gradients of every step, and the weights and buffers after the last.

    Each step sees other batches; `forwards` of them run before each of its `accumulation` backward passes.
    Gradients are kept as the optimizer sees them: added up, and clipped to the norm `clip` where one is given.
    """
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    kept: Trajectory = {}
    model.train()
    for step in range(steps):
        optimizer.zero_grad()
        total = torch.zeros(())
        for _ in range(accumulation):
            losses = []
            for _ in range(forwards):
                inputs = Sizes().inputs(5, generator)
                target = torch.randn(5, Sizes().horizon, generator=generator)
                with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                    forecast = model(*inputs, run_segment)
                losses.append(quantile_loss(forecast.quantiles.float(), target, (0.1, 0.5, 0.9)))
            loss = torch.stack(losses).sum()
            loss.backward()
            total += loss.detach()
        if clip is not None:
            kept[f"norm {step}"] = nn.utils.clip_grad_norm_(model.parameters(), clip)
        kept[f"loss {step}"] = total
        for name, parameter in model.named_parameters():
            gradient = parameter.grad
            kept[f"gradient {step} {name}"] = torch.tensor([]) if gradient is None else gradient.clone()
        optimizer.step()
    kept |= {f"weight {name}": value.detach().clone() for name, value in model.named_parameters()}
    kept |= {f"buffer {name}": value.clone() for name, value in model.named_buffers()}
    return kept


@pytest.fixture
def differing() -> Callable[[Trajectory, Trajectory], list[str]]:
    """Name what is not bitwise identical in two trajectories."""

    def compare(one: Trajectory, other: Trajectory) -> list[str]:
        assert one.keys() == other.keys()
        return [name for name in one if not torch.equal(one[name], other[name])]

    return compare


@pytest.fixture
def refusal(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that has to end with exit code 2, one message and nothing else: what it says."""

    def run(*words: object) -> str:
        code = main([str(word) for word in words])
        printed = capsys.readouterr()
        assert (code, printed.out) == (2, "")
        assert "Traceback" not in printed.err
        messages = printed.err.split("error: ")
        assert len(messages) == 2, printed.err
        return messages[1]

    return run


@pytest.fixture
def full_disk() -> Callable[[int], AbstractContextManager[None]]:
    """Let no file grow beyond some bytes while a block runs: `with full_disk(100): ...`."""
    return no_file_longer_than


@contextmanager
def no_file_longer_than(size: int) -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.fixture(scope="session")
def readme_block() -> ModuleType:
    """The script that `make readme` calls."""
    script = Path(__file__).resolve().parents[1] / "docs" / "readme_block.py"
    spec = spec_from_file_location("readme_block", script)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
