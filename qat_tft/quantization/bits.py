"""How many bits the weights of each layer have: a default for all, and layers that are named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, cast, get_args

Bits = Literal[8, 4, 2]
LayerKind = Literal["linear", "lstm", "table"]
"""What the bits of a layer depend on: whether it is a linear map, an LSTM or the table of a selection network."""

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
    def fewest(self) -> Bits:
        """Fewest bits of any weight."""
        return min((self.bits, *self.layers.values()))

    def of(self, name: str, kind: LayerKind) -> Bits:
        """Return the bits of a layer's weights."""
        return self.layers.get(name, self._default(name, kind))

    def _default(self, name: str, kind: LayerKind) -> Bits:
        if name == HEAD or kind == "table":
            return 8
        return max(self.bits, 4) if kind == "lstm" else self.bits


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
