"""`qat-tft plan`: what a training step would take, mode by mode, and what fits an amount of memory."""

from pathlib import Path
from typing import Annotated, Any

import typer

from qat_tft.cli import console
from qat_tft.cli.settings import configuration
from qat_tft.config import RunConfig
from qat_tft.errors import ConfigError
from qat_tft.schema import GroupSize, Schema

Groups = tuple[GroupSize, GroupSize, GroupSize]

_DATA, _MODEL = "Data", "Model"


_COUNTS = {"static": 5, "observed": 210, "known": 10}


def _count(name: str, what: str) -> Any:
    text = rf"{what} [dim]\[default: {_COUNTS[name]}][/dim]"
    return typer.Option(f"--{name}", help=text, rich_help_panel=_DATA, metavar="COUNT", show_default=False)


def _file(name: str, what: str) -> Any:
    return typer.Option(name, help=what, rich_help_panel=_DATA, metavar="FILE", show_default=False)


def _shape(name: str, what: str) -> Any:
    return typer.Option(name, help=what, rich_help_panel=_MODEL)


def plan(
    static: Annotated[int | None, _count("static", "Columns constant per series.")] = None,
    observed: Annotated[
        int | None, _count("observed", "Columns known up to the present, the target among them.")
    ] = None,
    known: Annotated[int | None, _count("known", "Columns known for future steps too.")] = None,
    parquet_file: Annotated[
        list[str] | None, _file("--parquet-file", "Take the columns from this data instead; may be repeated.")
    ] = None,
    schema: Annotated[str | None, _file("--schema", "Schema of that data. Default: the one beside it.")] = None,
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
    10 known columns, all of them numbers.
    """
    counts = {"static": static, "observed": observed, "known": known}
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
    _require_one_source(counts, parquet_file, schema)
    from qat_tft.checkpointing.budget import parse_memory
    from qat_tft.checkpointing.plan import make_plan
    from qat_tft.checkpointing.planner import GPU_BUDGETS, require_room_for_weights
    from qat_tft.training.simulation import workload_of

    budgets = (parse_memory(memory_budget, where="--memory-budget"),) if memory_budget is not None else GPU_BUDGETS
    groups = _of_data(config, parquet_file, schema) if parquet_file else _of_counts(counts)
    workload = workload_of(config, groups)
    if memory_budget is not None:
        require_room_for_weights(workload, budgets[0], where="--memory-budget")
    console.emit(make_plan(workload, budgets, progress=console.note), json=json)


def _require_one_source(counts: dict[str, int | None], files: list[str] | None, schema: str | None) -> None:
    for name, count in counts.items():
        least = 1 if name == "observed" else 0
        if count is not None and count < least:
            raise ConfigError(f"{count} columns cannot be", where=f"--{name}", allowed=f"{least} or more")
        if count is not None and files:
            raise ConfigError(f"--{name} and --parquet-file both say how many columns there are", allowed="one of them")
    if schema is not None and not files:
        raise ConfigError("--schema without --parquet-file", next_step="Name the data that the schema describes")


def _of_counts(counts: dict[str, int | None]) -> Groups:
    static, observed, known = (
        default if counts[name] is None else counts[name] or 0 for name, default in _COUNTS.items()
    )
    # What is known of the future is history as well.
    return GroupSize(static), GroupSize(observed + known), GroupSize(known)


def _of_data(config: RunConfig, files: list[str], schema_file: str | None) -> Groups:
    from qat_tft.data.samples import schema_path
    from qat_tft.training.dataset import load_data

    schema = Schema.read(schema_file or schema_path(Path(files[0])))
    data = config.data.model_copy(update={"parquet_files": tuple(files)})
    return load_data(data, config.model, schema).preprocessing.group_sizes(schema)
