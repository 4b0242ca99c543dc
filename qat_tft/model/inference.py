"""Selection networks laid out for inference: each chunk's weights stored on their own, and few operators per chunk.

Legend as in `selection`: B batch, T time, N rows, V variables (R real, then K categorical), C variables of one chunk,
H hidden. At inference time goes into passes over [C, N, H] tensors. Small chunks keep these in the cache, large ones
need fewer operators; what does not depend on the chunk is computed for all variables at once.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qat_tft.checkpointing.segments import SegmentRunner
from qat_tft.model.knots import place
from qat_tft.model.layers import CutLayer, replace_module, with_ones
from qat_tft.model.selection import VariableSelection, chunk_sizes, selection_weights, sum_in_order
from qat_tft.model.tabulated import TabulatedSelection

TABLE_WIDTH = 2048
"""Rows of a table times hidden size that are looked up together for each row of a batch."""

INFERENCE_WIDTH = 1024
"""Variables times hidden size that are computed together at inference, whatever training used."""


class CutSelection(nn.Module):
    """A selection network for inference and export; computes what the `VariableSelection` it is made from does.

    Args:
        selection: its second linear maps must have been merged into the gates.
        chunk: how many variables are computed together; by default as many as `INFERENCE_WIDTH` allows.
    """

    bias: Tensor

    def __init__(self, selection: VariableSelection, chunk: int | None = None) -> None:
        super().__init__()
        assert selection.second is None, "merge_second_into_gate comes first"
        variables, hidden = selection.norm.weight.shape
        chunk = chunk or max(1, INFERENCE_WIDTH // hidden)
        self.real = selection.real
        self.sizes = chunk_sizes(self.real, chunk), chunk_sizes(variables - self.real, chunk)
        real, categories = self.sizes
        self.real_first = None if selection.real_first is None else selection.real_first.cut(real)
        self.real_embedding = None if selection.real_embedding is None else selection.real_embedding.cut(real)
        self.category_first = None if selection.category_first is None else selection.category_first.cut(categories)
        self.category_embedding = selection.category_embedding
        self.weighing = selection.weighing
        self.gate = selection.gate.cut([*real, *categories])
        self.norm = CutLayer(_normalized, (selection.norm.weight.unsqueeze(1),), [*real, *categories])
        self.register_buffer("bias", selection.norm.bias.detach().clone())

    def forward(self, x: Tensor, context: Tensor | None, run_segment: SegmentRunner) -> tuple[Tensor, Tensor]:
        """Return the selected [B, T, H] and the weights [B, T, V] of x [B, T, V]; without T for a static x.

        `run_segment` is not used: nothing is recomputed at inference.
        """
        weights = selection_weights(self, x, context)
        rows, shares = x.flatten(0, -2), weights.flatten(0, -2)  # [N, V]
        everything = [*self.sizes[0], *self.sizes[1]]
        chunks = zip(
            [*self._real_maps(rows[:, : self.real]), *self._category_maps(rows[:, self.real :])],
            self.gate.chunks(everything),
            self.norm.chunks(everything),
            shares.unsqueeze(1).split(everything, -1),  # [N, 1, C]
            strict=True,
        )
        # onnxruntime multiplies a row by a matrix for each of N in a quarter of the time of a product and a sum over C.
        parts = (share @ norm(skip + F.glu(gate(F.elu(hidden)), -1)) for (hidden, skip), gate, norm, share in chunks)
        selected = sum_in_order(parts).squeeze(1) + shares @ self.bias
        return selected.unflatten(0, x.shape[:-1]), weights

    def _real_maps(self, real: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return the first map and the embedding, each [C, N, H], of each chunk of the real columns [N, R]."""
        if self.real_first is None or self.real_embedding is None:
            return []
        sizes = self.sizes[0]
        scalars, firsts, embeds = with_ones(real).split(sizes), self.real_first.chunks(sizes), self.real_embedding
        chunks = zip(scalars, firsts, embeds.chunks(sizes), strict=True)
        return [(first(x), embed(x)) for x, first, embed in chunks]

    def _category_maps(self, codes: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return the first map and the embedding, each [C, N, H], of each chunk of the categories' codes [N, K]."""
        if self.category_first is None or self.category_embedding is None:
            return []
        sizes = self.sizes[1]
        embeds = self.category_embedding.chunks(sizes)
        embedded = [embed(x.long()).transpose(0, 1) for x, embed in zip(codes.split(sizes, 1), embeds, strict=True)]
        return [(first(x), x) for x, first in zip(embedded, self.category_first.chunks(sizes), strict=True)]


class TableSelection(nn.Module):
    """A selection network for inference and export that looks up every variable in one table.

    Args:
        selection: the tabulated network it is made from, which it computes the same as.
    """

    knot_starts: Tensor
    code_starts: Tensor

    def __init__(self, selection: TabulatedSelection) -> None:
        super().__init__()
        self.real, self.knots = selection.real, len(selection.knots)
        self.weighing = selection.weighing
        self.category_embedding = selection.category_embedding
        tables = selection.tables()
        self.table = selection.table.frozen(torch.cat(tables))
        starts = torch.tensor([0, *(len(table) for table in tables[:-1])]).cumsum(0)
        self.register_buffer("knot_starts", starts[: self.real].clone(), persistent=False)
        self.register_buffer("code_starts", starts[self.real :].clone(), persistent=False)
        self.chunk = max(1, TABLE_WIDTH // tables[0].shape[1])

    def forward(self, x: Tensor, context: Tensor | None, run_segment: SegmentRunner) -> tuple[Tensor, Tensor]:
        """Return the selected [B, T, H] and the weights [B, T, V] of x [B, T, V]; without T for a static x.

        `run_segment` is not used: nothing is recomputed at inference.
        """
        weights = selection_weights(self, x, context)
        index, summands = self._summands(x.flatten(0, -2), weights.flatten(0, -2))
        chunks = zip(index.split(self.chunk, 1), summands.unsqueeze(1).split(self.chunk, -1), strict=True)
        parts = (share @ self.table(rows) for rows, share in chunks)  # [N, 1, M] @ [N, M, H]
        return sum_in_order(parts).squeeze(1).unflatten(0, x.shape[:-1]), weights

    def _summands(self, rows: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
        """Return which rows of the table are summed, int64 [N, M], and their weights [N, M].

        Rows and shares are [N, V]. M counts two knots of each real variable, side by side, and one code of each
        categorical one.
        """
        index, weights = [], []
        if self.real:
            left, part = place(rows[:, : self.real], self.knots)
            first, share = left.long() + self.knot_starts, shares[:, : self.real]
            index.append(torch.stack([first, first + 1], -1).flatten(1))
            weights.append(torch.stack([share * (1 - part), share * part], -1).flatten(1))
        if self.category_embedding is not None:
            index.append(rows[:, self.real :].long() + self.code_starts)
            weights.append(shares[:, self.real :])
        return (index[0], weights[0]) if len(index) == 1 else (torch.cat(index, 1), torch.cat(weights, 1))


def tabulate_selections(model: nn.Module) -> None:
    """Put every tabulated selection network of a model into its form for inference, in place."""
    for name, module in list(model.named_modules()):
        if isinstance(module, TabulatedSelection):
            replace_module(model, name, TableSelection(module))


def cut_selections(model: nn.Module) -> None:
    """Put every exact selection network of a model into its form for inference, in place."""
    for name, module in list(model.named_modules()):
        if isinstance(module, VariableSelection) and not isinstance(module, TabulatedSelection):
            replace_module(model, name, CutSelection(module))


def _normalized(weight: Tensor, x: Tensor) -> Tensor:
    normalized = F.layer_norm(x, x.shape[-1:]) * weight  # [C, N, H]
    return normalized.transpose(0, 1)  # [N, C, H]
