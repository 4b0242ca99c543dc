"""Variable selection by tables: a variable's GRN is computed once per knot or code instead of once per row.

Legend as in `selection`: B batch, T time, N rows (B or B*T), V variables (real, then categorical), C variables of one
chunk, K knots of a real variable or codes of a categorical one, H hidden.

A scaled real variable is one number, so its GRN is a function of one number: it is computed at K knots, whatever B and
T are, and a row takes the two knots around its number. A categorical variable's GRN has one value per code. Both are
rows of a table, and gather, interpolation and the weighted sum over variables are one operation, `sum_of_rows`: nothing
of size [N, V, H] is ever built (docs/decisions/040).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, islice, repeat
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qat_tft.checkpointing.segments import SegmentRunner
from qat_tft.model.dropout import Dropout
from qat_tft.model.knots import knot_values, place
from qat_tft.model.layers import merge_maps, variable_linear
from qat_tft.model.selection import VariableSelection, chunk_sizes
from qat_tft.model.table_rows import normalized_rows
from qat_tft.model.weighted_rows import sum_of_rows
from qat_tft.schema import GroupSize

Convert = Callable[[Tensor], Tensor]
"""Puts a weight into the number format that rows are computed in."""

IN_A_TABLE = ("real_first", "real_embedding", "category_first", "gate", "norm")
"""The layers of a selection network that its tables are computed from."""


class Table(nn.Module):
    """What happens to the rows of a selection network's tables before they are summed: in floating point, nothing."""

    in_double = False
    """Whether the rows have to be computed in double precision outside of training."""

    def forward(self, rows: Tensor) -> Tensor:
        """Return rows [.., H] as they are summed."""
        return rows

    def frozen(self, rows: Tensor) -> nn.Module:
        """Return the table of an inference model for its rows [R, H] in double precision."""
        return FrozenTable(rows)


class FrozenTable(nn.Module):
    """A table of rows [R, H] that do not change any more, in single precision."""

    rows: Tensor

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        self.register_buffer("rows", rows.float())

    def forward(self, index: Tensor) -> Tensor:
        """Return the rows [.., H] for int64 numbers of rows [..]."""
        return F.embedding(index, self.rows)


class TabulatedSelection(VariableSelection):
    """A selection network whose variables' GRNs are tables; its parameters are those of a merged `VariableSelection`.

    The variables' GRNs have no second linear map: as nothing but dropout stands behind it, it is part of the gate from
    the start, which saves a third of the weights (docs/decisions/040). Dropout acts on the activation, with one mask
    for each knot or code and step, shared by all rows. A categorical variable with more codes than a chunk has rows is
    computed row by row, for the codes of the batch.

    Args:
        name, size, hidden, context, dropout: as for `VariableSelection`.
        chunk: how many real variables are computed together; categorical ones, as many as have no more rows.
        count: knots of each real variable.
    """

    knots: Tensor

    def __init__(
        self, name: str, size: GroupSize, hidden: int, *, context: bool, dropout: float, chunk: int, count: int
    ) -> None:
        super().__init__(name, size, hidden, context=context, dropout=dropout, chunk=chunk)
        assert self.second is not None
        merge_maps(self.second, self.gate)
        self.second = None
        self.tables_name = f"{name.removesuffix('_selection')}_tables"  # of the segment
        self.rows = chunk * count
        self.cardinalities = size.cardinalities
        self.sizes = chunk_sizes(size.real, chunk), sizes_within(size.cardinalities, self.rows)
        self.register_buffer("knots", knot_values(count), persistent=False)
        self.table = Table()

    def products(self) -> dict[nn.Parameter, float]:
        """Return those of any selection network, and the gates: `G S`, both within H**-0.5, moves by H**0.5."""
        return super().products() | dict.fromkeys(self.gate.parameters(), math.sqrt(self.weighing.hidden))

    @torch.no_grad()
    def tables(self) -> list[Tensor]:
        """Return the table of each variable in double precision and not rounded, [K, H], the real variables' first."""
        real = [rows() for rows in self._real_rows(Tensor.double)]
        categorical = [
            rows(codes) for rows, codes in zip(self._category_rows(Tensor.double), self._codes(), strict=True)
        ]
        counts = [*repeat(len(self.knots), self.real), *self.cardinalities]
        return [table[:count] for table, count in zip(chain.from_iterable([*real, *categorical]), counts, strict=True)]

    def _parts(self, chunks: Iterable[tuple[Tensor, Tensor]], run_segment: SegmentRunner) -> Iterator[Tensor]:
        """Yield each chunk's part of the sum [N, H]: its table is one segment, the sum of the table's rows another."""
        number = Tensor.double if self.table.in_double and not self.training else _as_it_is
        waiting = iter(chunks)
        for real, size, (x, shares) in zip(self._real_rows(number), self.sizes[0], waiting, strict=False):
            table = run_segment(self.tables_name, partial(_table, real, self.table))
            starts = torch.arange(size, device=x.device) * len(self.knots)
            yield run_segment(self.name, partial(_sum_of_knots, starts, len(self.knots)), table, x, shares)
        for rows, codes, (x, shares) in zip(self._category_rows(number), self._codes(), waiting, strict=True):
            if codes.shape[1] > self.rows:  # decided by the configuration, never by the batch
                yield run_segment(self.name, partial(_sum_row_by_row, rows, self.table), x, shares)
            else:
                table = run_segment(self.tables_name, partial(_table, rows, self.table, codes))
                yield run_segment(self.name, _sum_of_codes, table, x, shares)

    def _real_rows(self, number: Convert) -> Iterator[Callable[[], Tensor]]:
        """Yield a function for each chunk of real variables, which returns the rows of their tables, [C, K, H]."""
        if self.real_first is None or self.real_embedding is None:
            return
        sizes = self.sizes[0]
        firsts, skips = self.real_first.rows().split(sizes), self.real_embedding.rows().split(sizes)
        points = number(torch.stack([self.knots, torch.ones_like(self.knots)], -1))  # [K, 2]
        for first, skip, grns in zip(firsts, skips, self._grns(slice(0, self.real), sizes, number), strict=True):
            yield partial(_real_rows, points, number(first), number(skip), grns, self.dropout)

    def _category_rows(self, number: Convert) -> Iterator[Callable[[Tensor], Tensor]]:
        """Yield a function for each chunk of categorical variables: codes [C, K] to the rows for them, [C, K, H]."""
        if self.category_first is None or self.category_embedding is None:
            return
        sizes = self.sizes[1]
        weights, biases = self.category_first.weight.split(sizes), self.category_first.bias.split(sizes)
        starts, embeddings = self.category_embedding.offsets.split(sizes), self.category_embedding.table.weight
        grns = self._grns(slice(self.real, None), sizes, number)
        for start, weight, bias, grn in zip(starts, weights, biases, grns, strict=True):
            first = number(embeddings), start.unsqueeze(1), number(weight), number(bias)
            yield partial(_category_rows, *first, grn, self.dropout)

    def _grns(self, variables: slice, sizes: list[int], number: Convert) -> Iterator[VariableGRNs]:
        """Yield what of the GRNs of each chunk of variables follows their first maps."""
        tensors = [
            tensor[variables].split(sizes) for layer in (self.gate, self.norm) for tensor in (layer.weight, layer.bias)
        ]
        for pieces in zip(*tensors, strict=True):
            yield VariableGRNs(*map(number, pieces))

    def _codes(self) -> Iterator[Tensor]:
        """Yield all codes [C, K] of each chunk's variables; where one has fewer than another, its last is repeated."""
        known = iter(self.cardinalities)
        for size in self.sizes[1]:
            limits = list(islice(known, size))
            last = torch.tensor(limits, device=self.knots.device).unsqueeze(1) - 1
            yield torch.arange(max(limits), device=last.device).minimum(last)


def selection_network(
    form: str, name: str, size: GroupSize, hidden: int, *, context: bool, dropout: float, chunk: int, knots: int
) -> VariableSelection:
    """Return a new selection network of a form, "tabulated" or "exact"; the arguments are those of the two classes."""
    if form == "tabulated":
        return TabulatedSelection(name, size, hidden, context=context, dropout=dropout, chunk=chunk, count=knots)
    return VariableSelection(name, size, hidden, context=context, dropout=dropout, chunk=chunk)


class VariableGRNs(NamedTuple):
    """What of the GRNs of C variables follows their first maps."""

    gate_weight: Tensor  # [C, 2H, H]
    gate_bias: Tensor  # [C, 2H]
    norm_weight: Tensor  # [C, H]
    norm_bias: Tensor  # [C, H]


def _rows(hidden: Tensor, skip: Tensor, grns: VariableGRNs, dropout: Dropout) -> Tensor:
    """Return the GRNs' outputs [C, K, H] for their first maps and what they add at the end, both of that shape."""
    hidden = F.elu(hidden, inplace=True)  # the product before it does not need its result
    gated = F.glu(variable_linear(grns.gate_weight, grns.gate_bias, dropout(hidden)), dim=-1)
    return normalized_rows(skip + gated, grns.norm_weight, grns.norm_bias)


def _real_rows(points: Tensor, first: Tensor, skip: Tensor, grns: VariableGRNs, dropout: Dropout) -> Tensor:
    return _rows(points @ first, points @ skip, grns, dropout)


def _category_rows(
    table: Tensor, starts: Tensor, weight: Tensor, bias: Tensor, grns: VariableGRNs, dropout: Dropout, codes: Tensor
) -> Tensor:
    embedded = F.embedding(codes + starts, table)  # [C, K, H]
    return _rows(variable_linear(weight, bias, embedded), embedded, grns, dropout)


def _table(rows: Callable[..., Tensor], table: nn.Module, *codes: Tensor) -> Tensor:
    """Return the rows of a chunk's tables as they are summed, [C, K, H]."""
    summed: Tensor = table(rows(*codes))
    return summed


def _sum_of_knots(starts: Tensor, knots: int, table: Tensor, x: Tensor, shares: Tensor) -> Tensor:
    """Return the weighted sum [N, H] of real variables x [N, C], each interpolated in its part of a table [C, K, H]."""
    left, part = place(x, knots)
    first = (left.long() + starts).int()
    index, part = torch.cat([first, first + 1], 1), part.to(shares.dtype)
    weights = torch.cat([shares * (1 - part), shares * part], 1)
    return sum_of_rows(table.flatten(0, 1), index, weights.to(table.dtype))


def _sum_of_codes(table: Tensor, x: Tensor, shares: Tensor) -> Tensor:
    """Return the weighted sum [N, H] of categorical variables x [N, C], each looked up in its part of [C, K, H]."""
    starts = torch.arange(len(table), device=x.device) * table.shape[1]
    return sum_of_rows(table.flatten(0, 1), (x.long() + starts).int(), shares.to(table.dtype))


def _sum_row_by_row(rows: Callable[[Tensor], Tensor], table: nn.Module, x: Tensor, shares: Tensor) -> Tensor:
    """Return the weighted sum [N, H] of categorical variables x [N, C], computed for these codes alone."""
    own = table(rows(x.long().t()))  # [C, N, H]
    return torch.einsum("nc,cnh->nh", shares.to(own.dtype), own)


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


def sizes_within(cardinalities: tuple[int, ...], rows: int) -> list[int]:
    """Return how many categorical variables each chunk has: as many as have `rows` codes, padded, and at least one."""
    sizes: list[int] = []
    largest = 0
    for known in cardinalities:
        largest = max(largest, known)
        if sizes and (sizes[-1] + 1) * largest <= rows:
            sizes[-1] += 1
        else:
            sizes.append(1)
            largest = known
    return sizes
