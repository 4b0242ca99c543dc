"""`--weight-bits auto`: the bits of each layer, chosen on the validation part after floating-point training."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch

from qat_tft.config.run import RunConfig
from qat_tft.data.scaling import Scaling
from qat_tft.errors import ConfigError
from qat_tft.evaluation.names import signed_percent
from qat_tft.model.tft import TemporalFusionTransformer
from qat_tft.quantization.bit_search import BitChoice, BitSearch
from qat_tft.quantization.ranges import Phase
from qat_tft.runs.build import configured_qat_model
from qat_tft.runs.calibration import calibrate_on
from qat_tft.runs.data import RunData
from qat_tft.runs.sensitivity import risks_of

WINDOWS = 1024
"""Most validation windows that a choice is measured on."""
DROP = 0.005
"""Share by which the mean q-risk may rise where no budget is given."""


class ChosenBits(NamedTuple):
    """The configuration with every layer's bits decided, and a sentence."""

    config: RunConfig
    note: str


def choose_bits(
    model: TemporalFusionTransformer, config: RunConfig, data: RunData, scaling: Scaling, device: torch.device
) -> ChosenBits:
    """Choose the bits of each layer, calibrated, within `quantization.max_drop` or `max_bytes`.

    Raises:
        ConfigError: nothing is within the budget; the message says what is.
    """
    settings = config.quantization
    measure = partial(risks_of, scaling, data.validation, config, WINDOWS, device)
    reference = measure(model)
    quantized = configured_qat_model(model, config.model, settings).to(device)
    calibrate_on(quantized, config, data.training, scaling, device)
    quantized.set_phase(Phase.FROZEN)
    search = BitSearch(quantized.eval(), partial(measure, quantized), reference)
    moves = search.moves()
    drop = DROP if settings.max_drop is None and settings.byte_budget is None else settings.max_drop
    if settings.byte_budget is not None:
        choice = search.within_bytes(moves, settings.byte_budget)
        if choice is None:
            raise _refused(
                f"quantization.max_bytes {settings.max_bytes} is less than the weights take with the fewest bits",
                f"at least {search.fewest_bytes(moves):,.0f} bytes",
            )
        if drop is not None and search.drop(choice) > drop:
            raise _refused(
                f"weights of {settings.max_bytes} cost {signed_percent(search.drop(choice), 2)} of the mean q-risk "
                f"before QAT, more than quantization.max_drop {drop:.3%}",
                f"a max_drop of {search.drop(choice):.3%}, or more bytes",
            )
    else:
        assert drop is not None
        choice = search.within_drop(moves, drop)
        if choice is None:
            eight = search.within_bytes((), float("inf"))
            assert eight is not None
            raise _refused(
                f"weights of 8 bits already cost more than quantization.max_drop {drop:.3%}",
                f"a max_drop of at least {search.drop(eight):.3%}",
            )
    return ChosenBits(config.with_bits(choice.bits), _sentence(search, choice))


def _refused(what: str, allowed: str) -> ConfigError:
    return ConfigError(what, where="quantization.weight_bits auto", allowed=allowed, next_step="Widen the budget")


def _sentence(search: BitSearch, choice: BitChoice) -> str:
    counts = {bits: sum(found == bits for found in choice.bits.values()) for bits in (4, 2)}
    few = " and ".join(f"{count} layers {bits}" for bits, count in counts.items() if count) or "no layer fewer than 8"
    return (
        f"Bits of the weights: {few}, {choice.weight_bytes:,.0f} bytes in all; calibrated that changes the mean q-risk "
        f"on validation windows by {signed_percent(search.drop(choice), 2)}"
    )
