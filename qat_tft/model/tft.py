"""The Temporal Fusion Transformer, run segment by segment.

Legend: B batch, T history, F horizon, S = T + F, H hidden, Q quantiles; Vs, Vh, Vf columns of the static,
historical and future group. Source: Lim et al. (2021), section 4.

Where the history has the column `history.present`, steps at which it is 0 are padding: their values are dropped
before the selection, they enter the LSTM as zero vectors, and no attention goes to them (docs/decisions/020).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from qat_tft.checkpointing.recompute import runner_for
from qat_tft.checkpointing.segments import Mode, SegmentRunner, run_directly
from qat_tft.model.attention import InterpretableAttention
from qat_tft.model.folding import fold_for_inference
from qat_tft.model.forms import KNOTS, variables_together
from qat_tft.model.layers import GatedResidualNetwork, GatedSkip, GRNStack
from qat_tft.model.recurrence import LearnedSequence, Recurrence
from qat_tft.model.selection import VariableSelection
from qat_tft.model.tabulated import selection_network
from qat_tft.schema import GroupSize


class Forecast(NamedTuple):
    """What the model returns: quantiles, and the weights that explain them."""

    quantiles: Tensor  # [B, F, Q]
    attention: Tensor  # [B, F, S]: weight of each position for each forecast step
    static_weights: Tensor  # [B, Vs]
    historical_weights: Tensor  # [B, T, Vh], without a column for history.present
    future_weights: Tensor  # [B, F, Vf]


class TemporalFusionTransformer(nn.Module):
    """The TFT of Lim et al. (2021) for scaled inputs and a scaled target.

    Args:
        static: the widths of the static inputs, which may be empty.
        historical: the widths of the inputs of the history.
        future: the widths of the inputs of the steps to forecast, which may be empty.
        history: T, in steps.
        horizon: F, in steps.
        hidden: H, the size of every vector in the model.
        heads: attention heads; must divide `hidden`.
        dropout: probability of every dropout layer.
        quantiles: the levels to forecast, ascending.
        encoder_layers: GRNs stacked after each selection network; 0 is exactly the paper.
        selection: "tabulated" computes each variable's GRN at knots, "exact" at every row.
        knots: knots of each real variable where the selection is tabulated.
        selection_chunk: variables that a selection network computes together; None: what suits its form on a CPU.

    Raises:
        ValueError: a size is not positive, `heads` does not divide `hidden`, there is no historical column, no form of
            selection has that name, or there are fewer than 3 knots.
    """

    def __init__(
        self,
        static: GroupSize,
        historical: GroupSize,
        future: GroupSize,
        *,
        history: int,
        horizon: int,
        hidden: int = 64,
        heads: int = 4,
        dropout: float = 0.1,
        quantiles: tuple[float, ...] = (0.1, 0.5, 0.9),
        encoder_layers: int = 0,
        selection: str = "tabulated",
        knots: int = KNOTS,
        selection_chunk: int | None = None,
    ) -> None:
        super().__init__()
        chunk = variables_together(selection, selection_chunk)
        _require_sizes(historical, history, horizon, hidden, heads, chunk)
        self.history, self.horizon, self.hidden, self.quantiles = history, horizon, hidden, quantiles
        self.groups = {"static": static, "historical": historical, "future": future}

        def select(name: str, size: GroupSize, context: bool) -> VariableSelection | None:
            if not size.total:
                return None
            full_name, options = f"{name}_selection", {"chunk": chunk, "knots": knots}
            return selection_network(selection, full_name, size, hidden, context=context, dropout=dropout, **options)

        def encoder() -> GRNStack:
            return GRNStack(encoder_layers, hidden, dropout)

        has_static = static.total > 0
        self.static_selection = select("static", static, context=False)
        self.historical_selection = select("historical", historical.variables, context=has_static)
        self.future_selection = select("future", future, context=has_static)
        self.static_encoder = StaticEncoder(encoder(), hidden, dropout) if has_static else None
        self.historical_encoder = encoder()
        self.future_encoder = encoder() if future.total else None
        self.unknown_future = None if future.total else LearnedSequence(horizon, hidden)
        self.lstm_encoder = Recurrence(hidden)
        self.lstm_decoder = Recurrence(hidden)
        self.temporal_attention = TemporalAttention(hidden, heads, horizon, context=has_static, dropout=dropout)
        self.head = nn.Linear(hidden, len(quantiles))

    def forward(
        self, static: Tensor, historical: Tensor, future: Tensor, run_segment: SegmentRunner = run_directly
    ) -> Forecast:
        """Return the forecast for static [B, Vs], historical [B, T, Vh] and future [B, F, Vf].

        In each tensor the real columns come first, scaled, then the categories' codes as floating-point numbers.
        `run_segment` decides which parts are recomputed in the backward pass; results do not depend on it.
        """
        contexts, static_weights = self._static(static, run_segment)
        historical, present = self._without_padding(historical)
        past, historical_weights = self._sequence("historical", historical, contexts.selection, run_segment)
        if present is not None:
            past = torch.where(present.unsqueeze(-1), past, 0)
        if self.unknown_future is None:
            coming, future_weights = self._sequence("future", future, contexts.selection, run_segment)
        else:
            coming, future_weights = self.unknown_future(future.shape[0]), future
        encoded, hidden, cell = run_segment(
            "lstm_encoder", self.lstm_encoder, past, contexts.hidden_state, contexts.cell_state
        )
        decoded, _, _ = run_segment("lstm_decoder", self.lstm_decoder, coming, hidden, cell)
        outputs, attention = run_segment(
            "temporal_attention",
            self.temporal_attention,
            torch.cat([encoded, decoded], 1),
            torch.cat([past, coming], 1),
            contexts.enrichment,
            present,
        )
        return Forecast(self.head(outputs), attention, static_weights, historical_weights, future_weights)

    def forward_with_checkpointing(
        self, static: Tensor, historical: Tensor, future: Tensor, use_checkpointing: bool
    ) -> Forecast:
        """Return what `forward` returns, with every segment recomputed in the backward pass if asked for."""
        runner = runner_for(Mode.FULL if use_checkpointing else Mode.OFF)
        forecast: Forecast = self(static, historical, future, runner)
        return forecast

    def output_units(self, historical: Tensor) -> tuple[Tensor, Tensor]:
        """Return center and scale of the units that the network forecasts in, [B, 1 or F, 1], for scaled histories.

        They are those of the scaled target here, 0 and 1.
        """
        center = historical.new_zeros(len(historical), 1, 1)
        return center, torch.ones_like(center)

    def folded(self) -> TemporalFusionTransformer:
        """Return an equal model for inference: fewer products, and weights cut into their chunks."""
        return fold_for_inference(self)

    def _without_padding(self, historical: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the variables, 0 at padded steps, and which steps are none [B, T]; None where no history is padded."""
        column = self.groups["historical"].present
        if column is None:
            return historical, None
        present = steps_present(historical, column)
        variables = torch.cat([historical[..., :column], historical[..., column + 1 :]], -1)
        return torch.where(present.unsqueeze(-1), variables, 0), present  # not a product: padding may be infinite

    def _static(self, static: Tensor, run_segment: SegmentRunner) -> tuple[StaticContexts, Tensor]:
        if self.static_selection is None or self.static_encoder is None:
            zeros = static.new_zeros(static.shape[0], self.hidden)
            return StaticContexts(None, zeros, zeros, None), static
        selected, weights = self.static_selection(static, None, run_segment)
        return StaticContexts(*run_segment("static_encoder", self.static_encoder, selected)), weights

    def _sequence(
        self, name: str, x: Tensor, context: Tensor | None, run_segment: SegmentRunner
    ) -> tuple[Tensor, Tensor]:
        selection: VariableSelection = getattr(self, f"{name}_selection")
        selected, weights = selection(x, context, run_segment)
        encoder: GRNStack = getattr(self, f"{name}_encoder")
        return run_segment(f"{name}_encoder", encoder, selected), weights


def steps_present(historical: Tensor, column: int) -> Tensor:
    """Return bool [B, T]: where the column `history.present` of a history [B, T, Vh] says that there is a row."""
    return historical[..., column] > 0.5


class StaticContexts(NamedTuple):
    """The four context vectors of the static columns, each [B, H] (section 4.3)."""

    selection: Tensor | None
    hidden_state: Tensor
    cell_state: Tensor
    enrichment: Tensor | None


class StaticEncoder(nn.Module):
    """A stack of GRNs over the selected static vector, then one GRN per context vector."""

    def __init__(self, grns: GRNStack, hidden: int, dropout: float) -> None:
        super().__init__()
        self.grns = grns
        self.contexts = nn.ModuleList(
            GatedResidualNetwork(hidden, context=False, dropout=dropout) for _ in StaticContexts._fields
        )

    def forward(self, selected: Tensor) -> tuple[Tensor, ...]:
        """Return the vectors of `StaticContexts` in order, each [B, H], for the selected [B, H]."""
        encoded = self.grns(selected)
        return tuple(grn(encoded) for grn in self.contexts)


class TemporalAttention(nn.Module):
    """Gated skip past the LSTM, static enrichment, attention and position-wise GRN (sections 4.5.1 to 4.5.4)."""

    def __init__(self, hidden: int, heads: int, horizon: int, *, context: bool, dropout: float) -> None:
        super().__init__()
        self.horizon = horizon
        self.lstm_skip = GatedSkip(hidden, dropout)
        self.enrichment = GatedResidualNetwork(hidden, context=context, dropout=dropout)
        self.attention = InterpretableAttention(hidden, heads, dropout)
        self.attention_skip = GatedSkip(hidden, dropout)
        self.position_wise = GatedResidualNetwork(hidden, context=False, dropout=dropout)
        self.output_skip = GatedSkip(hidden, dropout)

    def forward(
        self, recurrent: Tensor, selected: Tensor, context: Tensor | None, present: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return [B, F, H] and attention weights [B, F, S] of the LSTM's outputs and inputs, both [B, S, H].

        `present` [B, T] is false at steps that get no attention.
        """
        temporal = self.lstm_skip(recurrent, selected)
        enriched = self.enrichment(temporal, context)
        attended, weights = self.attention(enriched, self.horizon, present)
        attended = self.attention_skip(attended, enriched[:, -self.horizon :])
        return self.output_skip(self.position_wise(attended), temporal[:, -self.horizon :]), weights


def _require_sizes(
    historical: GroupSize, history: int, horizon: int, hidden: int, heads: int, selection_chunk: int
) -> None:
    sizes = {"history": history, "horizon": horizon, "hidden": hidden, "heads": heads}
    for name, value in {**sizes, "selection_chunk": selection_chunk}.items():
        if value < 1:
            raise ValueError(f"{name} is {value}: it must be at least 1")
    if hidden % heads:
        raise ValueError(f"hidden is {hidden}: it must be a multiple of heads, which is {heads}")
    if not historical.total:
        raise ValueError("there is no historical column: at least the target's history must be one")
