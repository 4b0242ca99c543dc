"""Everything that a check measures, one declaration each: name, how it is measured, how it reads, and its limit.

A new metric is a new entry of `METRICS` and nothing else: the report prints it, `check.json` holds it under its name,
and a value beyond its limit fails the check.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from qat_tft.export.verify.evidence import Evidence, FileFacts

Value = float | Mapping[str, float | None] | None
"""One number, or one for each of several cases, be it none; None where it could not be measured."""

SQNR_DB = 55.0
"""Least signal to quantization noise ratio of a file that rounds where its model does: single values that fall on the
other side of a rounding boundary leave 64 dB and more, a bias that is off by 0.002 leaves 59."""
DYNAMIC_SQNR_DB = 25.0
"""The same where LSTMs round within ranges of their own (``--lstm dynamic``): the file is close, and not equal."""
OTHER_SQNR_DB = 40.0
"""The same in a runtime that rounds sums and products in a way of its own."""
STEPS = 2.0
"""Most that optimizations, or the size of the batch, may change a quantile, in output steps."""
LAYER_STEPS = 1.0
"""Most that a value may differ where a layer gets the QAT layer's input, in the layer's steps."""
LAYER_OFF = 1e-4
"""Share of a layer's values that may differ at all, one row aside."""
FILE_SHARE = 0.35
"""Most that the INT8 file may hold of the FP32 file's bytes, those aside that do not shrink with the weights."""
RISK_OVER_QAT, RISK_OVER_FP32 = 0.01, 0.05
"""Most that the mean q-risk may lie above that of a model, as a share."""

Group = Literal["accuracy", "runtimes", "size", "products"]


@dataclass(frozen=True)
class Limit:
    """What a value must keep to."""

    sign: Literal[">=", "<=", "<"]
    bound: float

    def holds(self, value: float) -> bool:
        """Whether a value keeps to it; a NaN breaks no limit."""
        if math.isnan(value):
            return True
        return {">=": value >= self.bound, "<=": value <= self.bound, "<": value < self.bound}[self.sign]


@dataclass(frozen=True)
class Metric:
    """One thing that a check measures.

    Attributes:
        name: key in ``check.json``.
        text: what the table calls it; ``{case}`` stands for the case.
        measured: the value, from what was found.
        unit: dB, steps, %, or nothing.
        digits: how many the table shows after the point; None: three that count.
        limit: what the value must keep to in a file of this kind; None where it is told and not judged.
        group: the table that shows it; None for what other tables show already.
        breach: what is said of a value beyond its limit, with ``{case}``, ``{value}`` and ``{bound}``.
        not_finite: what is said where there is a limit and no finite value; empty where that is no breach.
    """

    name: str
    text: str
    measured: Callable[[Evidence], Value]
    unit: str = ""
    digits: int | None = 2
    limit: Callable[[FileFacts], Limit | None] = field(default=lambda _: None)
    group: Group | None = "accuracy"
    breach: str = "{text} is {value}, {bound} required"
    not_finite: str = ""

    def cases(self, value: Value) -> dict[str, float | None]:
        """A value by case; a single one has the case ""."""
        return dict(value) if isinstance(value, Mapping) else {"": value}

    def breaches(self, value: Value, facts: FileFacts) -> Iterator[str]:
        """Yield a clause for each case beyond the limit."""
        limit = self.limit(facts)
        if limit is None:
            return
        for case, number in self.cases(value).items():
            words = {"case": case, "text": self.text.format(case=case), "bound": self.required(limit)}
            if number is None or math.isinf(number):
                if self.not_finite and (number is None or not limit.holds(number)):
                    yield self.not_finite.format(**words)
            elif not limit.holds(number):
                yield self.breach.format(**words, value=self.shown(number))

    def shown(self, number: float | None) -> str:
        """A number with its unit."""
        if number is None:
            return "-"
        if self.unit == "%":
            return f"{number:.{self.digits}%}"
        return f"{number:.{self.digits}f} {self.unit}".strip() if self.digits is not None else f"{number:.3g}"

    def required(self, limit: Limit) -> str:
        """A limit with the unit, in no more digits than it has."""
        return f"{100 * limit.bound:g}%" if self.unit == "%" else f"{limit.bound:g} {self.unit}".strip()


def _at_least_sqnr(facts: FileFacts) -> Limit:
    return Limit(">=", SQNR_DB if facts.exact else DYNAMIC_SQNR_DB)


def _where_exact(sign: Literal[">=", "<=", "<"], bound: float) -> Callable[[FileFacts], Limit | None]:
    return lambda facts: Limit(sign, bound) if facts.exact else None


def _in_steps(*, of_dynamic: bool) -> Callable[[FileFacts], Limit | None]:
    # A step is one code of the head's input, which integer storage does not round.
    return lambda facts: Limit("<=", STEPS) if facts.products == "integer" and (facts.exact or of_dynamic) else None


def _always(sign: Literal[">=", "<=", "<"], bound: float) -> Callable[[FileFacts], Limit | None]:
    return lambda facts: Limit(sign, bound)


def _in_int8(sign: Literal[">=", "<=", "<"], bound: float) -> Callable[[FileFacts], Limit | None]:
    return lambda facts: Limit(sign, bound) if facts.kind == "int8" else None


def _on_integers(sign: Literal[">=", "<=", "<"], bound: float) -> Callable[[FileFacts], Limit | None]:
    # Integer storage promises no product on integers.
    return lambda facts: Limit(sign, bound) if facts.kind == "int8" and facts.products == "integer" else None


def _packed(facts: FileFacts) -> Limit | None:
    return Limit("<=", 0) if facts.packed else None


def _unsaturated(facts: FileFacts) -> Limit | None:
    return Limit("<=", 0) if facts.pairs_fit else None


def _largest_layer_steps(found: Evidence) -> Value:
    steps = [steps for layer in found.exact_layers for steps in layer.file_steps.values()]
    return max(math.inf if step is None else step for step in steps) if steps else {}


def _worst_layer_off(found: Evidence) -> dict[str, float | None]:
    off = {
        layer.name: (max(layer.file_off_beyond.values()), max(layer.file_off.values())) for layer in found.exact_layers
    }
    worst = max(off, key=off.__getitem__, default=None)
    return {} if worst is None else {worst: off[worst][0]}


def _coarsest(found: Evidence) -> dict[str, float | None]:
    if not found.layers:
        return {}
    worst = min(found.layers, key=lambda layer: -math.inf if layer.qat_db is None else layer.qat_db)
    return {worst.name: worst.qat_db}


METRICS: tuple[Metric, ...] = (
    Metric("tensors_compared", "tensors compared with the run's", lambda found: found.tensors.compared, digits=0),
    Metric(
        "tensors_differing",
        "those that differ",
        lambda found: len(found.tensors.differing) + len(found.tensors.missing),
        digits=0,
        limit=_always("<=", 0),
        breach="tensors that are not those of the run: {value}",
    ),
    Metric(
        "sqnr_db",
        "SQNR {case}",
        lambda found: found.sqnr_db,
        unit="dB",
        limit=_at_least_sqnr,
        breach="SQNR {case} is {value}, below {bound}",
        not_finite="forecasts {case} are not finite",
    ),
    Metric(
        "sqnr_by_batch",
        "SQNR at batch {case}",
        lambda found: found.sqnr_by_batch,
        unit="dB",
        limit=_at_least_sqnr,
        breach="SQNR at batch {case} is {value}, below {bound}",
        not_finite="forecasts at batch {case} are not finite",
    ),
    Metric("coarsest_layer_db", "coarsest layer, {case}", _coarsest, unit="dB"),
    Metric(
        "layer_max_steps",
        "layer by layer, largest",
        _largest_layer_steps,
        unit="steps",
        limit=_always("<=", LAYER_STEPS),
        breach="a layer is off by {value} with the input that the QAT layer got, more than {bound}",
        not_finite="a layer is not finite with the input that the QAT layer got",
    ),
    Metric(
        "layer_off",
        "differ beyond one row, {case}",
        _worst_layer_off,
        unit="%",
        digits=4,
        limit=_always("<", LAYER_OFF),
        breach="{value} of the values of the layer {case} differ, in more than one row; less than {bound} allowed",
    ),
    Metric("max_error_steps", "largest error", lambda found: found.max_error_steps, unit="steps"),
    Metric(
        "optimization_steps",
        "changed by optimizations",
        lambda found: found.optimization_steps,
        unit="steps",
        limit=_in_steps(of_dynamic=True),
        breach="a forecast changes by {value} with optimizations, more than {bound}",
    ),
    Metric(
        "batch_steps",
        "changed by the batch size",
        lambda found: found.batch_steps,
        unit="steps",
        limit=_in_steps(of_dynamic=False),
        breach="a forecast changes by {value} with the batch size, more than {bound}",
    ),
    Metric(
        "batch_mates_change",
        "changed by batch mates",
        lambda found: found.batch_mates_change,
        digits=None,
        limit=_where_exact("<=", 0.0),
        breach="a forecast changes by {value} with its batch mates",
        not_finite="a forecast is not finite beside other batch mates",
    ),
    Metric(
        "explanations_sqnr_db",
        "SQNR of {case}",
        lambda found: found.explanations_db,
        unit="dB",
        limit=_at_least_sqnr,
        breach="SQNR of the output {case} is {value}, below {bound}",
        not_finite="the output {case} is not finite",
    ),
    Metric("quantile_crossings", "forecasts with crossing quantiles", lambda found: found.crossings, digits=0),
    Metric(
        "reference_sqnr_db",
        "SQNR in {case}",
        lambda found: {one.name: one.sqnr_db for one in found.runtimes if not one.skipped and one.by_definition},
        unit="dB",
        limit=_at_least_sqnr,
        group=None,
        breach="SQNR in {case} is {value}, below {bound}",
        not_finite="SQNR in {case} is not finite",
    ),
    Metric(
        "other_runtimes_sqnr_db",
        "SQNR in {case}",
        lambda found: {one.name: one.sqnr_db for one in found.runtimes if not one.skipped and not one.by_definition},
        unit="dB",
        limit=_always(">=", OTHER_SQNR_DB),
        group=None,
        breach="SQNR in {case} is {value}, below {bound}",
        not_finite="SQNR in {case} is not finite",
    ),
    Metric(
        "risk_over_qat",
        "mean q-risk above the QAT model's",
        lambda found: found.risk_over("qat"),
        unit="%",
        limit=_in_int8("<=", RISK_OVER_QAT),
        group=None,
        breach="the mean q-risk is {value} above that of the QAT model, {bound} allowed",
    ),
    Metric(
        "risk_over_fp32",
        "mean q-risk above the FP32 model's",
        lambda found: found.risk_over("fp32"),
        unit="%",
        limit=_in_int8("<=", RISK_OVER_FP32),
        group=None,
        breach="the mean q-risk is {value} above that of the FP32 model, {bound} allowed",
    ),
    Metric(
        "file_ratio",
        "INT8 file / FP32 file",
        lambda found: found.file_ratio,
        unit="%",
        digits=0,
        group=None,
    ),
    Metric(
        "weights_ratio",
        "the same without the graph and what both have alike",
        lambda found: found.weights_ratio,
        unit="%",
        digits=0,
        limit=_in_int8("<=", FILE_SHARE),
        group=None,
        breach="the INT8 file's weights have {value} of the bytes of the FP32 file's, more than {bound}",
    ),
    Metric(
        "integer_products",
        "products on integers",
        lambda found: sum(found.operators.integer.values()),
        digits=0,
        limit=_on_integers(">=", 1),
        group=None,
        breach="onnxruntime computes no product of the file on integers",
    ),
    Metric(
        "twin_differing",
        "values that differ from the same file in 8 bits",
        lambda found: None if found.twin is None else found.twin.differing,
        digits=0,
        limit=_packed,
        breach="{value} forecast values differ from those of the same file with all codes in 8 bits",
    ),
    Metric(
        "packed_tensors",
        "tensors unpacked at every call",
        lambda found: None if found.twin is None else found.twin.packed,
        digits=0,
        limit=_packed,
        group=None,
        breach="onnxruntime unpacks {value} tensors of fewer than 8 bits at every call",
    ),
    Metric(
        "missing_products",
        "products on integers that the same file in 8 bits has",
        lambda found: None if found.twin is None else found.twin.missing_products,
        digits=0,
        limit=_packed,
        group=None,
        breach="onnxruntime computes {value} products fewer on integers than of the same file with all codes in 8 bits",
    ),
    Metric(
        "integer_share",
        "multiply-accumulates on integers",
        lambda found: found.integer_share,
        unit="%",
        digits=0,
        group="products",
    ),
    Metric(
        "saturating_products",
        "products that could saturate without VNNI",
        lambda found: found.saturating_products,
        digits=0,
        limit=_unsaturated,
        group="products",
        breach="{value} products could saturate on a CPU without VNNI, which the target allows",
    ),
)
