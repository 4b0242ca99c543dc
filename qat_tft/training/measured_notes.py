"""What a run measures on one batch and says before it trains: what checkpointing saves, what another form costs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from qat_tft.config.run import RunConfig
from qat_tft.data.loading.loader import batches
from qat_tft.data.scaling import Scaling
from qat_tft.device import forget_peak, is_out_of_memory
from qat_tft.model.selection_form import selection_sqnr
from qat_tft.model.tft import TemporalFusionTransformer
from qat_tft.profiling.savings import measure_savings
from qat_tft.quantization.prepare import QATTemporalFusionTransformer
from qat_tft.runs.data import RunData
from qat_tft.training.steps.out_of_memory import release_memory

LEAST_SQNR = 50.0
"""Of selected vectors in another form, dB: rounding to 8 bits costs more than what is above."""


def savings_of(
    model: TemporalFusionTransformer, config: RunConfig, data: RunData, scaling: Scaling, device: torch.device
) -> tuple[str, dict[str, Any] | None]:
    """Measure one step with and without recomputed segments; return a sentence and the figures.

    There are no figures where memory does not suffice for the step without them.
    """
    batch = next(iter(batches(data.training, config.training.batch_size)))
    segments, quantiles = config.training.recomputed_segments, config.model.quantiles
    try:
        savings = measure_savings(model, scaling, batch, segments=segments, quantiles=quantiles, device=device)
    except (MemoryError, RuntimeError) as failure:
        if not is_out_of_memory(failure):
            raise
        return "Not enough memory to measure what checkpointing saves: one step on a full batch is too large", None
    finally:
        release_memory()
    forget_peak()  # the step without checkpointing was only a measurement
    return savings.sentence(), savings.to_json()


def notes_on_forms(
    model: TemporalFusionTransformer,
    quantized: QATTemporalFusionTransformer,
    config: RunConfig,
    data: RunData,
    scaling: Scaling,
    device: torch.device,
) -> Iterator[str]:
    """Say how close the selected vectors of another form are to those that were trained, on training windows."""
    if config.qat_selection == config.model.selection:
        return
    raw = next(iter(batches(data.training, config.training.batch_size))).to(device)
    inputs = scaling.scale_inputs(raw.static, raw.historical, raw.future, raw.series)
    found = selection_sqnr(model, quantized.model, inputs)
    yield (
        f"The selection networks, trained {config.model.selection}, are {config.qat_selection} from here on, with "
        f"{config.model.knots} knots: their outputs agree to {found:.1f} dB"
    )
    if found < LEAST_SQNR:
        yield f"Below {LEAST_SQNR:g} dB that costs more than rounding to 8 bits: raise --knots"
