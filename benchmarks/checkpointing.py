"""What checkpointing saves and costs at the tft225 shape: memory of a training step and its time, mode by mode.

    python benchmarks/checkpointing.py [--json] [--repeats N] [--hidden H]

Each figure of process memory is the peak of a fresh process above its start, with weights and optimizer in place
before the start for neither mode, so that it holds everything that training needs. Live tensor memory is counted
allocation by allocation (qat_tft.checkpointing.memory). Times are medians of steps of all modes taken in turn.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from qat_tft.checkpointing.heap import map_large_blocks

MODES = ("off", "aggressive", "full")
KINDS = ("fp32", "qat")
MIB = 2**20


def main() -> None:
    """Measure and print."""
    arguments = _arguments()
    if arguments.worker:
        print(json.dumps(process_peak(*arguments.worker.split(","), hidden=arguments.hidden)))
        return
    peaks = {
        f"{kind} {mode}": _in_fresh_process(f"{kind},{mode}", arguments.hidden) for kind in KINDS for mode in MODES
    }
    live = {f"{kind} {mode}": live_peak(kind, mode, arguments.hidden) for kind in KINDS for mode in MODES}
    seconds = step_seconds(arguments.hidden, arguments.repeats)
    result = {
        "process_peak_mib": peaks,
        "live_peak_mib": live,
        "step_seconds": seconds,
        "peak_ratio": {kind: peaks[f"{kind} full"] / peaks[f"{kind} off"] for kind in KINDS},
        "live_ratio": {kind: live[f"{kind} full"] / live[f"{kind} off"] for kind in KINDS},
        "time_ratio": {kind: seconds[f"{kind} full"] / seconds[f"{kind} off"] for kind in KINDS},
    }
    print(json.dumps(result, indent=2) if arguments.json else _table(result))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--repeats", type=int, default=5, help="timed steps per mode (default: 5)")
    parser.add_argument("--hidden", type=int, default=128, help="hidden size (default: 128)")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


def _in_fresh_process(worker: str, hidden: int) -> float:
    command = [sys.executable, __file__, "--worker", worker, "--hidden", str(hidden)]
    return float(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def process_peak(kind: str, mode: str, hidden: int) -> float:
    """Return the peak of this process above its start, in MiB, over three training steps."""
    if mode != "off":
        map_large_blocks()
    import torch  # after the switch that it reads

    from qat_tft.model.tft import TemporalFusionTransformer

    assert TemporalFusionTransformer.__module__
    torch.ones(1).sum()
    start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step = _step(kind, mode, hidden)
    for _ in range(3):
        step()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start) * 1024 / MIB


def live_peak(kind: str, mode: str, hidden: int) -> float:
    """Return the peak of live tensors of building the model and three training steps, in MiB."""
    import torch

    from qat_tft.checkpointing.memory import peak_bytes

    def train() -> None:
        step = _step(kind, mode, hidden)
        for _ in range(3):
            step()

    return peak_bytes(train, torch.device("cpu")) / MIB


def step_seconds(hidden: int, repeats: int) -> dict[str, float]:
    """Return the median seconds of a training step by kind and mode, all taken in turn."""
    steps = {f"{kind} {mode}": _step(kind, mode, hidden) for kind in KINDS for mode in MODES}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for repeat in range(repeats + 1):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            if repeat:  # the first allocates the optimizer's state
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def _step(kind: str, mode: str, hidden: int) -> Callable[[], None]:
    import torch

    from qat_tft.checkpointing.recompute import runner_for
    from qat_tft.model.loss import quantile_loss
    from qat_tft.model.tft import TemporalFusionTransformer
    from qat_tft.quantization.prepare import QATTemporalFusionTransformer
    from qat_tft.quantization.scheme import scheme_for
    from qat_tft.schema import GroupSize

    torch.manual_seed(0)
    torch.set_num_threads(1)
    groups = GroupSize(5), GroupSize(220), GroupSize(10)  # 210 observed and 10 known columns are history
    model: torch.nn.Module = TemporalFusionTransformer(*groups, history=50, horizon=10, hidden=hidden)
    if kind == "qat":
        quantized = QATTemporalFusionTransformer(model, scheme_for("x86"))  # type: ignore[arg-type]
        quantized.set_phase("qat")
        model = quantized
    inputs = torch.randn(32, 5), torch.randn(32, 50, 220), torch.randn(32, 10, 10)
    target, runner = torch.randn(32, 10), runner_for(mode)
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        quantile_loss(model(*inputs, runner).quantiles, target, (0.1, 0.5, 0.9)).backward()
        optimizer.step()

    return step


def _table(result: dict[str, dict[str, float]]) -> str:
    lines = [f"{'':16}{'process MiB':>12}{'live MiB':>12}{'step s':>10}"]
    for name in result["step_seconds"]:
        process, live = result["process_peak_mib"][name], result["live_peak_mib"][name]
        lines.append(f"{name:16}{process:12.0f}{live:12.0f}{result['step_seconds'][name]:10.2f}")
    for kind in KINDS:
        peak, live, seconds = (result[key][kind] for key in ("peak_ratio", "live_ratio", "time_ratio"))
        lines.append(f"{kind}: full / off is {peak:.2f} process, {live:.2f} live, {seconds:.2f} time")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
