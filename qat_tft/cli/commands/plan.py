"""`qat-tft plan`: what a training step would take, mode by mode, and what fits an amount of memory."""

from typing import Annotated

import typer

from qat_tft.cli import console
from qat_tft.cli.next_step import command, say_next
from qat_tft.cli.options.common import Json
from qat_tft.cli.options.settings import option_for
from qat_tft.cli.options.shape import Shape, with_shape


@with_shape
def plan(
    *,
    shape: Shape,
    memory_budget: Annotated[
        str | None,
        typer.Option(
            "--memory-budget",
            help="Memory to plan for, such as 3.5GiB. Default: 4, 12, 24 and 48 GB GPUs (1 GB = 10^9 bytes).",
            show_default=False,
            metavar="AMOUNT",
        ),
    ] = None,
    device: Annotated[str, option_for("training.device", show_default=True)] = "auto",
    json: Json = False,
) -> None:
    """Simulate a training step and show the memory and extra time of each checkpoint mode.

    Nothing is trained and no GPU is needed. Without options it plans the tft225 shape: 5 static, 210 observed and
    10 known columns, all numeric. Selections compute as many variables at once as training does on the device: auto is
    a GPU for the GPUs of the default, and for a --memory-budget what training takes here.
    """
    config = shape.config(device=device)
    from qat_tft.checkpointing.budget import parse_memory
    from qat_tft.device import training_device
    from qat_tft.profiling.memory_plan import make_plan
    from qat_tft.profiling.mode_search import GPU_BUDGETS, require_room_for_weights
    from qat_tft.profiling.step_simulator import workload_of

    planned_for = "cuda" if device == "auto" and memory_budget is None else training_device(device)
    config = config.with_selection_chunks(planned_for)
    budgets = (parse_memory(memory_budget, where="--memory-budget"),) if memory_budget is not None else GPU_BUDGETS
    workload = workload_of(config, shape.groups(config))
    if memory_budget is not None:
        require_room_for_weights(workload, budgets[0], where="--memory-budget")
    console.emit(make_plan(workload, budgets, progress=console.note), json=json)
    budget = memory_budget or "AMOUNT"
    training = command("train", "--checkpoint-mode", "auto", "--memory-budget", budget)
    say_next(f"{training} trains in the fastest mode that fits", json=json)
