"""Which layers can have fewer bits: from eight down, the cheapest first, within a budget of q-risk or bytes.

What a layer costs is measured with that layer alone at fewer bits. Costs do not simply add up, so every choice is
measured as a whole. Layers keep the ranges that they were calibrated with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from qat_tft.quantization.bits import BitLayout, Bits
from qat_tft.quantization.lstm import QuantizedLSTM
from qat_tft.quantization.prepare import QATTemporalFusionTransformer
from qat_tft.quantization.rounding_costs import Risks, mean, rise
from qat_tft.quantization.stored import StoredLSTM
from qat_tft.quantization.weights import WeightBits, weight_roundings

STEPS: tuple[tuple[Bits, Bits], ...] = ((8, 4), (4, 2))
"""How the bits of a layer fall."""


class Move(NamedTuple):
    """One layer from more bits to fewer: what it costs alone, as a share of the mean q-risk, and saves, in bytes."""

    layer: str
    bits: Bits
    cost: float
    saved: float


@dataclass(frozen=True)
class BitChoice:
    """Layers with fewer than eight bits, and what that was measured to cost.

    Attributes:
        bits: of these layers.
        risks: q-risk of the calibrated model with them.
        weight_bytes: of all weights that the search may change, with them.
    """

    bits: Mapping[str, Bits]
    risks: Risks
    weight_bytes: float


@dataclass(frozen=True)
class BitSearch:
    """A search on a calibrated model whose weights all have eight bits.

    Attributes:
        model: quantized; its roundings are as they were when a call returns.
        measure: returns the q-risks of the model as it is when called.
        reference: q-risks of the floating-point model.
    """

    model: QATTemporalFusionTransformer
    measure: Callable[[], Risks]
    reference: Risks

    def moves(self, measured: Callable[[str], None] = lambda layer: None) -> list[Move]:
        """Return every move, the least cost per byte first, and from four bits never before from eight."""
        eight = mean(self.measure())
        found: list[Move] = []
        for layer, size in self._sizes.items():
            costs = {8: 0.0}
            for before, after in STEPS:
                if after < self._fewest(layer):
                    break
                with self._with_bits({layer: after}):
                    costs[after] = mean(self.measure()) / eight - 1.0
                found.append(Move(layer, after, costs[after] - costs[before], size * (before - after) / 8))
            measured(layer)
        return _in_order(found)

    def within_drop(self, moves: Sequence[Move], drop: float) -> BitChoice | None:
        """Return the longest run of moves whose mean q-risk is at most that share above the reference's, by bisection.

        None where not even eight bits are within it.
        """
        most = (1.0 + drop) * mean(self.reference)
        low, high = 0, len(moves)
        best = self._choice(moves[:low])
        if mean(best.risks) > most:
            return None
        while low < high:
            middle = (low + high + 1) // 2
            found = self._choice(moves[:middle])
            if mean(found.risks) <= most:
                low, best = middle, found
            else:
                high = middle - 1
        return best

    def within_bytes(self, moves: Sequence[Move], most: float) -> BitChoice | None:
        """Return the shortest run of moves whose weights take at most so many bytes; None where no run does."""
        runs = (moves[:count] for count in range(len(moves) + 1))
        return next((self._choice(run) for run in runs if self._bytes_after(run) <= most), None)

    def fewest_bytes(self, moves: Sequence[Move]) -> float:
        """Return the bytes of the weights with every move made."""
        return self._bytes_after(moves)

    def drop(self, choice: BitChoice) -> float:
        """Return by which share the mean q-risk of a choice lies above the reference's."""
        return rise(choice.risks, self.reference)

    def _choice(self, moves: Sequence[Move]) -> BitChoice:
        bits = {move.layer: move.bits for move in moves}  # a later move of a layer is the one that holds
        with self._with_bits(bits):
            risks = self.measure()
        return BitChoice(bits, risks, self._bytes_after(moves))

    def _bytes_after(self, moves: Sequence[Move]) -> float:
        return sum(self._sizes.values()) - sum(move.saved for move in moves)

    @cached_property
    def _sizes(self) -> dict[str, int]:
        """Return the number of weights, and so of bytes with eight bits, of each layer that may have fewer."""
        sizes: dict[str, int] = {}
        quantizable = self.model.roundings()
        for name, codes in self.model.codes().items():
            layer = name.rpartition(".")[0]
            if layer in quantizable and self._fewest(layer) < 8:
                sizes[layer] = sizes.get(layer, 0) + codes.numel()
        return sizes

    def _fewest(self, layer: str) -> Bits:
        is_lstm = isinstance(self.model.model.get_submodule(layer), _LSTMS)
        return BitLayout(2).of(layer, "lstm" if is_lstm else "linear") if layer not in self.model.tables() else 8

    @contextmanager
    def _with_bits(self, bits: Mapping[str, Bits]) -> Iterator[None]:
        changed = []
        try:
            for layer, count in bits.items():
                module = self.model.model.get_submodule(layer)
                for place, rounding in weight_roundings(module).items():
                    name = f"rounding{place}"
                    changed.append((module, name, rounding))
                    setattr(module, name, WeightBits(count).rounding(getattr(module, f"weight{place}")))
            yield
        finally:
            for module, name, rounding in changed:
                setattr(module, name, rounding)


_LSTMS = (QuantizedLSTM, StoredLSTM)


def _in_order(moves: Sequence[Move]) -> list[Move]:
    """Return moves by cost per byte; a layer's second move takes no place before its first."""
    ordered: list[Move] = []
    waiting = sorted(moves, key=lambda move: move.cost / move.saved)
    while waiting:
        made = {(move.layer, move.bits) for move in ordered}
        following = next(move for move in waiting if move.bits == 4 or (move.layer, 4) in made)
        waiting.remove(following)
        ordered.append(following)
    return ordered
