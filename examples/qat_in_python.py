"""Quantization-aware training in Python: an FP32 model, calibration, a checkpointed QAT step, the integer model.

    python qat_in_python.py

The tensors are random and already scaled; `qat_tft.read_panel`, `Preprocessing` and `Windows` make real ones.
"""

import torch

from qat_tft import (
    QATTemporalFusionTransformer,
    TemporalFusionTransformer,
    calibrate,
    quantile_loss,
    runner_for,
    scheme_for,
)
from qat_tft.quantization.integer import integer_model
from qat_tft.schema import GroupSize

STATIC, HISTORICAL, FUTURE = GroupSize(real=1), GroupSize(real=12), GroupSize(real=3)
HISTORY, HORIZON, BATCH = 24, 6, 8


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random static [B, 1], historical [B, history, 12] and future [B, horizon, 3] tensors."""
    return (
        torch.randn(BATCH, STATIC.total),
        torch.randn(BATCH, HISTORY, HISTORICAL.total),
        torch.randn(BATCH, HORIZON, FUTURE.total),
    )


def main() -> None:
    torch.manual_seed(0)
    fp32_model = TemporalFusionTransformer(STATIC, HISTORICAL, FUTURE, history=HISTORY, horizon=HORIZON, hidden=16)
    model = QATTemporalFusionTransformer(fp32_model, scheme_for("x86"))
    calibrate(model, [batch() for _ in range(4)])

    model.set_phase("qat")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    forecast = model(*batch(), runner_for("full"))  # or model.forward_with_checkpointing(*batch(), True)
    loss = quantile_loss(forecast.quantiles, torch.randn(BATCH, HORIZON), model.quantiles)
    loss.backward()
    optimizer.step()

    model.eval()
    model.set_phase("frozen")
    inputs = batch()
    difference = integer_model(model)(*inputs).quantiles - model(*inputs).quantiles
    print(f"loss {loss.item():.3f}; integers differ from the QAT model by at most {difference.abs().max().item():.1e}")


if __name__ == "__main__":
    main()
