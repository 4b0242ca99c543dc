"""The TFT's building blocks over one sequence of vectors, and the batched linear map over many variables.

Legend: B batch, T time, N rows (any leading sizes), V variables, C variables of one chunk, H hidden.
Source: Lim, Arik, Loeff, Pfister (2021), "Temporal Fusion Transformers for Interpretable Multi-horizon Time
Series Forecasting", International Journal of Forecasting 37, equations 2 to 5.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qat_tft.model.dropout import Dropout

Chunk = Callable[[Tensor], Tensor]
"""A layer restricted to the variables of one chunk: [C, N, in] to [C, N, out]."""

AffineChunk = Callable[..., Tensor]
"""An affine map restricted to one chunk: [C, N, 2] to [C, N, H], or added to a tensor of that shape, in place."""


class GatedResidualNetwork(nn.Module):
    """Equations 2 to 5: `LayerNorm(x + GLU(W1 ELU(W2 x + W3 c + b2) + b1))`, input and output of size H.

    `second` (W1) is None once it has been merged into the gate: see `merge_second_into_gate`.
    """

    def __init__(self, hidden: int, *, context: bool, dropout: float) -> None:
        super().__init__()
        self.first = nn.Linear(hidden, hidden)
        self.context = nn.Linear(hidden, hidden, bias=False) if context else None
        self.second: nn.Module | None = nn.Linear(hidden, hidden)
        self.dropout = Dropout(dropout)
        self.gate: nn.Module = nn.Linear(hidden, 2 * hidden)
        self.norm = nn.LayerNorm(hidden)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Return [B, T, H] or [B, H] for an `x` of that shape; the context is [B, H]."""
        hidden = add_context(self.first(x), self.context, context)
        hidden = F.elu(hidden, inplace=True)  # the product before it does not need its result
        gated = F.glu(self.gate(between(hidden, self.second, self.dropout)), dim=-1)
        normalized: Tensor = self.norm(x + gated)
        return normalized


class GRNStack(nn.Module):
    """GRNs one after the other; with none of them, the identity."""

    def __init__(self, layers: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.grns = nn.ModuleList(GatedResidualNetwork(hidden, context=False, dropout=dropout) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of x's shape, [B, T, H] or [B, H]."""
        for grn in self.grns:
            x = grn(x)
        return x


class GatedSkip(nn.Module):
    """`LayerNorm(skip + GLU(dropout(x)))`: how the LSTM, the attention and the last GRN are passed by."""

    def __init__(self, hidden: int, dropout: float) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.gate = nn.Linear(hidden, 2 * hidden)
        self.norm = nn.LayerNorm(hidden)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        """Return [B, T, H] for two tensors of that shape."""
        normalized: Tensor = self.norm(skip + F.glu(self.gate(self.dropout(x)), dim=-1))
        return normalized


class VariableLinear(nn.Module):
    """One linear map per variable, all in one batched matrix product.

    Shapes: weight [V, out, in], bias [V, out]; maps [V, N, in] to [V, N, out].
    """

    def __init__(self, variables: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = uniform_parameter(inputs, variables, outputs, inputs)
        self.bias = uniform_parameter(inputs, variables, outputs)

    def chunks(self, sizes: list[int]) -> list[Chunk]:
        """Return the layer cut into runs of variables.

        The weights are split once for all chunks: the backward of a split puts the pieces' gradients together
        in one pass, where a slice per chunk would add one gradient of the whole size per chunk.
        """
        pieces = zip(self.weight.split(sizes), self.bias.split(sizes), strict=True)
        return [partial(variable_linear, weight, bias) for weight, bias in pieces]

    def cut(self, sizes: list[int]) -> CutLayer:
        """Return the layer for inference, each chunk's weights [C, in, out] stored on their own."""
        return CutLayer(_matmul, (self.weight.transpose(1, 2), self.bias.unsqueeze(1)), sizes)


def variable_linear(weight: Tensor, bias: Tensor, x: Tensor) -> Tensor:
    """Return x [C, N, in] times weight [C, out, in] plus bias [C, out]: [C, N, out]."""
    return torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2))


class AffineVariables(nn.Module):
    """One scalar per variable to one vector per variable: `x_j * weight_j + bias_j`, weight and bias [V, H]."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(bias)

    def chunks(self, sizes: list[int]) -> list[AffineChunk]:
        """Return the map cut into runs of variables: each takes `with_ones(x)` [C, N, 2] to [C, N, H]."""
        return [partial(_affine, rows) for rows in self.rows().split(sizes)]

    def cut(self, sizes: list[int]) -> CutLayer:
        """Return the map for inference, each chunk's weights stored on their own."""
        return CutLayer(_affine_rows, (self.rows(),), sizes)

    def rows(self) -> Tensor:
        """Return weights and biases, [V, 2, H]."""
        return torch.stack([self.weight, self.bias], 1)


def with_ones(x: Tensor) -> Tensor:
    """Return x [N, C] as [C, N, 2]: each number and a one, so that `x w + b` is one product with inner size 2."""
    return torch.stack([x, torch.ones_like(x)], -1).transpose(0, 1)


class CutLayer(nn.Module):
    """A per-variable layer for inference: cut into chunks once, so that no graph slices its weights at run time.

    Args:
        function: takes one piece of each tensor, then the chunk's inputs.
        tensors: first dimension V each, or a multiple of it.
        sizes: how many variables each chunk has.
        rows: how many rows of the tensors each variable has.
    """

    def __init__(
        self, function: Callable[..., Tensor], tensors: tuple[Tensor, ...], sizes: list[int], *, rows: int = 1
    ) -> None:
        super().__init__()
        self.function = function
        self.sizes = sizes
        self.names: list[list[str]] = []
        cuts = [size * rows for size in sizes]
        for chunk, pieces in enumerate(zip(*(tensor.detach().split(cuts) for tensor in tensors), strict=True)):
            self.names.append([f"chunk{chunk}_{position}" for position in range(len(pieces))])
            for name, piece in zip(self.names[-1], pieces, strict=True):
                self.register_buffer(name, piece.clone(memory_format=torch.contiguous_format))

    def chunks(self, sizes: list[int]) -> list[Callable[..., Tensor]]:
        """Return one function per chunk; `sizes` must be those the layer was cut into."""
        if sizes != self.sizes:
            raise ValueError(f"the layer was cut into chunks of {self.sizes}, not {sizes}")
        return [partial(self.function, *(self.get_buffer(name) for name in names)) for names in self.names]


def _matmul(weight: Tensor, bias: Tensor, x: Tensor) -> Tensor:
    return x @ weight + bias


def _affine(rows: Tensor, x: Tensor, onto: Tensor | None = None) -> Tensor:
    if onto is None:
        return x @ rows
    return onto.baddbmm_(x.to(onto.dtype), rows.to(onto.dtype))  # autocast leaves in-place operators alone


def _affine_rows(rows: Tensor, x: Tensor) -> Tensor:
    return x @ rows


def between(hidden: Tensor, second: nn.Module | Chunk | None, dropout: Dropout) -> Tensor:
    """Return what stands between the activation and the gate: the second linear map, if any, and dropout."""
    return dropout(hidden if second is None else second(hidden))  # type: ignore[no-any-return]


def add_context(hidden: Tensor, layer: nn.Module | None, context: Tensor | None) -> Tensor:
    """Return hidden [B, T, H] or [B, H] plus the context [B, H] mapped by its layer, if there is one."""
    if layer is None or context is None:
        return hidden
    mapped: Tensor = layer(context)
    return hidden + (mapped.unsqueeze(1) if hidden.dim() == 3 else mapped)


def uniform_parameter(fan_in: int, *shape: int) -> nn.Parameter:
    """Return a parameter drawn as torch draws a Linear's: uniform within one over the root of its inputs."""
    return nn.Parameter(uniform(fan_in, *shape))


def uniform(fan_in: int, *shape: int) -> Tensor:
    """Return a tensor drawn uniformly within plus and minus one over the root of `fan_in`."""
    bound = 1 / math.sqrt(max(fan_in, 1))
    return torch.empty(*shape).uniform_(-bound, bound)


def replace_module(model: nn.Module, name: str, new: nn.Module) -> None:
    """Put a module in the place of the one that `named_modules` of the model calls by that name."""
    parent, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(parent), attribute, new)


@torch.no_grad()
def merge_maps(second: nn.Linear | VariableLinear, gate: nn.Linear | VariableLinear) -> None:
    """Make a GRN's gate act on what its second map used to get; products in double precision, rounded once."""
    weight, bias = gate.weight.double(), gate.bias.double()
    gate.bias.copy_(_rows(weight, second.bias.double()) + bias)
    gate.weight.copy_(weight @ second.weight.double())


def _rows(weight: Tensor, vector: Tensor) -> Tensor:
    """Return weight [..., out, in] times vector [..., in]: [..., out]."""
    return (weight @ vector.unsqueeze(-1)).squeeze(-1)
