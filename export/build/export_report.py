"""What an export wrote: the result that is printed and returned."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.table import Column, Table
from rich.text import Text

from qat_tft.durations import exactly
from qat_tft.evaluation.names import integer_name
from qat_tft.quantization.products import INTEGER_STORAGE, Products

GRAPH_IS_LARGER = "the graph of so small a model is larger than its weights"
"""Why quantizing may make no file smaller."""


@dataclass(frozen=True)
class ExportedFile:
    """One written file: where, which kind, how large, and which versions its reader must know."""

    path: Path
    kind: str
    bytes: int
    nodes: int
    opset: int
    ir_version: int


@dataclass(frozen=True)
class ExportResult:
    """What an export wrote.

    Attributes:
        run: the run folder.
        files: in the order in which they were written.
        target: target profile of the INT8 file; empty without one.
        products: whether the INT8 file's products are on integers, or in floating point over stored weights.
        bits: fewest bits of a weight; packed: whether the file stores it in so few.
        needs_onnxruntime: the first onnxruntime that runs the file.
        quantized_layers: names of the layers that became integer.
        float_layers: name and reason of each layer, and kind of operation, that stayed float in the INT8 file.
        seconds: wall time of the whole export.
    """

    run: Path
    files: tuple[ExportedFile, ...]
    target: str
    products: Products
    bits: int
    packed: bool
    needs_onnxruntime: str
    quantized_layers: tuple[str, ...]
    float_layers: tuple[tuple[str, str], ...]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values only."""
        return {
            "run": str(self.run),
            "files": [
                {
                    "path": str(file.path),
                    "kind": file.kind,
                    "bytes": file.bytes,
                    "nodes": file.nodes,
                    "opset": file.opset,
                    "ir_version": file.ir_version,
                }
                for file in self.files
            ],
            "target": self.target,
            "products": self.products,
            "weight_bits": self.bits,
            "packed": self.packed,
            "needs_onnxruntime": self.needs_onnxruntime,
            "quantized_layers": list(self.quantized_layers),
            "float_layers": [{"name": name, "reason": reason} for name, reason in self.float_layers],
            "seconds": round(self.seconds, 1),
        }

    def tables(self) -> list[RenderableType]:
        """The files, and below them what stayed float and why."""
        files = Table("file", "KB", "nodes", "opset", "IR", title=f"Exported in {exactly(self.seconds)}")
        for file in self.files:
            cells = (f"{file.bytes / 1000:.0f}", str(file.nodes), str(file.opset), str(file.ir_version))
            files.add_row(str(file.path), *cells)
        if not self.float_layers:
            return [files]
        name = integer_name(self.bits)
        title = f"{len(self.quantized_layers)} layers are {name} ({self.target})"
        if self.products == "float":
            title = f"{name} ({self.target}): {INTEGER_STORAGE}"
        notes = [Text(f"Note: {note}.", style="yellow") for note in (*self._larger(), *self._few_bits())]
        return [files, *notes, float_table(reasons_to_names(self.float_layers), title)]

    def _few_bits(self) -> Iterator[str]:
        if self.packed:
            yield (
                f"weights have as few as {self.bits} bits, and the file needs onnxruntime {self.needs_onnxruntime} or "
                "later; --store int8 writes one for older ones"
            )
        elif self.bits < 8:
            yield f"weights of as few as {self.bits} bits are stored in 8, for runtimes that know no smaller tensors"

    def _larger(self) -> Iterator[str]:
        sizes = {file.kind: file.bytes for file in self.files}
        if len(sizes) > 1 and sizes["int8"] >= sizes["fp32"]:
            yield f"the INT8 file has {sizes['int8']:,} bytes, the FP32 file {sizes['fp32']:,}: {GRAPH_IS_LARGER}"


def reasons_to_names(float_layers: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """Names of what stayed in floating point, by the reason for it."""
    names: dict[str, tuple[str, ...]] = {}
    for name, reason in float_layers:
        names[reason] = (*names.get(reason, ()), name)
    return names


def float_table(reasons: Mapping[str, Sequence[str]], title: str = "") -> Table:
    """What stays in floating point, a row per reason."""
    table = Table(Column("stays in floating point", overflow="fold"), "why", title=title or None)
    for reason, names in reasons.items():
        table.add_row(names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more", reason)
    return table
