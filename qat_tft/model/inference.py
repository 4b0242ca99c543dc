"""Selection networks laid out for inference: each chunk's weights stored on their own, and few operators per chunk.

Legend as in `selection`: B batch, T time, N rows, V variables (R real, then K categorical), C variables of one chunk,
H hidden. At inference time goes into passes over [C, N, H] tensors. Small chunks keep these in the cache, large ones
need fewer operators; what does not depend on the chunk is computed for all variables at once.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from qat_tft.checkpointing.segments import SegmentRunner
from qat_tft.model.layers import CutLayer, replace_module, with_ones
from qat_tft.model.selection import VariableSelection, chunk_sizes, selection_weights, sum_in_order

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


def cut_selections(model: nn.Module) -> None:
    """Put every selection network of a model into its form for inference, in place."""
    for name, module in list(model.named_modules()):
        if isinstance(module, VariableSelection):
            replace_module(model, name, CutSelection(module))


def _normalized(weight: Tensor, x: Tensor) -> Tensor:
    normalized = F.layer_norm(x, x.shape[-1:]) * weight  # [C, N, H]
    return normalized.transpose(0, 1)  # [N, C, H]
