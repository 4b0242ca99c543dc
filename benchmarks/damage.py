"""What a check sees of a damaged INT8 file: one kind of damage after the other, on a copy of a run.

    python benchmarks/damage.py [RUN] [--runs-dir runs] [--json]

Every damage is small: most leave the forecasts close to the model's. The table tells for each how close, and which of
the check's three looks notices it: the whole forecast (SQNR), each layer by itself, and the tensors.
docs/quantization.md quotes the output. It takes a few seconds for each kind of damage.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from operator import attrgetter
from pathlib import Path
from shutil import copytree

import numpy as np
import numpy.typing as npt
import onnx
from onnx import ModelProto, TensorProto, numpy_helper

from qat_tft.export.graph_reader import GraphReader, Rounding
from qat_tft.export.verify import check
from qat_tft.export.verify.check_report import CheckReport
from qat_tft.runs.folder import RunFolder

Array = npt.NDArray[np.generic]
Change = Callable[[Array], Array]

_TENSORS = (
    "tensors that are not",
    "the tensor ",
    "the scale before",
    "the zero point before",
    "the product of",
    "codes of",
)


@dataclass(frozen=True)
class Damage:
    """One tensor to change: the end of its name, or what finds it, and how."""

    what: str
    find: str | Callable[[ModelProto], str]
    change: Change


@dataclass(frozen=True)
class Row:
    """What the check said: the lowest SQNR in dB, None where it is not finite, and which looks noticed the damage."""

    damage: str
    sqnr_db: float | None
    forecast: bool
    layers: bool
    tensors: bool


def times(factor: float) -> Change:
    return lambda value: (value * np.float32(factor)).astype(value.dtype)


def plus(amount: float) -> Change:
    return lambda value: (value + np.asarray(amount, value.dtype)).astype(value.dtype)


def one_more(amount: float = 1) -> Change:
    """Move the middle element by an amount: of a code towards zero, so that it stays a code."""

    def move(value: Array) -> Array:
        moved = value.reshape(-1).astype(np.float64)
        middle = len(moved) // 2
        moved[middle] += amount if moved[middle] <= 0 else -amount
        return moved.astype(value.dtype).reshape(value.shape)

    return move


def rounding_before(layer: str, constant: Callable[[Rounding], str]) -> Callable[[ModelProto], str]:
    def find(model: ModelProto) -> str:
        graph = GraphReader(model)
        return constant(graph.rounding(graph.of_layer(layer)[0]))

    return find


def center_of_the_target(model: ModelProto) -> str:
    """The statistics that the forecast is scaled back with: added to the last product before the quantiles."""
    graph = GraphReader(model)
    floats = {name: value for name, value in graph.constants.items() if value.dtype == np.float32 and value.ndim == 2}
    return next(name for name, value in floats.items() if value.shape[1] == 1 and value.shape[0] > 1)


DAMAGES = (
    Damage("LayerNorm gains x 1.005", "output_skip.norm.weight", times(1.005)),
    Damage("LayerNorm biases + 0.002", "attention_skip.norm.bias", plus(0.002)),
    Damage("learned start vectors x 1.01", "unknown_future.vectors", times(1.01)),
    Damage("head bias + 0.002", "head.bias", plus(0.002)),
    Damage("one bias of a gate + 0.01", "lstm_skip.gate.bias.half1", one_more(0.01)),
    Damage("one code of a gate by 1", "output_skip.gate.weight.half0", one_more()),
    Damage("one code of an LSTM by 1", "lstm_decoder.cell.weight_hh.gates.codes", one_more()),
    Damage("one code of a table by 1", "historical_selection.table.codes", one_more()),
    Damage("one code of a table by 5", "historical_selection.table.codes", one_more(5)),
    Damage("scales of a table x 1.01", "historical_selection.table.codes.scales", times(1.01)),
    Damage("one code of a stored weight by 5", "historical_selection.weighing.real.weight", one_more(5)),
    Damage("one embedding + 0.001", "category_embedding.table.weight", one_more(0.001)),
    Damage("scales of stored weights x 1.001", "historical_selection.weighing.real.weight.scales", times(1.001)),
    Damage(
        "scale of an activation x 1.001",
        rounding_before("temporal_attention.attention.output", attrgetter("scale")),
        times(1.001),
    ),
    Damage(
        "zero point of an activation by 1",
        rounding_before("temporal_attention.attention.query", attrgetter("zero_point")),
        one_more(),
    ),
    Damage("mean of the target x 1.0001", center_of_the_target, times(1.0001)),
)


def rows(run: RunFolder) -> Iterator[Row]:
    """Check one damaged copy after the other, the sound file first."""
    sound = onnx.load(run.onnx_file("int8"))
    yield _row("none", _checked(run, sound))
    for damage in DAMAGES:
        model = ModelProto()
        model.CopyFrom(sound)
        tensor = _tensor(model, damage.find)
        if tensor is not None:
            changed = damage.change(numpy_helper.to_array(tensor))
            tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(changed), tensor.name))
            yield _row(damage.what, _checked(run, model))


def _tensor(model: ModelProto, find: str | Callable[[ModelProto], str]) -> TensorProto | None:
    """Return the tensor to damage; None where this model has none."""
    if callable(find):
        wanted = find(model)
        return next(tensor for tensor in model.graph.initializer if tensor.name == wanted)
    return next((tensor for tensor in model.graph.initializer if tensor.name.endswith(find)), None)


def _checked(run: RunFolder, model: ModelProto) -> CheckReport:
    with tempfile.TemporaryDirectory() as folder:
        copy = RunFolder(copytree(run.path, Path(folder) / "run"))
        onnx.save(model, copy.onnx_file("int8"))
        return check.check_model(copy.onnx_file("int8"), seconds=2.0)


def _row(what: str, report: CheckReport) -> Row:
    ratios = [*report.found.sqnr_db.values(), *report.found.sqnr_by_batch.values()]
    lowest = None if None in ratios else min(ratio for ratio in ratios if ratio is not None)
    reasons = report.reasons
    return Row(
        damage=what,
        sqnr_db=lowest,
        forecast=any(reason.startswith(("SQNR", "forecasts")) and " in " not in reason for reason in reasons),
        layers=any("layer" in reason.split(" ") for reason in reasons),
        tensors=any(reason.startswith(_TENSORS) for reason in reasons),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", help="a name or a path; default: the latest run")
    parser.add_argument("--runs-dir", default="runs")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    check._TIMING_SECONDS = 0.0  # nobody reads how fast a damaged file is
    found = list(rows(RunFolder.find(arguments.run, arguments.runs_dir)))
    if arguments.json:
        print(json.dumps([asdict(row) for row in found], indent=2))
        return
    print("| damage | lowest SQNR | forecast | layers | tensors |\n| --- | ---: | --- | --- | --- |")
    for row in found:
        sqnr = "not finite" if row.sqnr_db is None else f"{row.sqnr_db:.1f} dB"
        seen = ("seen" if one else "-" for one in (row.forecast, row.layers, row.tensors))
        print(f"| {row.damage} | {sqnr} | {' | '.join(seen)} |")


if __name__ == "__main__":
    main()
