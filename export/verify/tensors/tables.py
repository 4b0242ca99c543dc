"""The tables of tabulated selection networks, computed anew from a run's weights in double precision with numpy.

Like `expected`, a second implementation on purpose. Legend: V variables (real, then categorical), K knots or codes of a
variable, R rows of the whole table, H hidden.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from qat_tft.schema import GroupSize

Array = npt.NDArray[Any]
Layers = Mapping[str, Mapping[str, Tensor]]

PARTS = ("real_first", "real_embedding", "category_first", "gate", "norm")
"""The layers of a selection network that the table holds the results of."""

_WIDTH, _FARTHEST = 1.0, 1000.0
_EPSILON = 1e-5  # of LayerNorm


def place_numbers(knots: int) -> tuple[float, ...]:
    """Return the numbers by which a graph finds the knots around a scaled value."""
    half = (knots - 1) / 2
    return half * (_WIDTH + _FARTHEST) / _FARTHEST, half, knots - 1.0, knots - 2.0


def table_starts(size: GroupSize, knots: int) -> Array:
    """Return the row at which each variable's table begins, int64 [V]."""
    return np.cumsum([0, *[knots] * size.real, *size.cardinalities])[:-1]


def table_rows(selection: str, layers: Layers, size: GroupSize, knots: int) -> Array:
    """Return the rows of a selection network's table, float64 [R, H].

    Args:
        selection: name of the network.
        layers: tensors of every layer of the run's model.
        size: of its group.
        knots: of each real variable.
    """
    own = {part: _doubles(layers.get(f"{selection}.{part}", {})) for part in PARTS}
    tables = [*_real(own, size, knots), *_categorical(own, layers, selection, size)]
    return np.concatenate(tables)


def _real(own: Mapping[str, dict[str, Array]], size: GroupSize, knots: int) -> Iterator[Array]:
    even = np.linspace(-1.0, 1.0, knots) * (_FARTHEST / (_WIDTH + _FARTHEST))
    x = (_WIDTH * even / (1.0 - np.abs(even))).astype(np.float32).astype(np.float64)[:, None]  # [K, 1]
    first, embedding = own["real_first"], own["real_embedding"]
    for variable in range(size.real):
        hidden = x * first["weight"][variable] + first["bias"][variable]
        skip = x * embedding["weight"][variable] + embedding["bias"][variable]
        yield _grn(own, variable, hidden, skip)


def _categorical(
    own: Mapping[str, dict[str, Array]], layers: Layers, selection: str, size: GroupSize
) -> Iterator[Array]:
    if not size.cardinalities:
        return
    embeddings = layers[f"{selection}.category_embedding.table"]["weight"].double().numpy()
    starts = np.cumsum([0, *size.cardinalities])
    weight, bias = own["category_first"]["weight"], own["category_first"]["bias"]
    for place, (start, end) in enumerate(pairwise(starts)):
        embedded = embeddings[start:end]  # [K, H]
        yield _grn(own, size.real + place, embedded @ weight[place].T + bias[place], embedded)


def _grn(own: Mapping[str, dict[str, Array]], variable: int, hidden: Array, skip: Array) -> Array:
    """Return `LayerNorm(skip + GLU(gate(ELU(hidden))))` of one variable, [K, H]."""
    hidden = np.where(hidden > 0, hidden, np.expm1(np.minimum(hidden, 0)))
    gated = hidden @ own["gate"]["weight"][variable].T + own["gate"]["bias"][variable]
    values, gates = np.split(gated, 2, -1)
    x = skip + values * 0.5 * (1.0 + np.tanh(0.5 * gates))
    centered = x - x.mean(-1, keepdims=True)
    normalized = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + _EPSILON)
    result: Array = normalized * own["norm"]["weight"][variable] + own["norm"]["bias"][variable]
    return result


def _doubles(parts: Mapping[str, Tensor]) -> dict[str, Array]:
    return {name: tensor.double().numpy() for name, tensor in parts.items()}
