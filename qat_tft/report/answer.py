"""What a run comes to, in words: against simple forecasts, what integers cost, what checkpointing saved, the check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from qat_tft.evaluation.names import integer_name, quantile_name, risk_text, signed_percent
from qat_tft.report.missing import Missing
from qat_tft.runs import layout
from qat_tft.runs.report import RunReport
from qat_tft.runs.results import RunResults

_NOTICEABLE = 5e-4  # share of q-risk below which a change would be printed as 0.0 %
Tone = Literal["good", "bad", "plain"]


@dataclass(frozen=True)
class Fact:
    """One figure of the answer.

    Attributes:
        title: what it is about.
        value: the figure, or a dash where there is none.
        sentence: what it means.
        tone: whether it speaks for the run.
    """

    title: str
    value: str
    sentence: str
    tone: Tone = "plain"


def answer(report: RunReport, bits: int) -> tuple[Fact, ...]:
    """Return the figures that a reader wants first; `bits` are the fewest of a weight."""
    name = integer_name(bits)
    results = report.results
    return _gain(results), _cost(results, name), _file(report, name, bits), _memory(report), _check(report)


def absences(report: RunReport, name: str, bits: int) -> tuple[Missing, ...]:
    """Return what the run called `name` lacks, each with the command that makes it."""
    found = []
    integers = integer_name(bits)
    if "qat" not in report.results.q_risk:
        what = f"There is no quantization-aware model, and nothing is told of {integers}."
        found.append(Missing(what, f"qat-tft quantize {name}"))
    elif not any(layout.ONNX[kind] in report.sizes for kind in layout.INTEGER.values()):
        found.append(Missing(f"There is no {integers} file.", f"qat-tft export {name} --int8"))  # writes both
    if layout.ONNX["fp32"] not in report.sizes and not any("export" in one.command for one in found):
        found.append(Missing("There is no FP32 ONNX file.", f"qat-tft export {name}"))
    if report.check is None:
        found.append(Missing("No exported file was checked in onnxruntime.", f"qat-tft check --run {name}"))
    if report.results.checkpointing is None:
        what = "What activation checkpointing saves was not measured: the run was trained without it."
        found.append(Missing(what, "qat-tft profile"))
    results = report.results
    untold = {"coverage": results.coverage, "windows": results.windows, "seconds": results.seconds}
    if names := ", ".join(name for name, told in untold.items() if not told):
        found.append(Missing(f"An earlier version wrote the results, which tell nothing of {names}.", "qat-tft train"))
    return tuple(found)


def _gain(results: RunResults) -> Fact:
    gain = results.gain(_last_model(results))
    title = "Against the best simple forecast"
    if gain is None:
        return Fact(title, "\N{EN DASH}", results.sentence())
    simple, level = results.strongest_simple, quantile_name(results.quantiles[results.middle])
    assert simple is not None
    own, other = (risk_text(results.q_risk[name][results.middle]) for name in (_last_model(results), simple))
    sentence = f"q-risk {level} of {own}; {results.named(simple)} has {other}."
    if abs(gain) < _NOTICEABLE:
        return Fact(title, "0.0 %", sentence)
    return Fact(title, signed_percent(-gain), sentence, "good" if gain > 0 else "bad")


def _last_model(results: RunResults) -> str:
    return next(name for name in ("qat", "ptq", "fp32") if name in results.q_risk)


def _cost(results: RunResults, name: str) -> Fact:
    title = f"What {name} costs"
    fp32, qat = (results.q_risk.get(one, (None,) * len(results.quantiles))[results.middle] for one in ("fp32", "qat"))
    if "qat" not in results.q_risk:
        return Fact(title, "\N{EN DASH}", "The run has no quantization-aware model.")
    level = quantile_name(results.quantiles[results.middle])
    if not fp32 or qat is None:
        return Fact(title, "\N{EN DASH}", f"q-risk {level} is undefined on this test part.")
    change = qat / fp32 - 1
    if abs(change) < _NOTICEABLE:
        return Fact(title, "0.0 %", f"{name} leaves q-risk {level} at {risk_text(qat)}.", "good")
    direction = "raises" if change > 0 else "lowers"
    sentence = f"{name} {direction} q-risk {level} from {risk_text(fp32)} to {risk_text(qat)}"
    mean = results.mean_risk("qat"), results.mean_risk("fp32")
    if mean[0] is not None and mean[1] and len(results.quantiles) > 1:
        sentence += f"; over all quantiles it changes by {signed_percent(mean[0] / mean[1] - 1)}"
    return Fact(title, signed_percent(change), f"{sentence}.", "plain" if change > 0 else "good")


def _file(report: RunReport, name: str, bits: int) -> Fact:
    title = f"Size of the {name} file"
    own = report.sizes.get(layout.ONNX[layout.INTEGER[bits]]) or report.sizes.get(layout.ONNX["int8"])
    whole = report.sizes.get(layout.ONNX["fp32"])
    if not own or not whole:
        return Fact(title, "\N{EN DASH}", "It takes an FP32 and an integer file to compare them.")
    sentence = f"Of the FP32 file: {own / 1000:,.0f} KB instead of {whole / 1000:,.0f} KB"
    times = latency(report.check).get("1")
    if times is not None:
        sentence += f", and {times[1]:.2f} ms instead of {times[0]:.2f} ms for one window"
    return Fact(title, f"{own / whole:.0%}", f"{sentence}.", "good" if own < whole else "bad")


def latency(check: Mapping[str, Any] | None) -> dict[str, tuple[float, float]]:
    """Return batch size to the milliseconds of the FP32 and of the integer file, where both were timed."""
    told = (check or {}).get("latency_ms") or {}
    fp32, int8 = told.get("fp32") or {}, told.get("int8") or {}
    return {batch: (fp32[batch], int8[batch]) for batch in fp32 if batch in int8}


def _memory(report: RunReport) -> Fact:
    saved, title = report.results.checkpointing, "Memory saved by checkpointing"
    if saved is None:
        return Fact(title, "\N{EN DASH}", report.memory())
    return Fact(title, f"{saved['saved']:.0%}", report.memory(), "good" if saved["saved"] > 0 else "bad")


def _check(report: RunReport) -> Fact:
    if report.check is None:
        return Fact("Check in onnxruntime", "not made", report.verdict().replace("`", ""))
    passed = bool(report.check.get("passed"))
    reasons = "; ".join(report.check.get("reasons") or ())
    sentence = report.verdict() if passed or not reasons else f"{report.verdict()} {reasons}."
    sentence = sentence.removeprefix("Check in onnxruntime: ").removeprefix("passed ")
    sentence = sentence[:1].upper() + sentence[1:]
    return Fact("Check in onnxruntime", "passed" if passed else "failed", sentence, "good" if passed else "bad")
