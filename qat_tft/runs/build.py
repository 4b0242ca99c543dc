"""From configuration to modules: the one place where settings become plain arguments."""

import sys
from typing import Any

import torch
from accelerate import Accelerator

from qat_tft.config.model import ModelConfig
from qat_tft.config.quantization import QuantizationConfig
from qat_tft.config.run import RunConfig
from qat_tft.config.training import TrainingConfig
from qat_tft.data.preprocessing import Preprocessing
from qat_tft.device import free_bytes, make_accelerator
from qat_tft.errors import ConfigError
from qat_tft.model.frame import FramedTemporalFusionTransformer, FrameShape
from qat_tft.model.seasonal import SeasonalTemporalFusionTransformer
from qat_tft.model.selection_form import in_form
from qat_tft.model.tft import TemporalFusionTransformer
from qat_tft.quantization.bits import EIGHT_BITS, BitLayout
from qat_tft.quantization.prepare import QATTemporalFusionTransformer
from qat_tft.quantization.products import Products
from qat_tft.quantization.scheme import scheme_for
from qat_tft.schema import PRESENT, GroupName, GroupSize, Schema

SCALE, PATH = "(scale of the window)", "(linear path)"
"""What the variables are called that the model's frame adds."""


def build_model(config: ModelConfig, preprocessing: Preprocessing, schema: Schema) -> TemporalFusionTransformer:
    """Return a new floating-point model; its weights come from torch's global random generator.

    What is fitted rather than trained, such as the linear path, is still to be put into it.

    Args:
        config: the shape.
        preprocessing: knows how wide each group is.
        schema: the schema that the preprocessing was fitted for.

    Raises:
        ConfigError: its weights would not fit into memory.
    """
    sizes = preprocessing.group_sizes(schema)
    refuse_too_large(config, sizes)
    return model_of_sizes(config, sizes)


def refuse_too_large(config: ModelConfig, sizes: tuple[GroupSize, GroupSize, GroupSize]) -> None:
    """Check that the weights of a model fit into the memory of this machine: if they might not, on one without memory.

    Raises:
        ConfigError: they do not; where memory is overcommitted, writing them would end the process.
    """
    free = free_bytes(torch.device("cpu"))
    if 4 * _most_weights(config, sizes) < free:  # a model without memory takes seconds the first time
        return
    try:
        with torch.device("meta"):
            model = model_of_sizes(config, sizes)
        needed = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    except RuntimeError as failure:  # a size that 64 bits cannot count
        if "overflow" not in str(failure):
            raise
        needed = sys.maxsize
    if needed > free:
        raise ConfigError(
            f"a model of hidden {config.hidden} has {needed / 2**30:,.1f} GiB of weights, {free / 2**30:,.1f} are free",
            where="model.hidden",
            next_step="Choose a smaller hidden, fewer knots or a shorter history",
        )


def _most_weights(config: ModelConfig, sizes: tuple[GroupSize, GroupSize, GroupSize]) -> int:
    """A number that weights and buffers together do not reach: far more maps than any column and layer has."""
    columns = sum(size.total for size in sizes) + 2
    codes = sum(sum(size.cardinalities) for size in sizes)
    maps = 16 * columns * (config.encoder_layers + 1) + 200
    rows = columns * config.knots + codes + config.history + config.horizon * len(config.quantiles)
    return config.hidden**2 * maps + (config.hidden + config.horizon) * 4 * rows


def model_of_sizes(config: ModelConfig, sizes: tuple[GroupSize, GroupSize, GroupSize]) -> TemporalFusionTransformer:
    """Return a new floating-point model for the widths of the static, historical and future group."""
    shape: dict[str, Any] = {
        "history": config.history,
        "horizon": config.horizon,
        "hidden": config.hidden,
        "heads": config.heads,
        "dropout": config.dropout,
        "quantiles": config.quantiles,
        "encoder_layers": config.encoder_layers,
        "selection": config.selection,
        "knots": config.knots,
        "selection_chunk": config.selection_chunk,
    }
    if config.seasonal_difference:
        return SeasonalTemporalFusionTransformer(*sizes, season=config.seasonal_difference, **shape)
    frame = frame_of(config)
    if frame.is_empty:
        return TemporalFusionTransformer(*sizes, **shape)
    return FramedTemporalFusionTransformer(*sizes, frame=frame, **shape)


def frame_of(config: ModelConfig) -> FrameShape:
    """Return what stands around the network; a scale input that is left open counts as none."""
    window = config.normalize == "window"
    return FrameShape(
        window,
        scale_input=window and bool(config.scale_input),
        path=config.linear_path != "off",
        offsets=config.calibrate_quantiles,
    )


def variables_by_group(model: ModelConfig, schema: Schema) -> dict[GroupName, tuple[str, ...]]:
    """Return the variables of each group in the order of its selection weights; a group may have none.

    They are its columns without `history.present`, and what the frame adds at the end of the real ones.
    """
    frame = FrameShape() if model.seasonal_difference else frame_of(model)
    added = {"static": (SCALE,) * frame.scale_input, "future": (PATH,) * frame.path}
    return {
        group.name: (
            *(column for column in group.real if column != PRESENT),
            *added.get(group.name, ()),
            *group.category,
        )
        for group in schema.groups
    }


def build_qat_model(
    model: TemporalFusionTransformer,
    target: str,
    *,
    float_layers: tuple[str, ...] = (),
    learned_ranges: bool = False,
    products: Products = "integer",
    layout: BitLayout = EIGHT_BITS,
) -> QATTemporalFusionTransformer:
    """Return a quantization-aware copy of a floating-point model for a target profile.

    Args:
        model: the floating-point model.
        target: name of the target profile.
        float_layers: names of layers to leave in floating point.
        learned_ranges: whether the scales of activations are trained.
        products: on integers, or in floating point over weights stored as integers.
        layout: how many bits the weights of each layer have.

    Raises:
        ConfigError: no target profile has that name, no layer has one of those names, or none is left to quantize.
    """
    scheme = scheme_for(target)
    try:
        return QATTemporalFusionTransformer(
            model, scheme, frozenset(float_layers), learned_ranges=learned_ranges, products=products, layout=layout
        )
    except ValueError as unusable:
        setting = "layer_bits" if "other bits" in str(unusable) else "float_layers"
        raise ConfigError(str(unusable), where=f"quantization.{setting}") from None


def configured_qat_model(
    model: TemporalFusionTransformer, shape: ModelConfig, settings: QuantizationConfig
) -> QATTemporalFusionTransformer:
    """Return the quantization-aware copy of a floating-point model that the settings ask for.

    Args:
        model: of that shape.
        shape: which form the model's selection networks have.
        settings: which form those of the copy have, and how it is quantized.

    Raises:
        ConfigError: as `build_qat_model`.
    """
    if settings.qat_selection not in (None, shape.selection):
        chunk = settings.qat_selection_chunk or shape.selection_chunk
        model = in_form(model, settings.qat_selection, knots=shape.knots, chunk=chunk)
    return build_qat_model(
        model,
        settings.target,
        float_layers=settings.float_layers,
        learned_ranges=settings.qat_ranges == "learned",
        products=settings.products_at(model.hidden),
        layout=settings.layout,
    )


def accelerator_for(config: TrainingConfig) -> Accelerator:
    """Return the accelerator for the device and number format of a configuration.

    Raises:
        ConfigError: as `make_accelerator`.
    """
    return make_accelerator(config.device, config.precision)


def refuse_unknown_layers(config: RunConfig, sizes: tuple[GroupSize, GroupSize, GroupSize]) -> None:
    """Check `quantization.float_layers` before any training, on a model without memory.

    Raises:
        ConfigError: the model has no layer of such a name, or none is left to quantize.
    """
    with torch.device("meta"):
        configured_qat_model(model_of_sizes(config.model, sizes), config.model, config.quantization)
