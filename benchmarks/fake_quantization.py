"""Time of rounding one float32 tensor [16, 1600, 128] to 8 bits and back: torch's kernels and composed operations.

Forward pass only, best of many, one thread: with more, a busy core makes every elementwise operation wait for the
slower thread. Decision 007 quotes the output.
"""

import time
from collections.abc import Callable

import torch
from torch import Tensor

SHAPE = (16, 1600, 128)
REPETITIONS = 30
LOW, HIGH = 0, 255


def composed(x: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
    """Round as QuantizeLinear does: by division."""
    integers = x.div(scale).round_().add_(zero_point).clamp_(LOW, HIGH)
    return integers.sub_(zero_point).mul_(scale)


def best_ms(function: Callable[[], Tensor]) -> float:
    times = []
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return 1000 * min(times)


def main() -> None:
    torch.set_num_threads(1)
    x = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))
    scale, zero_point = torch.tensor(0.03), torch.tensor(128, dtype=torch.int32)
    scales, zero_points = scale.repeat(SHAPE[0]), zero_point.repeat(SHAPE[0])
    per_variable = scales.view(-1, 1, 1), zero_points.view(-1, 1, 1)
    cases = {
        "torch per tensor": lambda: torch.fake_quantize_per_tensor_affine(x, scale, zero_point, LOW, HIGH),
        "torch per channel": lambda: torch.fake_quantize_per_channel_affine(x, scales, zero_points, 0, LOW, HIGH),
        "composed per tensor": lambda: composed(x, scale, zero_point),
        "composed per variable": lambda: composed(x, *per_variable),
    }
    print(f"{list(SHAPE)} float32, one thread, best of {REPETITIONS}")
    for name, function in cases.items():
        print(f"{name:24}{best_ms(function):8.1f} ms")


if __name__ == "__main__":
    main()
