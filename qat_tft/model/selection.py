"""Variable selection for all variables at once, in chunks, with real variables' embeddings folded.

Legend: B batch, T time, N rows (B or B*T), V variables (R real, then K categorical), C variables of one chunk,
H hidden. Source: Lim et al. (2021), equations 6 to 8.

The paper embeds each variable in H numbers, weighs the variables by a GRN over all embeddings laid side by
side, and adds up one GRN per variable. A real variable's embedding is affine in one scalar x, so every linear
map of it is affine in x too: `W (x w + b) = x (W w) + W b`. The first map of the variable's own GRN and its part
of the weighing GRN's first map and skip are therefore vectors, and those vectors are what is trained. Nothing
of size [N, V*H] is ever built for real variables; docs/decisions/002 tells what that saves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial, reduce
from itertools import chain, repeat
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qat_tft.checkpointing.segments import SegmentRunner
from qat_tft.model.dropout import Dropout
from qat_tft.model.layers import (
    AffineChunk,
    AffineVariables,
    Chunk,
    VariableLinear,
    add_context,
    between,
    uniform,
    with_ones,
)
from qat_tft.model.table_rows import normalize
from qat_tft.schema import GroupSize


class Weighing(Protocol):
    """What a selection network needs to weigh its variables."""

    real: int
    category_embedding: CategoryEmbedding | None
    weighing: SelectionWeights


class VariableSelection(nn.Module):
    """Selection network of one group of columns.

    Args:
        name: the segment's name; every call into the runner carries it.
        size: how many real columns the group has, and the cardinality of each categorical one.
        hidden: H.
        context: whether a static context [B, H] takes part in weighing the variables.
        dropout: probability, applied where the paper applies it: before each gate.
        chunk: how many variables are computed together. Chunks bound the memory that recomputing needs.
    """

    def __init__(self, name: str, size: GroupSize, hidden: int, *, context: bool, dropout: float, chunk: int) -> None:
        super().__init__()
        self.name, self.size = name, size
        self.real, categories = size.real, len(size.cardinalities)
        self.sizes = chunk_sizes(size.real, chunk), chunk_sizes(categories, chunk)
        embedding = AffineVariables(uniform(1, size.real, hidden), uniform(1, size.real, hidden))
        self.real_embedding = embedding if size.real else None
        self.real_first = _folded_first(embedding) if size.real else None
        self.category_embedding = CategoryEmbedding(size.cardinalities, hidden) if categories else None
        self.category_first = VariableLinear(categories, hidden, hidden) if categories else None
        self.weighing = SelectionWeights(self.real_embedding, size, hidden, context=context, dropout=dropout)
        self.second: VariableLinear | None = VariableLinear(size.total, hidden, hidden)
        self.dropout = Dropout(dropout)
        self.gate = VariableLinear(size.total, hidden, 2 * hidden)
        self.norm = VariableScale(size.total, hidden)

    def forward(self, x: Tensor, context: Tensor | None, run_segment: SegmentRunner) -> tuple[Tensor, Tensor]:
        """Return the selected [B, T, H] and the weights [B, T, V] of x [B, T, V]; without T for a static x."""
        weights = run_segment(self.name, partial(selection_weights, self), x, context)  # [B, T, V]
        rows = x.flatten(0, -2)  # [N, V]
        real, categories = rows[:, : self.real], rows[:, self.real :]
        inputs = (*_columns(real, self.sizes[0]), *_columns(categories, self.sizes[1]))
        shares = _columns(weights.flatten(0, -2), self._all_sizes())
        parts = self._parts(zip(inputs, shares, strict=True), run_segment)
        return sum_in_order(parts).unflatten(0, x.shape[:-1]), weights

    def products(self) -> dict[nn.Parameter, float]:
        """Return the parameters that are products of two maps of the paper, and how far each moves with its factors.

        That is how far a product moves when the numbers of the factors move by one, all in its direction, with factors
        as they are drawn. A folded map `W w` moves by H / 2 with W: w is drawn within 1, so |w| is 1 / 2 on average.
        """
        folded = (self.real_first, self.weighing.real)
        return {
            parameter: self.weighing.hidden / 2
            for layer in folded
            if layer is not None
            for parameter in layer.parameters()
        }

    def _parts(self, chunks: Iterable[tuple[Tensor, Tensor]], run_segment: SegmentRunner) -> Iterator[Tensor]:
        """Yield each chunk's part of the sum [N, H] for its values [N, C] and shares [N, C]."""
        for function, (values, shares) in zip(self._chunks(), chunks, strict=True):
            yield run_segment(self.name, function, values, shares)

    def _all_sizes(self) -> list[int]:
        return [*self.sizes[0], *self.sizes[1]]

    def _chunks(self) -> Iterator[Callable[[Tensor, Tensor], Tensor]]:
        """Yield one function per chunk: values [N, C] and shares [N, C] to the chunk's part of the sum [N, H]."""
        sizes = self._all_sizes()
        functions = chain(self._real_chunks(), self._category_chunks())
        seconds: Iterable[Chunk | None] = repeat(None, len(sizes)) if self.second is None else self.second.chunks(sizes)
        gates, scales = self.gate.chunks(sizes), self.norm.chunks(sizes)
        for function, second, gate, scale in zip(functions, seconds, gates, scales, strict=True):
            yield partial(function, partial(_gated_sum, second, self.dropout, gate, scale))

    def _real_chunks(self) -> Iterator[Callable[..., Tensor]]:
        if self.real_first is None or self.real_embedding is None:
            return
        firsts, embeddings = self.real_first.chunks(self.sizes[0]), self.real_embedding.chunks(self.sizes[0])
        for first, embed in zip(firsts, embeddings, strict=True):
            yield partial(_real_chunk, first, embed)

    def _category_chunks(self) -> Iterator[Callable[..., Tensor]]:
        if self.category_first is None or self.category_embedding is None:
            return
        firsts, embeddings = self.category_first.chunks(self.sizes[1]), self.category_embedding.chunks(self.sizes[1])
        for first, embed in zip(firsts, embeddings, strict=True):
            yield partial(_category_chunk, first, embed)


class SelectionWeights(nn.Module):
    """The GRN that weighs the variables: its first map and its skip act on folded embeddings (equation 6)."""

    def __init__(
        self,
        embedding: AffineVariables | None,
        size: GroupSize,
        hidden: int,
        *,
        context: bool,
        dropout: float,
    ) -> None:
        super().__init__()
        self.hidden = hidden
        outputs = hidden + size.total  # the first map's H, then the skip's V
        width = size.total * hidden  # what the paper's flattened embedding would have
        self.real = _folded_side_by_side(embedding, width, outputs) if embedding is not None else None
        categories = len(size.cardinalities)
        self.category = nn.Linear(categories * hidden, outputs, bias=self.real is None) if categories else None
        self.context = nn.Linear(hidden, hidden, bias=False) if context else None
        self.second: nn.Module | None = nn.Linear(hidden, hidden)
        self.dropout = Dropout(dropout)
        self.gate: nn.Module = nn.Linear(hidden, 2 * size.total)
        self.norm = nn.LayerNorm(size.total)

    def forward(self, real: Tensor, embedded: Tensor | None, context: Tensor | None) -> Tensor:
        """Return weights [B, T, V] that add up to one, of real [B, T, R] and embedded categories [B, T, K, H]."""
        maps = [self.real(real)] if self.real is not None else []
        if self.category is not None and embedded is not None:
            maps.append(self.category(embedded.flatten(-2)))
        first, skip = sum_in_order(maps).tensor_split([self.hidden], dim=-1)
        hidden = F.elu(add_context(first, self.context, context))
        gated = F.glu(self.gate(between(hidden, self.second, self.dropout)), dim=-1)
        return F.softmax(self.norm(skip + gated), dim=-1)


class InputLinear(nn.Linear):
    """A linear map of the scaled raw columns. It stays in floating point when its neighbours are quantized."""


class CategoryEmbedding(nn.Module):
    """Embeddings of all categorical variables in one table [sum of cardinalities, H], without a loop."""

    offsets: Tensor

    def __init__(self, cardinalities: tuple[int, ...], hidden: int) -> None:
        super().__init__()
        self.table = nn.Embedding(sum(cardinalities), hidden)
        starts = torch.tensor([0, *cardinalities[:-1]]).cumsum(0)
        self.register_buffer("offsets", starts, persistent=False)

    def forward(self, codes: Tensor) -> Tensor:
        """Return [..., K, H] for int64 codes [..., K]."""
        return _embed(self.table, self.offsets, codes)

    def chunks(self, sizes: list[int]) -> list[Chunk]:
        """Return the embedding cut into runs of variables: each takes codes [N, C] to [N, C, H]."""
        return [partial(_embed, self.table, offsets) for offsets in self.offsets.split(sizes)]


class VariableScale(nn.Module):
    """LayerNorm with an affine part per variable, followed by the weighted sum over the variables."""

    def __init__(self, variables: int, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(variables, hidden))
        self.bias = nn.Parameter(torch.zeros(variables, hidden))

    def chunks(self, sizes: list[int]) -> list[Callable[[Tensor, Tensor], Tensor]]:
        """Return one function per chunk: x [C, N, H] and shares [N, C] to the sum of x normalized, [N, H]."""
        pieces = zip(self.weight.split(sizes), self.bias.split(sizes), strict=True)
        return [partial(_weighted_sum, weight, bias) for weight, bias in pieces]


def selection_weights(selection: Weighing, x: Tensor, context: Tensor | None) -> Tensor:
    """Return the weights [..., V] of a selection network for x [..., V], real columns first, and a context [B, H]."""
    real, codes = x[..., : selection.real], x[..., selection.real :].long()
    embedded = selection.category_embedding(codes) if selection.category_embedding is not None else None
    weights: Tensor = selection.weighing(real, embedded, context)
    return weights


def sum_in_order(parts: Iterable[Tensor]) -> Tensor:
    """Return the sum of at least one tensor, added from the first to the last as they come."""
    return reduce(torch.add, parts)


def _real_chunk(
    first: AffineChunk, embed: AffineChunk, tail: Callable[..., Tensor], x: Tensor, shares: Tensor
) -> Tensor:
    scalars = with_ones(x)  # [C, N, 2]
    return tail(first(scalars), partial(embed, scalars), shares)


def _category_chunk(first: Chunk, embed: Chunk, tail: Callable[..., Tensor], codes: Tensor, shares: Tensor) -> Tensor:
    embedded = embed(codes.long()).transpose(0, 1)  # [C, N, H]
    return tail(first(embedded), partial(torch.add, embedded), shares)


def _gated_sum(
    second: Chunk | None,
    dropout: Dropout,
    gate: Chunk,
    scale: Callable[[Tensor, Tensor], Tensor],
    hidden: Tensor,
    add_skip: Chunk,
    shares: Tensor,
) -> Tensor:
    hidden = F.elu(hidden, inplace=True)  # the product before it does not need its result
    gated = F.glu(gate(between(hidden, second, dropout)), dim=-1)  # [C, N, H]
    return scale(add_skip(gated), shares)  # [N, H]


def _weighted_sum(weight: Tensor, bias: Tensor, x: Tensor, shares: Tensor) -> Tensor:
    biases = shares @ bias
    x, shares = x.to(weight.dtype), shares.to(weight.dtype)
    promised: Tensor = _PromisedSum.apply(x, weight, shares)  # type: ignore[no-untyped-call]
    # Nothing below is kept for the backward pass, so a recompute that stops early never gets here.
    summed: Tensor = _KeptPromise.apply(promised, x.detach(), weight.detach(), shares.detach())  # type: ignore[no-untyped-call]
    return summed + biases


class _PromisedSum(torch.autograd.Function):
    """The gradient of `sum over C of LayerNorm(x) * weight * shares`, keeping nothing of size [C, N, H] but x itself.

    What it returns has the sum's shape [N, H] and no values: `_KeptPromise` computes them.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, shares: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, shares)
        return x.new_empty(()).expand(x.shape[1:])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        (gradient,) = gradients  # [N, H]
        x, weight, shares = ctx.saved_tensors
        normalized, mean, deviation = normalize(x)
        products = normalized.mul_(gradient)  # [C, N, H]
        to_shares = (products @ weight.unsqueeze(-1)).squeeze(-1).t()  # [N, C]
        to_weight = (shares.t().unsqueeze(1) @ products).squeeze(1)  # [C, H]
        to_normalized = torch.mul(gradient, weight.unsqueeze(1), out=products).mul_(shares.t().unsqueeze(-1))
        to_x, _, _ = torch.ops.aten.native_layer_norm_backward(
            to_normalized, x, x.shape[-1:], mean, deviation, None, None, [True, False, False]
        )
        return to_x, to_weight, to_shares


class _KeptPromise(torch.autograd.Function):
    """The values of a promised sum; the gradient is the promise's."""

    @staticmethod
    def forward(ctx: Any, promised: Tensor, x: Tensor, weight: Tensor, shares: Tensor) -> Tensor:
        normalized, _, _ = normalize(x)
        return normalized.mul_(weight.unsqueeze(1)).mul_(shares.t().unsqueeze(-1)).sum(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return gradients[0], None, None, None


def _embed(table: nn.Embedding, offsets: Tensor, codes: Tensor) -> Tensor:
    embedded: Tensor = table(codes + offsets)
    return embedded


def _columns(x: Tensor, sizes: list[int]) -> tuple[Tensor, ...]:
    return x.split(sizes, dim=1) if sizes else ()


def chunk_sizes(variables: int, chunk: int) -> list[int]:
    """Return how many variables each chunk has: `chunk`, and the rest in the last."""
    full, rest = divmod(variables, chunk)
    return [chunk] * full + ([rest] if rest else [])


@torch.no_grad()
def _folded_first(embedding: AffineVariables) -> AffineVariables:
    """Draw the first map W [V, H, H], b [V, H] of each variable's GRN and fold the embedding into it."""
    variables, hidden = embedding.weight.shape
    weight, bias = uniform(hidden, variables, hidden, hidden), uniform(hidden, variables, hidden)
    return AffineVariables(
        torch.einsum("voh,vh->vo", weight, embedding.weight),
        torch.einsum("voh,vh->vo", weight, embedding.bias) + bias,
    )


@torch.no_grad()
def _folded_side_by_side(embedding: AffineVariables, width: int, outputs: int) -> InputLinear:
    """Draw one map W [outputs, V*H], b of the flattened embeddings and fold the embeddings into it."""
    variables, hidden = embedding.weight.shape
    folded = InputLinear(variables, outputs)
    weight = uniform(width, outputs, variables, hidden)
    folded.weight.copy_(torch.einsum("ovh,vh->ov", weight, embedding.weight))
    folded.bias.copy_(torch.einsum("ovh,vh->o", weight, embedding.bias) + uniform(width, outputs))
    return folded
