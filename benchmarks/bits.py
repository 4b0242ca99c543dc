"""Weights of 4 and 2 bits on real sets: what calibration alone loses, and what quantization-aware training wins back.

    python benchmarks/bits.py --data FOLDER [--sets A,B] [--seeds N] [--more-seeds A,B] [--bits 4,2] [--jobs N]
        [--runs FOLDER] [--wide] [--json FILE]

For each set and seed the floating-point model is trained once, as in benchmarks/forecasts.py, and quantized anew for
each number of bits by `qat-tft quantize`. Compared are FP32, FP32 trained on for as many steps as QAT (the control),
plain PTQ (each weight's largest magnitude is its scale), the best PTQ (scales of the smallest squared error, the best
of the calibrators), and QAT. --wide trains a wide table and compares bytes, speed and q-risk of its files as well
(benchmarks/sides/wide_table.py). What is trained already is taken as it is, runs of benchmarks/forecasts.py as well.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported, here and in every process started from here

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sides.bits_runs import BEST, CONTINUED, FP32, PLAIN, QAT, Quantized, quantized, trained
from sides.bits_twins import peak_ratio, step_ratio, twins_are_equal
from sides.figure_table import table_of
from sides.forecast_sets import FORECAST_SETS
from sides.wide_table import wide_figures

MODELS = (FP32, CONTINUED, PLAIN, BEST, QAT)
FIVE = ("bike_sharing_hourly", "vic_electricity")

KEYS = {
    "recovered": "loss of plain PTQ that QAT wins back",
    "recovered_best": "loss of the best PTQ that QAT wins back",
    "qat_over_fp32": "mean q-risk, QAT / FP32",
    "qat_over_best": "mean q-risk, QAT / best PTQ",
    "qat_over_continued": "mean q-risk, QAT / FP32 trained on",
    "twin_equal": "files equal to their twins in 8 bits, bit for bit",
    "qat_time_ratio": "time of a step, QAT at 4 bits with distillation / FP32",
    "peak_ratio": "live tensors of a QAT step, 4 bits / 8, all recomputed, 225 columns",
}
"""Figures of the table that has one number a row."""

Scores = Mapping[str, Mapping[int, Sequence[Quantized]]]
"""Set to bits to what was measured of each seed."""


def main() -> None:
    """Measure and print."""
    arguments = _arguments()
    if arguments.data is None and not arguments.wide:
        print("Nothing is measured without --data, the folder of the sets, or --wide")
        return
    names = [] if arguments.data is None else _names(arguments.sets, FORECAST_SETS)
    bits = [int(one) for one in arguments.bits.split(",")]
    found = measure(names, bits, arguments)
    result = figures(found)
    if names:
        first = found[names[0]][bits[0]][0].run
        result["twin_equal"] = twins_are_equal(
            [one.run for by_bits in found.values() for (one, *_) in by_bits.values()]
        )
        result["qat_time_ratio"] = step_ratio(first)
        result["peak_ratio"] = peak_ratio()
    if arguments.wide:
        result.update(wide_figures(arguments.runs))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")
    print(
        "\n".join(
            [*model_table(found), *table_of(result, {key: words for key, words in KEYS.items() if key in result})]
        )
    )
    if arguments.wide:
        print(
            "\n".join(
                table_of(
                    result,
                    {
                        "file_ratio": "bytes, 4-bit file / FP32 file of the exact form",
                        "speedup": "time, FP32 file of the exact form / 4-bit file",
                        "wide": "wide table",
                    },
                )
            )
        )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the sets")
    parser.add_argument("--sets", help=f"some of {','.join(FORECAST_SETS)} (default: all)")
    parser.add_argument("--seeds", type=int, default=3, help="runs on each set (default: %(default)s)")
    parser.add_argument("--more-seeds", default=",".join(FIVE), help="sets with five seeds (default: %(default)s)")
    parser.add_argument("--bits", default="4,2", help="default: %(default)s")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, of one thread each (default: %(default)s)")
    parser.add_argument("--runs", type=Path, default=Path("runs/bits-benchmark"), help="default: %(default)s")
    parser.add_argument("--wide", action="store_true", help="measure the wide table as well")
    parser.add_argument("--json", type=Path, help="file for the figures")
    return parser.parse_args()


def _names(given: str | None, known: Mapping[str, object]) -> list[str]:
    names = given.split(",") if given else list(known)
    if unknown := [name for name in names if name not in known]:
        sys.exit(f"there is no set {unknown[0]}: choose from {', '.join(known)}")
    return names


def measure(names: Sequence[str], bits: Sequence[int], arguments: argparse.Namespace) -> Scores:
    """Train and quantize every set, seed and number of bits."""
    arguments.runs.mkdir(parents=True, exist_ok=True)
    seeds = {
        name: range(max(arguments.seeds, 5) if name in arguments.more_seeds else arguments.seeds) for name in names
    }
    wanted = [(name, seed) for name in names for seed in seeds[name]]

    def of(one: tuple[str, int]) -> dict[int, Quantized]:
        run = trained(FORECAST_SETS[one[0]], arguments.data, arguments.runs, one[1])
        return {count: quantized(run, count, arguments.runs) for count in bits}

    with ThreadPoolExecutor(arguments.jobs) as pool:
        found = dict(zip(wanted, pool.map(of, wanted), strict=True))
    return {name: {count: [found[name, seed][count] for seed in seeds[name]] for count in bits} for name in names}


def figures(found: Scores) -> dict[str, Any]:
    """Return every figure that is made of q-risks; a share of a loss is None where the loss is within its spread."""
    q_risk: dict[str, Any] = {}
    spread: dict[str, Any] = {}
    ratios: dict[str, dict[str, dict[str, float | None]]] = {
        key: {name: {} for name in found}
        for key in ("recovered", "recovered_best", "qat_over_fp32", "qat_over_best", "qat_over_continued")
    }
    for name, by_bits in found.items():
        q_risk[name], spread[name] = {}, {}
        for bits, seeds in by_bits.items():
            key = str(bits)
            q_risk[name][key] = {model: _over_seeds(seeds, model, statistics.fmean) for model in MODELS}
            spread[name][key] = {model: _over_seeds(seeds, model, statistics.stdev) for model in MODELS}
            ratios["recovered"][name][key] = recovered(seeds, PLAIN)
            ratios["recovered_best"][name][key] = recovered(seeds, BEST)
            for figure, other in (("fp32", FP32), ("best", BEST), ("continued", CONTINUED)):
                ratios[f"qat_over_{figure}"][name][key] = _mean(seeds, QAT) / _mean(seeds, other)
    return {"q_risk": q_risk, "spread": spread, **ratios}


def recovered(seeds: Sequence[Quantized], ptq: str) -> float | None:
    """Return the share of a PTQ's loss against FP32 that QAT wins back, of means over the seeds.

    None where the loss is not above twice its standard deviation over the seeds.
    """
    losses = [one.risk(ptq) - one.risk(FP32) for one in seeds]
    loss = statistics.fmean(losses)
    if len(seeds) < 2 or loss <= 2 * statistics.stdev(losses):
        return None
    return (_mean(seeds, ptq) - _mean(seeds, QAT)) / loss


def _mean(seeds: Sequence[Quantized], model: str) -> float:
    return statistics.fmean(one.risk(model) for one in seeds)


def _over_seeds(seeds: Sequence[Quantized], model: str, merge: Any) -> dict[str, float | None]:
    levels = seeds[0].q_risk[model]
    return {
        level: merge([one.q_risk[model][level] for one in seeds]) if len(seeds) > 1 else seeds[0].q_risk[model][level]
        for level in levels
    }


def model_table(found: Scores) -> Iterator[str]:
    """Yield a row for each set and number of bits: the mean q-risk of every model, relative to FP32, and its range."""
    yield "| set | bits | seeds | FP32 | FP32 trained on | plain PTQ | best PTQ | QAT |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for name, by_bits in found.items():
        for bits, seeds in by_bits.items():
            cells = [f"{_mean(seeds, FP32):.5f}"]
            for model in MODELS[1:]:
                changes = [one.risk(model) / one.risk(FP32) - 1 for one in seeds]
                cells.append(
                    f"{_mean(seeds, model) / _mean(seeds, FP32) - 1:+.2%} ({min(changes):+.1%} to {max(changes):+.1%})"
                )
            yield f"| {name} | {bits} | {len(seeds)} | {' | '.join(cells)} |"
    yield ""


if __name__ == "__main__":
    main()
