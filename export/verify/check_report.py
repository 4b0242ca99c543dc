"""What a check found: plain numbers that render as JSON and as tables."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.table import Column, Table
from rich.text import Text

from qat_tft.errors import CheckFailed, some_of
from qat_tft.evaluation.names import integer_name
from qat_tft.export.build.export_report import GRAPH_IS_LARGER, float_table
from qat_tft.export.verify.evidence import Evidence, FileFacts
from qat_tft.export.verify.metrics import METRICS, Group, Value
from qat_tft.quantization.products import INTEGER_STORAGE
from qat_tft.runs import layout

_DYNAMIC = (
    "The LSTMs of this file round within ranges that they take from each batch (--lstm dynamic): a forecast depends "
    "on the other rows of its batch, and the file is close to the QAT model instead of equal to it."
)
_MOST_SENTENCES = 5


@dataclass(frozen=True)
class CheckReport:
    """The result of ``check_model``. A number that could not be measured is None.

    Attributes:
        model: the file; facts: its kind, its target profile, and what follows for its limits.
        contract: why its values were not looked at: names, shapes or weights that are not the run's.
        found: everything that was measured.
        lstm: ``weights``, or ``dynamic`` where rows of a batch influence each other and the file is no exact image.
        rows: windows compared; seconds: wall time; threads: of onnxruntime in all measurements.
        float_layers: names of the layers and operations that stay in floating point, by the reason.
        missing_layers: layers of the QAT model of which the graph holds no product.
        quantized_constants: constants that the graph rounds at every call instead of storing them as int8.
        latency_ms: ``fp32`` and ``int8``, median milliseconds by batch size.
        caveat: what this machine cannot show of the file, and why; empty where it can show everything.
        unkept: why the report could not be written to the run folder; empty where it was.
    """

    model: Path
    facts: FileFacts
    contract: tuple[str, ...] = ()
    found: Evidence = field(default_factory=Evidence)
    lstm: str = "weights"
    rows: int = 0
    seconds: float = 0.0
    threads: int = 1
    float_layers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    missing_layers: tuple[str, ...] = ()
    quantized_constants: tuple[str, ...] = ()
    latency_ms: Mapping[str, Mapping[str, float] | None] = field(default_factory=dict)
    caveat: str = ""
    unkept: str = ""

    @property
    def values(self) -> dict[str, Value]:
        """The value of each metric by its name; empty where the file's values were not looked at."""
        return {} if self.contract else {metric.name: metric.measured(self.found) for metric in METRICS}

    @property
    def reasons(self) -> tuple[str, ...]:
        """Everything that speaks against the file, as clauses with the measured number and the limit."""
        return self.contract or tuple(self._breaches())

    @property
    def passed(self) -> bool:
        """Whether nothing speaks against the file."""
        return not self.reasons

    def require_passed(self) -> None:
        """Raise CheckFailed with every reason unless the check passed."""
        if self.reasons:
            raise CheckFailed(f"{self.model} failed the check: " + "; ".join(self.reasons))

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values only; ``passed`` comes first."""
        found = self.found
        return {
            "passed": self.passed,
            "model": str(self.model),
            "kind": self.facts.kind,
            "target": self.facts.target,
            "reasons": [*self.reasons],
            "lstm": self.lstm,
            "products": self.facts.products,
            "weight_bits": self.facts.bits,
            "needs_onnxruntime": self.facts.needs_onnxruntime,
            "rows": self.rows,
            "seconds": self.seconds,
            "threads": self.threads,
            "caveat": self.caveat,
            **{name: _plain(value) for name, value in self.values.items()},
            "tensors": found.tensors.to_json(),
            "q_risk": {model: risks and dict(risks) for model, risks in found.q_risk.items()},
            "bytes": dict(found.bytes),
            "integer_ops": found.operators.integer,
            "float_products": found.operators.floating,
            "float_layers": {reason: [*names] for reason, names in self.float_layers.items()},
            "layers": [layer.to_json() for layer in found.layers],
            "missing_layers": [*self.missing_layers],
            "quantized_constants": [*self.quantized_constants],
            "twin": found.twin and found.twin.to_json(),
            "runtimes": [runtime.to_json() for runtime in found.runtimes],
            "latency_ms": {kind: one and dict(one) for kind, one in self.latency_ms.items()},
        }

    def tables(self) -> list[RenderableType]:
        """The verdict, the accuracy, the q-risk, and size and speed."""
        parts = [self._accuracy(), self._runtimes(), self._risk(), self._size_and_speed(), self._products()]
        parts.append(float_table(self.float_layers))
        notes = [] if self.facts.exact else [Text(_DYNAMIC, style="yellow")]
        notes += [Text(f"Note: {note}.", style="yellow") for note in (*self._storage(), self.caveat) if note]
        return [*(part for part in parts if part.row_count), *notes, self._verdict()]

    def _storage(self) -> Iterator[str]:
        if self.found.twin is not None:
            yield (
                f"weights have as few as {self.facts.bits} bits: the file needs onnxruntime "
                f"{self.facts.needs_onnxruntime} or later"
            )
        if self.facts.products == "float":
            yield f"the file has {INTEGER_STORAGE}"
        ratio = self.found.file_ratio
        if ratio is not None and ratio >= 1.0:
            name = integer_name(self.facts.bits)
            yield f"the {name} file has {ratio:.0%} of the FP32 file's bytes: {GRAPH_IS_LARGER}"

    def layer_table(self) -> Table:
        """Every layer with integer weights, worst first."""
        table = Table(Column("layer, worst first", overflow="fold"), "rounding", "file", "error", "differ")
        table.title = "Each layer with integer weights, with the same input on both sides"
        table.caption = (
            "rounding: SQNR of the QAT layer against itself in floating point. file: SQNR of the file's layer against "
            "the QAT layer; error: their largest difference, in steps of that layer; differ: share of the values."
        )
        for layer in self.found.layers:
            ratios = [*layer.file_db.values()]
            steps = [*layer.file_steps.values()]
            ratio = "not finite" if None in ratios else f"{min(ratios):.1f} dB"  # type: ignore[type-var]
            error = "not finite" if None in steps else f"{max(steps):.2f}"  # type: ignore[type-var]
            rounding = "-" if layer.qat_db is None else f"{layer.qat_db:.1f} dB"
            table.add_row(layer.name, rounding, ratio, error, f"{max(layer.file_off.values()):.2%}")
        return table

    def _breaches(self) -> Iterator[str]:
        values = self.values
        for metric in METRICS:
            yield from metric.breaches(values[metric.name], self.facts)
            if metric.name == "tensors_differing":
                yield from self._tensor_sentences()
        if self.facts.kind == "int8" and self.facts.products == "integer" and self.found.file_ratio is None:
            yield f"there is no {layout.ONNX['fp32']} beside the file to compare it with"
        for name in self.missing_layers:
            yield f"the graph holds no product of the layer {name} with integer weights: export it again"
        for name in self.quantized_constants:
            yield f"the constant {name} is stored as float and rounded at every call"

    def _tensor_sentences(self) -> Iterator[str]:
        tensors = self.found.tensors
        yield from tensors.differing[:_MOST_SENTENCES]
        if tensors.missing:
            yield f"the file does not hold {some_of(tensors.missing)} of the run"

    def _verdict(self) -> Text:
        where = f"{self.model} ({self.rows} windows, {self.seconds:.0f} s, {self.threads} thread)"
        if self.passed:
            return Text(f"PASSED  {where}", style="bold green")
        return Text(f"FAILED  {where}\n" + "\n".join(f"  - {reason}" for reason in self.reasons), style="bold red")

    def _accuracy(self) -> Table:
        reference = "QAT model" if self.facts.kind == "int8" else "FP32 model"
        table = Table(Column("onnxruntime against the " + reference, overflow="fold"), "measured", "required")
        for text, measured, required in self._rows("accuracy") if self.rows else ():
            table.add_row(text, measured, required)
        if self.found.max_error_steps is not None:
            table.caption = "One step: every input of the quantile head moved by one of its 8-bit codes."
        return table

    def _rows(self, group: Group) -> Iterator[tuple[str, str, str]]:
        """Yield what each metric of a table is called, what was measured, and what is required."""
        values = self.values
        for metric in METRICS:
            limit = metric.limit(self.facts)
            required = f"{limit.sign} {metric.required(limit)}" if limit else ""
            for case, number in metric.cases(values[metric.name]).items() if metric.group == group else ():
                if number is not None or limit:
                    yield metric.text.format(case=case), metric.shown(number), required

    def _runtimes(self) -> Table:
        table = Table("other runtimes", "SQNR", "")
        for runtime in self.found.runtimes:
            ratio = "not finite" if runtime.sqnr_db is None else f"{runtime.sqnr_db:.2f} dB"
            table.add_row(runtime.name, "skipped" if runtime.skipped else ratio, runtime.skipped or runtime.how)
        return table

    def _risk(self) -> Table:
        measured = {model: risks for model, risks in self.found.q_risk.items() if risks}
        table = Table("q-risk", *measured)
        first: Mapping[str, float | None] = next(iter(measured.values()), {})
        for quantile in first:
            table.add_row(f"P{float(quantile) * 100:g}", *(_number(r[quantile], 5) for r in measured.values()))
        return table

    def _size_and_speed(self) -> Table:
        name = integer_name(self.facts.bits if self.facts.kind == "int8" else 8)
        table = Table("size and speed", "FP32", name, f"{name} / FP32")
        files = self.found.bytes.get("fp32_file"), self.found.bytes.get("int8_file")
        if any(files):
            table.add_row("file, KB", *_pair(*(size and size / 1000 for size in files)))
        batches = next((latency for latency in self.latency_ms.values() if latency), {})
        for batch in batches:
            pair = ((self.latency_ms.get(kind) or {}).get(batch) for kind in ("fp32", "int8"))
            table.add_row(f"ms at batch {batch}", *_pair(*pair))
        return table

    def _products(self) -> Table:
        table = Table("products in onnxruntime's optimized graph", "computed on", "nodes")
        operators = self.found.operators
        for kind, counts in (("integers", operators.integer), ("floats", operators.floating)):
            for operator, count in counts.items():
                table.add_row(operator, kind, str(count))
        for text, measured, _ in self._rows("products") if table.row_count else ():
            table.add_row(text, "", measured)
        if self.found.saturating_products:
            table.caption = "On x86 this file needs a CPU with VNNI: without it, sums of two products saturate."
        return table


@dataclass(frozen=True)
class Detailed:
    """A report that also shows its layers one by one."""

    report: CheckReport

    def to_json(self) -> dict[str, Any]:
        """The same as of the report, which holds its layers in any case."""
        return self.report.to_json()

    def tables(self) -> list[RenderableType]:
        """The layers, then the report's own tables."""
        return [self.report.layer_table(), *self.report.tables()]


def _plain(value: Value) -> Any:
    if isinstance(value, Mapping):
        return {case: _plain(number) for case, number in value.items()} or None
    return value if value is None or math.isfinite(value) else None


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _pair(fp32: float | None, int8: float | None) -> tuple[str, str, str]:
    share = f"{int8 / fp32:.2f}" if fp32 and int8 else ""
    digits = 1 if max(fp32 or 0, int8 or 0) >= 100 else 2
    return _number(fp32, digits), _number(int8, digits), share
