"""From configuration to modules: the one place where settings become plain arguments."""

from qat_tft.config import ModelConfig
from qat_tft.data.preprocessing import Preprocessing
from qat_tft.model.tft import TemporalFusionTransformer
from qat_tft.quantization.prepare import QATTemporalFusionTransformer
from qat_tft.quantization.scheme import scheme_for
from qat_tft.schema import Schema


def build_model(
    config: ModelConfig, preprocessing: Preprocessing, schema: Schema
) -> TemporalFusionTransformer:
    """Return a new floating-point model; its weights come from torch's global random generator."""
    static, historical, future = preprocessing.group_sizes(schema)
    return TemporalFusionTransformer(
        static,
        historical,
        future,
        history=config.history,
        horizon=config.horizon,
        hidden=config.hidden,
        heads=config.heads,
        dropout=config.dropout,
        quantiles=config.quantiles,
        encoder_layers=config.encoder_layers,
        selection_chunk=config.selection_chunk,
    )


def build_qat_model(model: TemporalFusionTransformer, target: str) -> QATTemporalFusionTransformer:
    """Return a quantization-aware copy of a floating-point model for a target profile.

    Raises:
        ConfigError: no target profile has that name.
    """
    return QATTemporalFusionTransformer(model, scheme_for(target))
