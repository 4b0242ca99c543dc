"""Forecast quality on real sets: our models beside simple forecasts and the TFTs of three other libraries.

    python benchmarks/forecasts.py --data FOLDER [--sets A,B] [--seeds N] [--peers FOLDER] [--kept FOLDER]
        [--runs FOLDER] [--json FILE]

Every model forecasts the same windows of the same rows (benchmarks/sides/forecast_sets.py), and all are scored by one
function. Ours are trained by `qat-tft train` (options: benchmarks/sides/forecast_options.py), the peers in the way each
library recommends, with the same hidden size, batch, and number of steps; of both, the weights with the lowest
validation loss forecast. Scores of the peers are kept as small files, which come from here the next time: --peers names
a folder of environments, pytorch-forecasting/, darts/ and neuralforecast/, to make those that are missing. Without
--data nothing is measured; docs/examples.md and docs/data.md say where the sets come from.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported, here and in every process started from here

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sides.figure_table import table_of
from sides.forecast_kept import PEERS, Keeper, Kept, Wanted
from sides.forecast_ours import FP32, INT8, QAT, our_scores
from sides.forecast_rows import read_rows
from sides.forecast_scores import LEVELS, Score, score
from sides.forecast_sets import FORECAST_SETS
from sides.forecast_simple import simple_forecasts
from sides.forecast_times import TimeRatios, time_ratios

KEPT = Path(__file__).resolve().parent / "kept"
TIMED = "ett_h1"

KEYS = {
    "ratio_to_best_peer": "q-risk, ours (QAT) / best peer",
    "geometric_mean_ratio_to_peers": "the same, geometric mean over the sets",
    "ratio_to_best_simple": "q-risk, ours (QAT) / best simple forecast",
    "int8_ratio": "q-risk, INT8 file / FP32 model",
    "step_time_ratio": "time of a training step, defaults / plain TFT",
    "file_time_ratio": "forecast of the INT8 file, defaults / plain TFT",
}
"""Figures of the table that has one number a row."""


@dataclass(frozen=True)
class SetScores:
    """The scores on one set.

    Attributes:
        simple: forecast to its score.
        ours: for each seed, model to its score.
        peers: library to what it reached; those that were neither kept nor trained are missing.
    """

    simple: dict[str, Score]
    ours: tuple[dict[str, Score], ...]
    peers: dict[str, Kept]

    @property
    def models(self) -> dict[str, tuple[Score, ...]]:
        """Every model to its scores, one for each seed that it was trained from."""
        simple = {name: (one,) for name, one in self.simple.items()}
        ours = {name: tuple(seed[name] for seed in self.ours) for name in self.ours[0]}
        return {**simple, **ours, **{name: (kept.score,) for name, kept in self.peers.items()}}

    @property
    def risk(self) -> float:
        """Mean q-risk of our quantization-aware model, over quantiles and seeds."""
        return statistics.fmean(seed[QAT].risk for seed in self.ours)

    @property
    def ratio_to_best_peer(self) -> float | None:
        """Our mean q-risk over that of the best peer; None without peers."""
        best = min((kept.score.risk for kept in self.peers.values()), default=None)
        return None if best is None else self.risk / best

    @property
    def ratio_to_best_simple(self) -> float:
        """Our mean q-risk over that of the best simple forecast."""
        return self.risk / min(one.risk for one in self.simple.values())

    @property
    def int8_ratio(self) -> dict[str, float]:
        """Quantile to mean q-risk of the INT8 file over that of the floating-point model."""

        def mean(model: str, level: str) -> float:
            return statistics.fmean(seed[model].q_risk[level] for seed in self.ours)

        return {level: mean(INT8, level) / mean(FP32, level) for level in LEVELS}


def main() -> None:
    """Measure and print."""
    arguments = _arguments()
    if arguments.data is None:
        print("Nothing is measured without --data, the folder of the sets")
        return
    names = arguments.sets.split(",") if arguments.sets else list(FORECAST_SETS)
    try:
        check_sets(names, arguments.data)
        keeper = Keeper(arguments.kept, arguments.peers)
    except (FileNotFoundError, ValueError) as problem:
        sys.exit(str(problem))
    found = {name: measure(name, arguments, keeper) for name in names}
    timed = time_ratios(FORECAST_SETS[TIMED], arguments.data, arguments.runs) if TIMED in names else None
    result = figures(found, timed)
    if arguments.json:
        arguments.json.write_text(json.dumps({**result, "peers": peers_of(found)}, indent=2) + "\n")
    print("\n".join([*model_tables(found), *figure_table(result)]))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the sets")
    parser.add_argument("--sets", help=f"some of {','.join(FORECAST_SETS)} (default: all)")
    parser.add_argument("--seeds", type=int, default=3, help="runs of ours on each set (default: %(default)s)")
    parser.add_argument("--peers", type=Path, help="folder of the peers' environments")
    parser.add_argument("--kept", type=Path, default=KEPT, help="folder of the peers' scores (default: %(default)s)")
    parser.add_argument("--runs", type=Path, default=Path("runs/forecasts-benchmark"), help="default: %(default)s")
    parser.add_argument("--json", type=Path, help="file for the figures")
    return parser.parse_args()


def check_sets(names: list[str], data: Path) -> None:
    """Check that sets are known and their files there.

    Raises:
        ValueError: there is no set of that name.
        FileNotFoundError: a file is missing.
    """
    for name in names:
        if name not in FORECAST_SETS:
            raise ValueError(f"there is no set {name}: choose from {', '.join(FORECAST_SETS)}")
        if not (data / f"{name}.parquet").exists():
            raise FileNotFoundError(f"{data} holds no {name}.parquet")


def measure(name: str, arguments: argparse.Namespace, keeper: Keeper) -> SetScores:
    """Score every model on a set; what is trained or kept already is taken as it is."""
    print(f"Forecasts of {name}", file=sys.stderr)
    one = FORECAST_SETS[name]
    rows = read_rows(one, arguments.data)
    kept = {peer: keeper.result(Wanted(peer, one, arguments.data)) for peer in PEERS}
    arguments.runs.mkdir(parents=True, exist_ok=True)
    return SetScores(
        simple={forecast: score(rows, quantiles) for forecast, quantiles in simple_forecasts(rows).items()},
        ours=tuple(our_scores(rows, arguments.data, arguments.runs, seed) for seed in range(arguments.seeds)),
        peers={peer: result for peer, result in kept.items() if result is not None},
    )


def figures(found: Mapping[str, SetScores], timed: TimeRatios | None = None) -> dict[str, Any]:
    """Return every figure; None where there are no peers, or no times."""
    by_level = {
        key: {
            name: {model: _mean_by_level([getattr(one, key) for one in scores]) for model, scores in one.models.items()}
            for name, one in found.items()
        }
        for key in ("q_risk", "coverage")
    }
    means = {
        key: {
            name: {model: statistics.fmean(getattr(one, key) for one in scores) for model, scores in one.models.items()}
            for name, one in found.items()
        }
        for key in ("mase", "mae")
    }
    to_peers = {name: one.ratio_to_best_peer for name, one in found.items()}
    beside_peers = [ratio for ratio in to_peers.values() if ratio is not None]
    return {
        **by_level,
        **means,
        "spread": {name: _spread(one) for name, one in found.items()},
        "ratio_to_best_peer": to_peers,
        "ratio_to_best_simple": {name: one.ratio_to_best_simple for name, one in found.items()},
        "geometric_mean_ratio_to_peers": statistics.geometric_mean(beside_peers) if beside_peers else None,
        "int8_ratio": {name: one.int8_ratio for name, one in found.items()},
        "step_time_ratio": None if timed is None else timed.step,
        "file_time_ratio": None if timed is None else timed.file,
    }


def _mean_by_level(values: list[dict[str, float]]) -> dict[str, float]:
    return {level: statistics.fmean(one[level] for one in values) for level in LEVELS}


def _spread(one: SetScores) -> dict[str, list[float]]:
    """Return the lowest and the highest mean q-risk over the seeds of each of our models."""
    risks = {model: [seed[model].risk for seed in one.ours] for model in one.ours[0]}
    return {model: [min(values), max(values)] for model, values in risks.items()}


def peers_of(found: Mapping[str, SetScores]) -> dict[str, dict[str, Any]]:
    """Return version and CPU seconds of each peer by set, and its score, as plain values."""
    return {name: {peer: asdict(kept) for peer, kept in one.peers.items()} for name, one in found.items()}


def model_tables(found: Mapping[str, SetScores]) -> Iterator[str]:
    """Yield a table for each set: every model's scores, the mean over its seeds."""
    quantiles = [f"P{float(level) * 100:.0f}" for level in LEVELS]
    columns = [*quantiles, "mean", "seeds", *(f"below {quantile}" for quantile in quantiles), "MASE", "MAE"]
    for name, one in found.items():
        windows = next(iter(one.simple.values())).windows
        yield f"| {name}, {windows:,} windows | {' | '.join(columns)} |"
        yield "| --- " + "| ---: " * len(columns) + "|"
        for model, scores in one.models.items():
            label = f"{model} {one.peers[model].version}" if model in one.peers else model
            yield f"| {' | '.join([label, *_cells(scores)])} |"
        yield ""


def _cells(scores: tuple[Score, ...]) -> Iterator[str]:
    risks, coverage = (_mean_by_level([getattr(one, key) for one in scores]) for key in ("q_risk", "coverage"))
    yield from (f"{risks[level]:.4f}" for level in LEVELS)
    yield f"{statistics.fmean(one.risk for one in scores):.4f}"
    yield f"{min(one.risk for one in scores):.4f} to {max(one.risk for one in scores):.4f}" if len(scores) > 1 else ""
    yield from (f"{coverage[level]:.3f}" for level in LEVELS)
    yield f"{statistics.fmean(one.mase for one in scores):.3f}"
    yield f"{statistics.fmean(one.mae for one in scores):.4g}"


def figure_table(result: Mapping[str, Any]) -> Iterator[str]:
    """Return the lines of the figures that are one number each."""
    return table_of(result, KEYS)


if __name__ == "__main__":
    main()
