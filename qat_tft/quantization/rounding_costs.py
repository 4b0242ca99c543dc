"""What quantizing each layer alone costs, and which few layers to leave in floating point for a given drop.

A layer's own phase decides whether it rounds, so any choice of layers is tried on one model by setting phases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from qat_tft.quantization.prepare import QATTemporalFusionTransformer
from qat_tft.quantization.ranges import Phase
from qat_tft.stages import Told, nobody

Risks = tuple[float, ...]
"""The q-risk of each quantile."""
Groups = Mapping[str, tuple[str, ...]]
"""Name of a group to the layers that are quantized, or left float, together."""


def by_layer(model: QATTemporalFusionTransformer) -> dict[str, tuple[str, ...]]:
    """Return each layer that rounds, and could stay in floating point, as a group of its own."""
    return {name: (name,) for name in model.roundings()}


def by_segment(model: QATTemporalFusionTransformer) -> dict[str, tuple[str, ...]]:
    """Return these layers by the segment they belong to, which their names begin with."""
    groups: dict[str, tuple[str, ...]] = {}
    for name in model.roundings():
        segment = name.split(".")[0]
        groups[segment] = (*groups.get(segment, ()), name)
    return groups


@dataclass(frozen=True)
class Costs:
    """Measured q-risks per quantile.

    Attributes:
        unrounded: of the model with no layer rounded.
        alone: of the model with nothing but one group rounded, by group, costliest first.
    """

    unrounded: Risks
    alone: dict[str, Risks]

    def rise(self, group: str) -> float:
        """Return by which share the mean q-risk rises when this group alone is rounded."""
        return rise(self.alone[group], self.unrounded)


@dataclass(frozen=True)
class FloatChoice:
    """Groups to leave in floating point, and the q-risks measured with exactly those."""

    groups: tuple[str, ...]
    risks: Risks


def mean(risks: Risks) -> float:
    """Return the mean over the quantiles."""
    return sum(risks) / len(risks)


def rise(risks: Risks, reference: Risks) -> float:
    """Return by which share the mean q-risk lies above that of a reference."""
    return mean(risks) / mean(reference) - 1.0


def measure_costs(
    model: QATTemporalFusionTransformer,
    groups: Groups,
    measure: Callable[[], Risks],
    *,
    told: Told = nobody,
) -> Costs:
    """Measure the q-risk without any rounding, and with one group at a time rounded.

    Args:
        model: calibrated; its phase is restored.
        groups: as `by_layer` or `by_segment` gives them.
        measure: returns the q-risk of the model as it is when called.
        told: is told each group before it is measured.
    """
    with rounding_only(model, (), stored=False):
        unrounded = measure()
    alone = {}
    for place, (group, layers) in enumerate(groups.items()):
        told(f"measuring {group}", place, len(groups))
        with rounding_only(model, layers, stored=False):
            alone[group] = measure()
    return Costs(unrounded, dict(sorted(alone.items(), key=lambda item: mean(item[1]), reverse=True)))


def leave_float(
    model: QATTemporalFusionTransformer, groups: Groups, costs: Costs, measure: Callable[[], Risks], *, highest: float
) -> FloatChoice | None:
    """Choose few groups to leave in floating point, so that the mean q-risk of the rest is at most `highest`.

    The costliest groups are left float one after the other until it is. As costs do not simply add up, each of them
    but the last is then rounded again, the cheapest first, and stays so where the limit still holds. Every choice is
    measured, the returned one too.

    Returns:
        The choice, or None where it would take every group.
    """

    def measured(chosen: Iterable[str]) -> Risks:
        rounded = [layer for group, layers in groups.items() if group not in chosen for layer in layers]
        with rounding_only(model, rounded):
            return measure()

    chosen: list[str] = []
    risks = measured(chosen)
    waiting = list(costs.alone)
    while mean(risks) > highest:
        chosen.append(waiting.pop(0))
        if not waiting:
            return None
        risks = measured(chosen)
    for group in reversed(chosen[:-1]):
        fewer = [other for other in chosen if other != group]
        found = measured(fewer)
        if mean(found) <= highest:
            chosen, risks = fewer, found
    return FloatChoice(tuple(chosen), risks)


@contextmanager
def rounding_only(model: QATTemporalFusionTransformer, layers: Iterable[str], *, stored: bool = True) -> Iterator[None]:
    """Round in these layers and in no other that could stay in floating point; the phase before is restored.

    `stored` tells whether weights of the raw columns are rounded, as they are in every INT8 file.
    """
    before = model.phase
    roundings = model.roundings()
    model.set_phase(Phase.FROZEN if stored else Phase.FLOAT)
    try:
        for rounding in roundings.values():
            rounding.phase = Phase.FLOAT
        for name in layers:
            roundings[name].phase = Phase.FROZEN
        yield
    finally:
        model.set_phase(before)
