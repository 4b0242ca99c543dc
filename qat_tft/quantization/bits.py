"""How many bits the weights of each layer have: a default for all, and layers that are named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast, get_args

from torch import nn

from qat_tft.model.tabulated import Table
from qat_tft.quantization.weights import Bits, WeightBits

HEAD = "head"
"""The layer of the quantiles, whose rounding nothing behind it can make up for."""


@dataclass(frozen=True)
class BitLayout:
    """How many bits the weights of a model have.

    With fewer than eight bits, the head and the tables of selection networks keep eight, and LSTMs at least four: what
    rounds there is carried through every step (docs/decisions/043).

    Attributes:
        bits: of every layer that is not named.
        layers: name of a layer to its bits.
        learned: whether scales of fewer than eight bits are trained.
    """

    bits: Bits = 8
    layers: Mapping[str, Bits] = field(default_factory=dict)
    learned: bool = False

    @property
    def fewest(self) -> int:
        """Fewest bits of any weight."""
        return min((self.bits, *self.layers.values()))

    def of(self, name: str, kind: type[nn.Module]) -> WeightBits:
        """Return how the weights of a layer are rounded.

        Args:
            name: of the layer.
            kind: its class in the floating-point model.
        """
        return WeightBits(self.layers.get(name, self._default(name, kind)), self.learned)

    def _default(self, name: str, kind: type[nn.Module]) -> Bits:
        if name == HEAD or kind is Table:
            return 8
        return max(self.bits, 4) if kind is nn.LSTM else self.bits


EIGHT_BITS = BitLayout()


def parse_layers(entries: Iterable[str]) -> dict[str, Bits]:
    """Return layer to bits of entries such as `lstm_encoder.cell=8`.

    Raises:
        ValueError: an entry is of another form, or there is no weight of so many bits.
    """
    found: dict[str, Bits] = {}
    for entry in entries:
        name, equals, bits = entry.partition("=")
        if not equals or bits not in map(str, get_args(Bits)):
            raise ValueError(f"{entry!r} is not a layer with its bits, such as head=8; bits are 8, 4 or 2")
        found[name.strip()] = cast(Bits, int(bits))
    return found
