"""`qat-tft plan`: what a training step would take, mode by mode, and what fits an amount of memory."""

from typing import Annotated, Any

import typer

from qat_tft.cli import console
from qat_tft.cli.settings import configuration
from qat_tft.errors import ConfigError

_DATA, _MODEL = "Data", "Model"


def _count(name: str, what: str) -> Any:
    return typer.Option(name, help=what, rich_help_panel=_DATA, metavar="COUNT")


def _shape(name: str, what: str) -> Any:
    return typer.Option(name, help=what, rich_help_panel=_MODEL)


def plan(
    static: Annotated[int, _count("--static", "Columns constant per series.")] = 5,
    observed: Annotated[int, _count("--observed", "Columns known up to the present, the target not counted.")] = 210,
    known: Annotated[int, _count("--known", "Columns known for future steps too.")] = 10,
    history: Annotated[int, _shape("--history", "Time steps the encoder sees.")] = 50,
    horizon: Annotated[int, _shape("--horizon", "Time steps forecast.")] = 10,
    hidden: Annotated[int, _shape("--hidden", "Features of every hidden state.")] = 128,
    heads: Annotated[int, _shape("--heads", "Attention heads; must divide hidden.")] = 4,
    encoder_layers: Annotated[int, _shape("--encoder-layers", "Gated layers after each selection.")] = 0,
    selection_chunk: Annotated[int, _shape("--selection-chunk", "Variables a selection computes at once.")] = 8,
    batch_size: Annotated[int, typer.Option("--batch-size", help="Windows a step.")] = 32,
    precision: Annotated[
        str, typer.Option("--precision", help="Number format of the forward pass.", metavar="fp32|bf16|fp16")
    ] = "fp32",
    use_qat: Annotated[
        bool, typer.Option("--use-qat/--no-use-qat", help="Plan the quantization-aware phase as well.")
    ] = True,
    memory_budget: Annotated[
        str | None,
        typer.Option(
            "--memory-budget",
            help="Memory to plan for, such as 3.5GiB. Default: GPUs of 4, 12, 24 and 48 GB (of 10^9 bytes).",
            show_default=False,
            metavar="AMOUNT",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Simulate a training step and show what each checkpoint mode takes.

    Nothing is trained and no GPU is needed. Without options it plans the tft225 shape: 5 static, 210 observed and
    10 known columns.
    """
    given = {
        "model.history": history,
        "model.horizon": horizon,
        "model.hidden": hidden,
        "model.heads": heads,
        "model.encoder_layers": encoder_layers,
        "model.selection_chunk": selection_chunk,
        "training.batch_size": batch_size,
        "training.precision": precision,
        "quantization.use_qat": use_qat,
    }
    config = configuration(given, {}, where="the options")
    _require_counts({"--static": static, "--observed": observed, "--known": known})
    from qat_tft.checkpointing.budget import parse_memory
    from qat_tft.checkpointing.plan import make_plan
    from qat_tft.checkpointing.planner import GPU_BUDGETS, require_room_for_weights
    from qat_tft.schema import GroupSize
    from qat_tft.training.simulation import workload_of

    budgets = (parse_memory(memory_budget, where="--memory-budget"),) if memory_budget is not None else GPU_BUDGETS
    # What is known of the future is history as well, and so is the target.
    workload = workload_of(config, (GroupSize(static), GroupSize(1 + observed + known), GroupSize(known)))
    if memory_budget is not None:
        require_room_for_weights(workload, budgets[0], where="--memory-budget")
    console.emit(make_plan(workload, budgets, progress=console.note), json=json)


def _require_counts(counts: dict[str, int]) -> None:
    for option, count in counts.items():
        if count < 0:
            raise ConfigError(f"{count} columns cannot be", where=option, allowed="0 or more")
