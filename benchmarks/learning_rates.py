"""Whether folded selection networks learn as plain ones do: both trained to the end of a schedule on the same task.

    python benchmarks/learning_rates.py [--hidden H,H,...] [--steps N] [--seeds N] [--json]

The plain model (benchmarks/plain_tft.py) trains embeddings and the maps behind them, and the second map of a variable's
GRN and its gate; ours trains the products of both, at the learning rate or at shares of their multiple of it. Every
batch of the task is drawn anew, so that nothing is learned by heart: the target depends on single steps and on products
and thresholds of columns, and the loss cannot fall below that of its noise, which is printed too. B windows, T history,
F horizon, V columns.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator

import torch
from plain_tft import PlainTFT
from torch import Tensor, nn

from qat_tft.model.loss import quantile_loss
from qat_tft.model.tft import TemporalFusionTransformer
from qat_tft.runs.optimizer import make_optimizer, set_learning_rate
from qat_tft.schema import GroupSize
from qat_tft.training.schedule import learning_rate

LEVELS = (0.1, 0.5, 0.9)
HISTORY, HORIZON, BATCH, VALIDATION = 12, 4, 64, 4096
STATIC, HISTORICAL, FUTURE = 1, 5, 2
NOISE = 0.2
PEAK, WARMUP, CLIP, DECAY = 2e-3, 0.05, 1.0, 1e-4  # the settings of `qat-tft train`
SHARES = (0.0, 0.5, 1.0)
"""Of the multiple that `make_optimizer` gives to products; 0: they learn at the rate of all others."""

Windows = tuple[tuple[Tensor, Tensor, Tensor], Tensor]
"""Inputs [B, V], [B, T, V], [B, F, V] and target [B, F]."""


def main() -> None:
    """Train and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", default="16,64", help="hidden sizes (default: 16,64)")
    parser.add_argument("--steps", type=int, default=800, help="of each training (default: 800)")
    parser.add_argument("--seeds", type=int, default=2, help="trainings of each kind (default: 2)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = {size: compare(int(size), arguments.steps, arguments.seeds) for size in arguments.hidden.split(",")}
    if arguments.json:
        print(
            json.dumps(
                {"noise": noise_loss(), "losses": {size: dict(kinds) for size, kinds in found.items()}}, indent=2
            )
        )
        return
    print(f"Validation loss after {arguments.steps} steps; the noise alone has {noise_loss():.3f}\n")
    names = ["plain", *(f"ours, share {share:g}" for share in SHARES)]
    print("\n".join([f"| hidden | {' | '.join(names)} |", f"| ---: |{' ---: |' * len(names)}"]))
    for size, kinds in found.items():
        print(f"| {size}", end="", flush=True)
        for _, losses in kinds:
            print(f" | {cell(losses)}", end="", flush=True)
        print(" |")


def cell(losses: list[float]) -> str:
    """Return the mean and, in brackets, the loss of each seed."""
    return f"{statistics.mean(losses):.3f} ({', '.join(f'{loss:.3f}' for loss in losses)})"


def compare(hidden: int, steps: int, seeds: int) -> Iterator[tuple[str, list[float]]]:
    """Yield the validation loss of each seed for the plain model, then for ours with each share of the multiples."""
    yield "plain", [trained(PlainTFT.beside(new_model(hidden, seed)), 1.0, steps, seed) for seed in range(seeds)]
    for share in SHARES:
        yield f"{share:g}", [trained(new_model(hidden, seed), share, steps, seed) for seed in range(seeds)]


def new_model(hidden: int, seed: int) -> TemporalFusionTransformer:
    """Return our model before training."""
    torch.manual_seed(seed)
    groups = GroupSize(STATIC), GroupSize(HISTORICAL), GroupSize(FUTURE)
    shape = {"history": HISTORY, "horizon": HORIZON, "hidden": hidden, "heads": 4, "dropout": 0.0, "quantiles": LEVELS}
    return TemporalFusionTransformer(*groups, **shape)


def trained(model: nn.Module, share: float, steps: int, seed: int) -> float:
    """Train a model on `steps` new batches and return its validation loss.

    Args:
        model: any that takes the three groups.
        share: of the multiples of products; a plain model has none.
        steps: of the schedule.
        seed: of the batches.
    """
    optimizer = make_optimizer(model, weight_decay=DECAY)
    for group in optimizer.param_groups:
        group["multiple"] = max(1.0, share * group["multiple"])
    for step, (inputs, target) in enumerate(drawn(steps, BATCH, seed)):
        set_learning_rate(optimizer, learning_rate(step, steps, peak=PEAK, warmup=WARMUP))
        quantile_loss(model(*inputs).quantiles, target, LEVELS).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
    inputs, target = next(drawn(1, VALIDATION, 10**6))
    with torch.no_grad():
        return float(quantile_loss(model.eval()(*inputs).quantiles, target, LEVELS))


def drawn(count: int, windows: int, seed: int) -> Iterator[Windows]:
    """Yield batches of the task: the same ones for a seed."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        static = torch.randn(windows, STATIC, generator=generator)
        past = torch.randn(windows, HISTORY, HISTORICAL, generator=generator)
        coming = torch.randn(windows, HORIZON, FUTURE, generator=generator)
        noise = NOISE * torch.randn(windows, HORIZON, generator=generator)
        level = torch.sin(2 * past[:, -4:, 0]).mean(1) + (past[:, -1, 1].abs() - 0.8) * past[:, -1, 2].sign()  # [B]
        coupled = torch.cos(1.5 * coming[..., 0]) * static.tanh()  # [B, F]
        switched = 0.7 * (coming[..., 1] > 0.3) * past[:, -2:-1, 3]  # [B, F]
        yield (static, past, coming), level.unsqueeze(1) + coupled + switched + noise


def noise_loss() -> float:
    """Return the loss of whoever knows everything but the noise: a pinball loss is the deviation times a density."""
    normal = statistics.NormalDist()
    return NOISE * sum(normal.pdf(normal.inv_cdf(level)) for level in LEVELS)


if __name__ == "__main__":
    main()
