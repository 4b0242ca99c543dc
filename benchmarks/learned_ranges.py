"""Memory and time of a QAT training step with observed and with learned ranges; docs/quantization.md quotes the output.

20 observed, 4 known and 2 static real columns, hidden 32, history 48, horizon 12, 32 windows, on one thread. Memory is
the peak of live tensors in one forward and backward pass; time is the best of several.
"""

import time

import torch

from qat_tft.checkpointing.recompute import runner_for
from qat_tft.config.model import ModelConfig
from qat_tft.config.quantization import QuantizationConfig
from qat_tft.profiling.live_tensors import peak_bytes
from qat_tft.profiling.synthetic_step import SyntheticStep
from qat_tft.schema import GroupSize

GROUPS = GroupSize(2, ()), GroupSize(20, ()), GroupSize(4, ())
SHAPE = ModelConfig(history=48, horizon=12, hidden=32, heads=4, selection="exact")
WINDOWS, REPETITIONS = 32, 8


def measure(ranges: str, mode: str) -> tuple[float, float]:
    """Return the peak in MiB and the best time of a step in ms."""
    torch.manual_seed(0)
    settings = QuantizationConfig.model_validate({"qat_ranges": ranges, "products": "integer"})
    synthetic = SyntheticStep(SHAPE, GROUPS, settings)
    model, runner, times = synthetic.build("qat"), runner_for(mode), []

    def step() -> None:
        loss, _ = synthetic.loss(model, runner, WINDOWS)
        loss.backward()

    step()  # from now on the gradients exist
    peak = peak_bytes(step, torch.device("cpu"))
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return peak / 2**20, 1000 * min(times)


def main() -> None:
    torch.set_num_threads(1)
    print(f"{'checkpointing':16}{'ranges':12}{'peak MiB':>10}{'step ms':>10}")
    for mode in ("off", "full"):
        for ranges in ("observed", "learned"):
            peak, milliseconds = measure(ranges, mode)
            print(f"{mode:16}{ranges:12}{peak:10.1f}{milliseconds:10.0f}")


if __name__ == "__main__":
    main()
