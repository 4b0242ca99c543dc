"""qat-tft in a process that starts as `qat-tft train` does; options: kind (fp32, qat), mode and batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qat_tft.profiling.heap import merge_freed_blocks, restart_without_block_cache

if TYPE_CHECKING:
    from sides.worker import Options, Side
    from sides.workloads import Workload


def build(workload: Workload, options: Options) -> Side:
    """Return the model of the measured form with its optimizer."""
    import torch
    from torch import Tensor

    from qat_tft import __version__
    from qat_tft.checkpointing.recompute import runner_for
    from qat_tft.model.loss import loss_of
    from qat_tft.runs.optimizer import make_optimizer
    from sides.ours_shape import synthetic_step
    from sides.worker import Side

    synthetic = synthetic_step(workload)
    model = synthetic.build(options["kind"])
    static, historical, future = synthetic.groups
    run_segment, loss = runner_for(options["mode"]), loss_of(workload.quantiles)

    def inputs(windows: int) -> tuple[Tensor, ...]:
        return (
            torch.randn(windows, static.total),
            torch.randn(windows, workload.history, historical.total),
            torch.randn(windows, workload.horizon, future.total),
        )

    batch = options.get("batch", workload.batch)
    windows, target = inputs(batch), torch.randn(batch, workload.horizon)
    return Side(
        __version__,
        model,
        make_optimizer(model),
        lambda: loss(model(*windows, run_segment=run_segment), target),
        None,  # its files come from `qat-tft export`
        inputs,
    )


def main() -> None:
    """Serve the side."""
    restart_without_block_cache()
    merge_freed_blocks()
    from sides.worker import run

    run(build)


if __name__ == "__main__":
    main()
