"""Does a file hold the run's numbers? Every initializer is compared with what the run says it has to be, bit by bit.

Names tell which layer a tensor belongs to where the file has kept them. A tensor without such a name must equal some
tensor of the run. Whole numbers that belong to no layer are axes and shapes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt

from qat_tft.export.graph_reader import GraphReader
from qat_tft.export.verify.tensors.expected import ExpectedTensor
from qat_tft.export.verify.tensors.roundings import Checked
from qat_tft.plain import Plain

Array = npt.NDArray[Any]

STRUCTURE = (0.0, 1.0, -1.0)
"""Floats that a graph is built with and that belong to no layer."""

_CUT = re.compile(r"(?P<base>.+?)(?:\.chunk(?P<chunk>\d+)_(?P<place>\d+))?(?:\.half(?P<half>\d))?(?P<rest>\.scales?)?")
_OF_THE_MODEL = "model."
_HALF = 0.5 + 1e-6
"""Of a unit in the last place: a number that lies in the middle of two may be rounded to either."""
_CODES = (np.dtype(np.int8), np.dtype(np.uint8))


@dataclass(frozen=True)
class TensorReport(Plain):
    """What a comparison of tensors found.

    Attributes:
        compared: how many tensors of the file were compared.
        differing: a sentence for each that is not what the run says.
        missing: names of tensors of the run that the file does not hold, not even damaged.
        fingerprint: SHA-256 over the file's tensors, names and shapes aside.
    """

    compared: int = 0
    differing: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    fingerprint: str = ""

    @property
    def equal(self) -> bool:
        """Whether nothing differs and nothing is missing."""
        return not self.differing and not self.missing


@dataclass(frozen=True)
class _Found:
    """A tensor of the file, its chunks and halves put together again.

    Attributes:
        name: of the tensor, or what the names of its parts have in common.
        value: all of it.
        is_data: whether it is read as what is dequantized, and never as a zero point.
    """

    name: str
    value: Array
    is_data: bool


def compare_tensors(
    graph: GraphReader, expected: Sequence[ExpectedTensor], looked_up: Sequence[Checked]
) -> TensorReport:
    """Compare every tensor of a file with what it has to be.

    Args:
        graph: of the file.
        expected: every tensor of the run that the file must hold.
        looked_up: constants that were compared where they act.
    """
    checked = frozenset[str]().union(*(one.names for one in looked_up))
    differing = [sentence for one in looked_up for sentence in one.wrong]
    rest = [found for found in _put_together(graph, checked) if not _is_structure(found)]
    matched: set[str] = set()
    for found in rest:
        same = [one.name for one in _candidates(found, expected) if _equal(found.value, one)]
        matched.update(same)
        if not same:
            closest, sentence = _difference(found, expected)
            matched.add(closest)
            differing.append(sentence)
    everything = list(graph.constants.values())
    missing = tuple(one.name for one in expected if one.name not in matched and not _is_held(one, everything))
    return TensorReport(len(rest) + len(checked), tuple(differing), missing, fingerprint(graph))


def fingerprint(graph: GraphReader) -> str:
    """Return the SHA-256 of a file's tensors: of their types and bytes, in an order that depends on these alone."""
    parts = sorted(f"{value.dtype}".encode() + value.tobytes() for value in graph.constants.values())
    return sha256(b"".join(sha256(part).digest() for part in parts)).hexdigest()


def _put_together(graph: GraphReader, checked: frozenset[str]) -> Iterator[_Found]:
    """Yield the tensors of a file that are left, chunks laid one after the other and halves side by side."""
    groups: dict[tuple[str, str, str], dict[tuple[int, int], str]] = {}
    for name in graph.constants:
        if name not in checked:
            cut = _CUT.fullmatch(name)
            assert cut is not None
            group = groups.setdefault((cut["base"], cut["place"] or "", cut["rest"] or ""), {})
            group[int(cut["chunk"] or 0), int(cut["half"] or 0)] = name
    for (base, place, rest), parts in groups.items():
        names = [parts[cell] for cell in sorted(parts)]
        label = f"{base}{f'.{place}' if place else ''}{rest}" if len(names) > 1 else names[0]
        chunks: dict[int, list[Array]] = {}
        for cell in sorted(parts):
            chunks.setdefault(cell[0], []).append(graph.constants[parts[cell]])
        joined = [np.concatenate(halves, -1) if len(halves) > 1 else halves[0] for halves in chunks.values()]
        whole = np.concatenate(joined) if len(joined) > 1 else joined[0]
        yield _Found(label, whole, all(_is_data(graph, name) for name in names))


def _is_data(graph: GraphReader, name: str) -> bool:
    readers = graph.readers.get(name, [])
    return all(node.op_type == "DequantizeLinear" and name not in node.input[1:] for node in readers)


def _is_structure(found: _Found) -> bool:
    """Whether a tensor is none of a layer: axes and shapes, zeros of integers, floats that are all 0, 1 or -1."""
    value = found.value
    if value.dtype in _CODES:
        return not value.any() or (found.is_data and bool((value == 1).all()))
    if value.dtype.kind in "bi":
        return not found.name.startswith(_OF_THE_MODEL)
    return any(bool((value == number).all()) for number in STRUCTURE)


def _candidates(found: _Found, expected: Sequence[ExpectedTensor]) -> Sequence[ExpectedTensor]:
    own = [one for one in expected if found.name.removeprefix(_OF_THE_MODEL).startswith(f"{one.layer}.")]
    return own or expected


def _equal(value: Array, one: ExpectedTensor) -> bool:
    """Whether two tensors hold the same numbers, as they stand or with the last two axes exchanged."""
    stored = np.dtype(np.float32) if one.value.dtype == np.float64 else one.value.dtype
    if value.size != one.value.size or value.dtype != stored:
        return False
    return any(_same_numbers(value.reshape(-1), layout, one.tolerance) for layout in _layouts(one.value))


def _layouts(value: Array) -> list[Array]:
    exchanged = [np.swapaxes(value, -1, -2).reshape(-1)] if value.ndim > 1 else []
    return [value.reshape(-1), *exchanged]


def _same_numbers(value: Array, wanted: Array, tolerance: float) -> bool:
    if wanted.dtype == np.float64:
        nearest = np.spacing(np.abs(value)).astype(np.float64) * _HALF
        return bool((np.abs(value.astype(np.float64) - wanted) <= nearest).all())
    if not tolerance:
        return bool(np.array_equal(value, wanted))
    largest = np.abs(wanted).max(initial=0.0)
    return bool((np.abs(value - wanted) <= tolerance * largest).all())


def _is_held(one: ExpectedTensor, values: Sequence[Array]) -> bool:
    """Whether some tensor is equal: a layer's zeros, say, that stand in the file once for all layers.

    Gains that are all one, as those of a network that was never trained, leave no product behind in a graph.
    """
    return bool((one.value == 1.0).all()) or any(_equal(value, one) for value in values)


def _difference(found: _Found, expected: Sequence[ExpectedTensor]) -> tuple[str, str]:
    """Return the name of the closest tensor of the run, empty where none has that size, and a sentence on both."""
    of_size = [one for one in _candidates(found, expected) if one.value.size == found.value.size]
    if not of_size:
        return "", f"the tensor {found.name} {list(found.value.shape)} is none of the run's"
    (count, _), closest = min(((_distance(found.value, one.value), one) for one in of_size), key=lambda pair: pair[0])
    differs = f"in {count:,} of {found.value.size:,} values"
    return closest.name, f"the tensor {found.name} differs from {closest.name} of the run {differs}"


def _distance(value: Array, wanted: Array) -> tuple[int, float]:
    """Return how many values differ, and how far they are apart in all."""
    flat, layouts = _finite(value.reshape(-1)), map(_finite, _layouts(wanted))
    return min((int((flat != other).sum()), float(np.abs(flat - other).sum())) for other in layouts)


def _finite(value: Array) -> Array:
    return np.nan_to_num(value.astype(np.float64), posinf=0.0, neginf=0.0)
