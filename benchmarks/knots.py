"""How far tables are from exact selection: by number and placement of knots, far from the training values, and rounded.

    python benchmarks/knots.py [RUN ...] [--json]

Each RUN is a finished run folder with tabulated selection; without any, the embedded bike rentals are trained briefly.
The figures are ratios of signal to error of the selected vectors in dB, the worst selection network's, in double
precision, on rows of the windows that a run keeps for its check. N rows, V real variables, K knots, H hidden.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from qat_tft.config.run import RunConfig
from qat_tft.model.knots import knot_values, place
from qat_tft.model.tabulated import TabulatedSelection
from qat_tft.quantization.tables import table_codes
from qat_tft.runs.folder import RunFolder
from qat_tft.training.job import train

COUNTS = (17, 33, 65, 129, 257)
DEFAULT = 65
LIMIT = 8.0
"""Where knots that are even in asinh end; what lies beyond is clamped."""
ROWS = 1024
WINDOWS = 64
FAR = (10.0, 100.0)

Interpolate = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Values [N] of one variable, its knots [K] and its table [K, H] to [N, H]."""


@dataclass(frozen=True)
class Seen:
    """What one selection network of a run was given: real values and their weights, [N, V] in double precision."""

    selection: TabulatedSelection
    values: Tensor
    weights: Tensor


def squashed(x: Tensor, knots: Tensor, table: Tensor) -> Tensor:
    """Interpolate as the model does."""
    left, part = place(x, len(knots))
    index, part = left.long(), part.unsqueeze(-1)
    return table[index] * (1 - part) + table[index + 1] * part


def linear(x: Tensor, knots: Tensor, table: Tensor) -> Tensor:
    """Interpolate in x itself, and clamp it to the outermost knots."""
    x = x.clamp(knots[0], knots[-1])
    index = torch.searchsorted(knots, x, right=True).clamp(1, len(knots) - 1) - 1
    part = ((x - knots[index]) / (knots[index + 1] - knots[index])).unsqueeze(-1)
    return table[index] * (1 - part) + table[index + 1] * part


def ours(count: int, x: Tensor) -> Tensor:
    """Return the model's knots."""
    return knot_values(count).double()


def even_in_asinh(count: int, x: Tensor) -> Tensor:
    """Return knots that are even in asinh, up to `LIMIT`."""
    return torch.sinh(torch.linspace(-1, 1, count, dtype=torch.double) * torch.asinh(torch.tensor(LIMIT).double()))


def quantiles(count: int, x: Tensor) -> Tensor:
    """Return quantiles of the variable's own values, and near copies where many are equal."""
    cuts = torch.quantile(x, torch.linspace(0, 1, count, dtype=torch.double))
    return cuts + torch.linspace(0, 1e-6, count, dtype=torch.double)


PLACEMENTS: dict[str, tuple[Callable[[int, Tensor], Tensor], Interpolate]] = {
    "squashed": (ours, squashed),
    "asinh to 8": (even_in_asinh, linear),
    "own quantiles": (quantiles, linear),
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, help="run folders")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of Markdown")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = [RunFolder.open(path) for path in arguments.runs] or [_short_run(Path(folder))]
        found = {run.name: figures(list(seen_by(run))) for run in runs}
    print(json.dumps(found, indent=2) if arguments.json else "\n".join(_tables(found)))


def figures(seen: list[Seen]) -> dict[str, dict[str, float]]:
    """Return dB by placement and knots, by distance from the training values, and by what shares a scale of 8 bits."""
    knots = {
        f"{name}, K = {count}": min(_knots_db(one, count, *placement) for one in seen)
        for name, placement in PLACEMENTS.items()
        for count in COUNTS
    }
    far = {
        f"{name}, {distance:g} deviations": min(_far_db(one, distance, *placement) for one in seen)
        for name, placement in PLACEMENTS.items()
        if name != "own quantiles"
        for distance in FAR
    }
    scales = {name: min(_rounded_db(one, rounding) for one in seen) for name, rounding in ROUNDINGS.items()}
    return {"knots": knots, "far": far, "scales": scales}


def seen_by(run: RunFolder) -> Iterator[Seen]:
    """Yield what each selection network with real variables is given for the run's check windows."""
    model, windows = run.load_fp32_model(), run.load_check_windows().windows(slice(0, WINDOWS))
    kept: dict[str, tuple[Tensor, Tensor]] = {}

    def keep(name: str, _: nn.Module, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, Tensor]) -> None:
        kept[name] = inputs[0], outputs[1]

    for name, module in model.named_modules():
        if isinstance(module, TabulatedSelection):
            module.register_forward_hook(partial(keep, name))
    scaling = run.load_preprocessing().scaling()
    with torch.no_grad():
        model(*scaling.scale_inputs(windows.static, windows.historical, windows.future, windows.series))
    for name, (x, weights) in kept.items():
        selection = model.get_submodule(name)
        assert isinstance(selection, TabulatedSelection)
        rows = torch.randperm(x[..., 0].numel(), generator=torch.Generator().manual_seed(0))[:ROWS]
        values, shares = (tensor.flatten(0, -2)[rows, : selection.real].double() for tensor in (x, weights))
        if selection.real:
            yield Seen(selection, values, shares)


def values_at(selection: TabulatedSelection, x: Tensor, variable: int) -> Tensor:
    """Return the GRN of a real variable at numbers x [P]: [P, H], in double precision."""
    before = selection.knots
    selection.knots = x.float()
    try:
        return selection.tables()[variable]
    finally:
        selection.knots = before


def _knots_db(seen: Seen, count: int, knots_for: Callable[[int, Tensor], Tensor], interpolate: Interpolate) -> float:
    exact = found = torch.zeros(())
    for variable, (x, share) in enumerate(zip(seen.values.t(), seen.weights.t(), strict=True)):
        knots = knots_for(count, x)
        table = values_at(seen.selection, knots, variable)
        exact = exact + share.unsqueeze(-1) * values_at(seen.selection, x, variable)
        found = found + share.unsqueeze(-1) * interpolate(x, knots, table)
    return _decibels(exact, found)


def _far_db(seen: Seen, distance: float, knots_for: Callable[[int, Tensor], Tensor], interpolate: Interpolate) -> float:
    x = torch.tensor([-distance, distance], dtype=torch.double)
    ratios = []
    for variable in range(seen.selection.real):
        knots = knots_for(DEFAULT, x)
        exact = values_at(seen.selection, x, variable)
        ratios.append(_decibels(exact, interpolate(x, knots, values_at(seen.selection, knots, variable))))
    return min(ratios)


def per_row(table: Tensor) -> Tensor:
    """Round with a scale for each knot."""
    codes, scales = table_codes(table)
    return codes.double() * scales.double().unsqueeze(-1)


def per_column(table: Tensor) -> Tensor:
    """Round with a scale for each variable and column."""
    return per_row(table.t()).t()


def per_variable(table: Tensor) -> Tensor:
    """Round with a scale for each variable."""
    return per_row(table.reshape(1, -1)).view(table.shape)


ROUNDINGS = {"a scale per knot": per_row, "per variable and column": per_column, "per variable": per_variable}


def _rounded_db(seen: Seen, rounding: Callable[[Tensor], Tensor]) -> float:
    exact = found = torch.zeros(())
    knots = knot_values(DEFAULT).double()
    for variable, (x, share) in enumerate(zip(seen.values.t(), seen.weights.t(), strict=True)):
        table = values_at(seen.selection, knots, variable)
        exact = exact + share.unsqueeze(-1) * squashed(x, knots, table)
        found = found + share.unsqueeze(-1) * squashed(x, knots, rounding(table))
    return _decibels(exact, found)


def _decibels(exact: Tensor, found: Tensor) -> float:
    signal = (exact - exact.mean()).square().sum()
    return float(10 * torch.log10(signal / (exact - found).square().sum()))


def _short_run(folder: Path) -> RunFolder:
    values = {"training": {"epochs": 1, "batches_per_epoch": 60}, "model": {"hidden": 32}}
    config = RunConfig.checked(values, where="the benchmark")
    return train(config, runs_dir=folder, name="rentals").folder


def _tables(found: dict[str, dict[str, dict[str, float]]]) -> Iterator[str]:
    for part in ("knots", "far", "scales"):
        yield f"| {part} | {' | '.join(found)} |"
        yield f"| --- |{' ---: |' * len(found)}"
        for case in next(iter(found.values()))[part]:
            yield f"| {case} | {' | '.join(f'{one[part][case]:.1f}' for one in found.values())} |"
        yield ""


if __name__ == "__main__":
    main()
