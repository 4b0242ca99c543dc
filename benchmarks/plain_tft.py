"""A TFT with the selection networks of the paper, written straightforwardly: the model that ours is compared with.

Legend: B batch, T time, N rows (B or B*T), V variables, H hidden. Source: Lim et al. (2021), equations 2 to 8.

Every real variable is embedded in H numbers, all embeddings are laid side by side for the GRN that weighs them, and
the GRNs of all variables run at once in batched products. Nothing is folded, merged, cut into chunks or written by
hand. What stands behind the selections is the paper's in our model as well and is taken from there.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qat_tft.checkpointing.segments import SegmentRunner, run_directly
from qat_tft.model.layers import GRNStack
from qat_tft.model.recurrence import Recurrence
from qat_tft.model.selection import VariableSelection
from qat_tft.model.tft import (
    Forecast,
    StaticContexts,
    StaticEncoder,
    TemporalAttention,
    TemporalFusionTransformer,
)


class PlainTFT(nn.Module):
    """The TFT for real columns; at least one column in each group.

    Args:
        static, historical, future: number of columns of each group.
        horizon: steps forecast.
        hidden: H.
        heads: attention heads.
        dropout: probability of every dropout layer.
        quantiles: how many are forecast.
    """

    def __init__(
        self,
        static: int,
        historical: int,
        future: int,
        *,
        horizon: int,
        hidden: int,
        heads: int,
        dropout: float,
        quantiles: int,
    ) -> None:
        super().__init__()
        self.static_selection = PlainSelection(static, hidden, dropout, context=False)
        self.historical_selection = PlainSelection(historical, hidden, dropout, context=True)
        self.future_selection = PlainSelection(future, hidden, dropout, context=True)
        self.static_encoder = StaticEncoder(GRNStack(0, hidden, dropout), hidden, dropout)
        self.lstm_encoder = Recurrence(hidden)
        self.lstm_decoder = Recurrence(hidden)
        self.temporal_attention = TemporalAttention(hidden, heads, horizon, context=True, dropout=dropout)
        self.head = nn.Linear(hidden, quantiles)

    @classmethod
    def beside(cls, model: TemporalFusionTransformer) -> PlainTFT:
        """Return a plain model, without dropout, with new selection networks and all else as in ours, of real columns.

        What is drawn for the selection networks is distributed as in ours, where it is folded.
        """
        plain = cls(
            *(group.real for group in model.groups.values()),
            horizon=model.horizon,
            hidden=model.hidden,
            heads=model.temporal_attention.attention.heads,
            dropout=0.0,
            quantiles=len(model.quantiles),
        )
        for name in ("static_encoder", "lstm_encoder", "lstm_decoder", "temporal_attention", "head"):
            getattr(plain, name).load_state_dict(getattr(model, name).state_dict())
        return plain

    @classmethod
    @torch.no_grad()
    def of(cls, model: TemporalFusionTransformer) -> PlainTFT:
        """Return a plain model that computes what ours computes, dropout aside; its columns must all be real."""
        plain = cls.beside(model)
        for name in ("static_selection", "historical_selection", "future_selection"):
            getattr(plain, name).unfold(getattr(model, name))
        return plain.eval()

    def forward(
        self, static: Tensor, historical: Tensor, future: Tensor, run_segment: SegmentRunner = run_directly
    ) -> Forecast:
        """Return the forecast for static [B, Vs], historical [B, T, Vh] and future [B, F, Vf].

        `run_segment` is there to fit where our model does; nothing is ever recomputed.
        """
        selected, static_weights = self.static_selection(static)
        contexts = StaticContexts(*self.static_encoder(selected))
        past, historical_weights = self.historical_selection(historical, contexts.selection)
        coming, future_weights = self.future_selection(future, contexts.selection)
        encoded, hidden, cell = self.lstm_encoder(past, contexts.hidden_state, contexts.cell_state)
        decoded, _, _ = self.lstm_decoder(coming, hidden, cell)
        outputs, attention = self.temporal_attention(
            torch.cat([encoded, decoded], 1), torch.cat([past, coming], 1), contexts.enrichment, None
        )
        return Forecast(self.head(outputs), attention, static_weights, historical_weights, future_weights)


class PlainSelection(nn.Module):
    """Embeds each variable, weighs them by a GRN over all embeddings, and adds up one GRN each (equations 6 to 8)."""

    def __init__(self, variables: int, hidden: int, dropout: float, *, context: bool) -> None:
        super().__init__()
        self.embedding_weight = nn.Parameter(torch.empty(variables, hidden).uniform_(-1, 1))
        self.embedding_bias = nn.Parameter(torch.empty(variables, hidden).uniform_(-1, 1))
        self.weighing = PlainGRN(variables * hidden, hidden, variables, dropout, context=context)
        self.grns = VariableGRNs(variables, hidden, dropout)

    def forward(self, x: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the selected [B, T, H] and the weights [B, T, V] of x [B, T, V]; without T for a static x."""
        embedded = x.unsqueeze(-1) * self.embedding_weight + self.embedding_bias  # [B, T, V, H]
        if context is not None:
            context = context.unsqueeze(1)  # [B, 1, H]
        weights = F.softmax(self.weighing(embedded.flatten(-2), context), dim=-1)  # [B, T, V]
        transformed = self.grns(embedded.flatten(0, -3).transpose(0, 1))  # [V, N, H]
        selected = (transformed * weights.flatten(0, -2).t().unsqueeze(-1)).sum(0)  # [N, H]
        return selected.unflatten(0, x.shape[:-1]), weights

    @torch.no_grad()
    def unfold(self, folded: VariableSelection) -> None:
        """Take over the weights of our selection network.

        A folded map of a variable is a slope and an offset in its one number x. Of the maps that give these for
        the embedding `x w + b`, the one that is taken looks at the direction of w alone.
        """
        slope, offset = folded.real_embedding.weight, folded.real_embedding.bias  # [V, H]
        direction = slope / slope.square().sum(-1, keepdim=True)
        grns, weighing = self.grns, self.weighing
        self.embedding_weight.copy_(slope)
        self.embedding_bias.copy_(offset)
        first = folded.real_first
        grns.first.weight.copy_(torch.einsum("vi,vo->vio", direction, first.weight))
        grns.first.bias.copy_((first.bias - torch.einsum("vio,vi->vo", grns.first.weight, offset)).unsqueeze(1))
        for name in ("second", "gate"):
            getattr(grns, name).weight.copy_(getattr(folded, name).weight.transpose(1, 2))
            getattr(grns, name).bias.copy_(getattr(folded, name).bias.unsqueeze(1))
        grns.norm_weight.copy_(folded.norm.weight.unsqueeze(1))
        grns.norm_bias.copy_(folded.norm.bias.unsqueeze(1))
        wide = torch.einsum("ov,vh->ovh", folded.weighing.real.weight, direction)
        bias = folded.weighing.real.bias - torch.einsum("ovh,vh->o", wide, offset)
        hidden = slope.shape[1]  # the rows of the first map, then those of the skip
        for layer, rows in ((weighing.first, slice(hidden)), (weighing.skip, slice(hidden, None))):
            layer.weight.copy_(wide[rows].flatten(1))
            layer.bias.copy_(bias[rows])
        for name in ("second", "gate", "norm"):
            getattr(weighing, name).load_state_dict(getattr(folded.weighing, name).state_dict())
        if weighing.context is not None:
            weighing.context.load_state_dict(folded.weighing.context.state_dict())


class PlainGRN(nn.Module):
    """One gated residual network, with a linear skip where the width changes (equations 2 to 5)."""

    def __init__(self, inputs: int, hidden: int, outputs: int, dropout: float, *, context: bool) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, hidden)
        self.context = nn.Linear(hidden, hidden, bias=False) if context else None
        self.second = nn.Linear(hidden, hidden)
        self.dropout = nn.Dropout(dropout)
        self.gate = nn.Linear(hidden, 2 * outputs)
        self.skip = nn.Linear(inputs, outputs)
        self.norm = nn.LayerNorm(outputs)

    def forward(self, x: Tensor, context: Tensor | None) -> Tensor:
        """Return [..., outputs] for x [..., inputs]."""
        hidden = self.first(x)
        if self.context is not None:
            hidden = hidden + self.context(context)
        hidden = self.dropout(self.second(F.elu(hidden)))
        normalized: Tensor = self.norm(self.skip(x) + F.glu(self.gate(hidden), dim=-1))
        return normalized


class VariableGRNs(nn.Module):
    """One GRN per variable, all at once; each has H inputs and outputs."""

    def __init__(self, variables: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.first = VariableLinear(variables, hidden, hidden)
        self.second = VariableLinear(variables, hidden, hidden)
        self.dropout = nn.Dropout(dropout)
        self.gate = VariableLinear(variables, hidden, 2 * hidden)
        self.norm = nn.LayerNorm(hidden, elementwise_affine=False)
        self.norm_weight = nn.Parameter(torch.ones(variables, 1, hidden))
        self.norm_bias = nn.Parameter(torch.zeros(variables, 1, hidden))

    def forward(self, x: Tensor) -> Tensor:
        """Return [V, N, H] for x [V, N, H]."""
        hidden = self.dropout(self.second(F.elu(self.first(x))))
        normalized: Tensor = self.norm(x + F.glu(self.gate(hidden), dim=-1))
        return normalized * self.norm_weight + self.norm_bias


class VariableLinear(nn.Module):
    """One linear map per variable: weight [V, in, out], bias [V, 1, out]; from [V, N, in] to [V, N, out]."""

    def __init__(self, variables: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = inputs**-0.5
        self.weight = nn.Parameter(torch.empty(variables, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(variables, 1, outputs).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        """Return x times the weights, plus the biases."""
        return torch.baddbmm(self.bias, x, self.weight)
