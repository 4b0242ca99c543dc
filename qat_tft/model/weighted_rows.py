"""Weighted sums of a table's rows: gather, interpolation and the sum over variables as one operation.

Nothing of size [N, M, H] is built, forward or backward.

Legend: R rows of the table, N sums, M summands of each, H hidden.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

_SUM = 0  # how torch's embedding_bag numbers its modes


def sum_of_rows(table: Tensor, index: Tensor, weights: Tensor) -> Tensor:
    """Return `sum over m of weights[n, m] * table[index[n, m]]`, [N, H], with gradients for table and weights.

    Args:
        table: [R, H].
        index: int32 [N, M], each from 0 to R - 1.
        weights: [N, M], in the table's number format.
    """
    if not torch.is_grad_enabled():
        return _bags(table, index, weights)
    promised: Tensor = _PromisedSum.apply(table, index, weights)  # type: ignore[no-untyped-call]
    # Nothing below is kept for the backward pass, so a recompute that stops early never gets here.
    summed: Tensor = _KeptPromise.apply(promised, table.detach(), index, weights.detach())  # type: ignore[no-untyped-call]
    return summed


class _PromisedSum(torch.autograd.Function):
    """The gradient of torch's embedding_bag; what it returns has the sum's shape [N, H] and no values.

    The gradient of a row is a weighted sum of the rows of the incoming gradient: an embedding_bag again, once the
    summands are sorted by the row they take. torch's own backward takes three to four times as long.
    """

    @staticmethod
    def forward(ctx: Any, table: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(table, index, weights)
        return table.new_empty(()).expand(len(index), table.shape[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, Tensor | None]:
        table, index, weights = ctx.saved_tensors
        gradient = gradients[0].contiguous()  # [N, H]
        to_table, to_weights = ctx.needs_input_grad[0], ctx.needs_input_grad[2]
        return (
            _table_gradient(gradient, index, weights, len(table)) if to_table else None,
            None,
            _weights_gradient(gradient, table, index) if to_weights else None,
        )


class _KeptPromise(torch.autograd.Function):
    """The values of a promised sum; the gradient is the promise's."""

    @staticmethod
    def forward(ctx: Any, promised: Tensor, table: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        return _bags(table, index, weights)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return gradients[0], None, None, None


def _bags(table: Tensor, index: Tensor, weights: Tensor) -> Tensor:
    return F.embedding_bag(index, table, per_sample_weights=weights, mode="sum")


def _table_gradient(gradient: Tensor, index: Tensor, weights: Tensor, rows: int) -> Tensor:
    """Return [R, H]: for each row of the table the sum of `weights[n, m] * gradient[n]` over what took it."""
    taken, order = index.flatten().sort(stable=True)
    starts = torch.searchsorted(taken, torch.arange(rows, device=taken.device, dtype=taken.dtype), out_int32=True)
    sums = (order // index.shape[1]).to(index.dtype)
    return F.embedding_bag(sums, gradient, starts, per_sample_weights=weights.flatten()[order], mode="sum")


def _weights_gradient(gradient: Tensor, table: Tensor, index: Tensor) -> Tensor:
    """Return [N, M]: the inner products of `gradient[n]` and `table[index[n, m]]`."""
    count, summands = index.shape
    starts = torch.arange(0, count * summands, summands, device=index.device, dtype=index.dtype)
    owner = torch.arange(count, device=index.device, dtype=index.dtype).repeat_interleave(summands)
    products: Tensor = torch.ops.aten._embedding_bag_per_sample_weights_backward(
        gradient, table, index.flatten(), starts, owner, _SUM
    )
    return products.view(count, summands)
