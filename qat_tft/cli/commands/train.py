"""`qat-tft train`: train a model, quantization-aware if asked, and leave a run folder."""

from typing import Annotated, Any

import typer

from qat_tft.cli import console
from qat_tft.cli.options.settings import numbers, setting
from qat_tft.errors import ConfigError
from qat_tft.profiling.heap import merge_freed_blocks

_DATA, _MODEL, _TRAIN, _QUANTIZE, _RUN = "Data", "Model", "Training", "Quantization", "Run"


def _role(name: str, what: str) -> Any:
    return typer.Option(name, help=what, rich_help_panel=_DATA, show_default=False, metavar="COLUMNS")


def train(
    name_to_resume: Annotated[
        str | None, typer.Argument(metavar="NAME", help="With --resume: the run to go on with.")
    ] = None,
    parquet_file: Annotated[
        list[str] | None,
        typer.Option(
            "--parquet-file",
            help="Parquet file; may be repeated. Default: the embedded hourly temperatures.",
            rich_help_panel=_DATA,
            show_default=False,
            metavar="FILE",
        ),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(
            "--schema",
            help="Schema in TOML; `qat-tft inspect FILE --write-schema` proposes one.",
            rich_help_panel=_DATA,
            show_default=False,
            metavar="FILE",
        ),
    ] = None,
    time: Annotated[str | None, _role("--time", "Time column, instead of a schema.")] = None,
    target: Annotated[str | None, _role("--target", "Column to forecast.")] = None,
    id: Annotated[str | None, _role("--id", "Columns that together name a series.")] = None,
    static: Annotated[
        str | None,
        _role("--static", "Columns constant per series; `name:category` or `name:real` sets the kind."),
    ] = None,
    known: Annotated[str | None, _role("--known", "Columns known for future steps too.")] = None,
    observed: Annotated[str | None, _role("--observed", "Columns known up to the present.")] = None,
    validation: Annotated[float | None, setting("data.validation", "--validation", panel=_DATA)] = None,
    test: Annotated[float | None, setting("data.test", "--test", panel=_DATA)] = None,
    validation_from: Annotated[
        str | None, setting("data.validation_from", "--validation-from", panel=_DATA, metavar="TIME")
    ] = None,
    test_from: Annotated[str | None, setting("data.test_from", "--test-from", panel=_DATA, metavar="TIME")] = None,
    test_until: Annotated[str | None, setting("data.test_until", "--test-until", panel=_DATA, metavar="TIME")] = None,
    standardize: Annotated[
        str | None, setting("data.standardize", "--standardize", panel=_DATA, metavar="series|global")
    ] = None,
    season: Annotated[int | None, setting("data.season", "--season", panel=_DATA)] = None,
    duplicates: Annotated[
        str | None, setting("data.duplicates", "--duplicates", panel=_DATA, metavar="error|last|mean")
    ] = None,
    gaps: Annotated[str | None, setting("data.gaps", "--gaps", panel=_DATA, metavar="error|ignore|fill|split")] = None,
    no_cache: Annotated[
        bool,
        typer.Option("--no-cache", help="Do not keep the rows of large files prepared.", rich_help_panel=_DATA),
    ] = False,
    cache_dir: Annotated[str | None, setting("data.cache_dir", "--cache-dir", panel=_DATA, metavar="FOLDER")] = None,
    calendar: Annotated[
        str | None, setting("data.calendar", "--calendar", panel=_DATA, metavar="NAME,NAME,...")
    ] = None,
    missing: Annotated[
        str | None, setting("data.missing", "--missing", panel=_DATA, metavar="POLICY or COLUMN=POLICY,...")
    ] = None,
    min_history: Annotated[int | None, setting("data.min_history", "--min-history", panel=_DATA)] = None,
    target_transform: Annotated[
        str | None,
        setting("data.target_transform", "--target-transform", panel=_DATA, metavar="none|log|log1p|softplus"),
    ] = None,
    history: Annotated[int | None, setting("model.history", "--history", panel=_MODEL)] = None,
    horizon: Annotated[int | None, setting("model.horizon", "--horizon", panel=_MODEL)] = None,
    hidden: Annotated[int | None, setting("model.hidden", "--hidden", panel=_MODEL)] = None,
    heads: Annotated[int | None, setting("model.heads", "--heads", panel=_MODEL)] = None,
    dropout: Annotated[float | None, setting("model.dropout", "--dropout", panel=_MODEL)] = None,
    encoder_layers: Annotated[int | None, setting("model.encoder_layers", "--encoder-layers", panel=_MODEL)] = None,
    quantiles: Annotated[str | None, setting("model.quantiles", "--quantiles", panel=_MODEL, metavar="Q,Q,...")] = None,
    seasonal_difference: Annotated[
        int | None, setting("model.seasonal_difference", "--seasonal-difference", panel=_MODEL)
    ] = None,
    selection_chunk: Annotated[int | None, setting("model.selection_chunk", "--selection-chunk", panel=_MODEL)] = None,
    epochs: Annotated[int | None, setting("training.epochs", "--epochs", panel=_TRAIN)] = None,
    batch_size: Annotated[int | None, setting("training.batch_size", "--batch-size", panel=_TRAIN)] = None,
    batches_per_epoch: Annotated[
        int | None, setting("training.batches_per_epoch", "--batches-per-epoch", panel=_TRAIN)
    ] = None,
    accumulation: Annotated[int | None, setting("training.accumulation", "--accumulation", panel=_TRAIN)] = None,
    learning_rate: Annotated[float | None, setting("training.learning_rate", "--learning-rate", panel=_TRAIN)] = None,
    patience: Annotated[int | None, setting("training.patience", "--patience", panel=_TRAIN)] = None,
    seed: Annotated[int | None, setting("training.seed", "--seed", panel=_TRAIN)] = None,
    precision: Annotated[
        str | None, setting("training.precision", "--precision", panel=_TRAIN, metavar="fp32|bf16|fp16")
    ] = None,
    device: Annotated[str | None, setting("training.device", "--device", panel=_TRAIN, metavar="auto|cpu|cuda")] = None,
    use_gradient_checkpointing: Annotated[
        bool | None,
        setting("training.use_gradient_checkpointing", "--use-gradient-checkpointing", panel=_TRAIN),
    ] = None,
    checkpoint_mode: Annotated[
        str | None,
        setting("training.checkpoint_mode", "--checkpoint-mode", panel=_TRAIN, metavar="off|aggressive|full|auto"),
    ] = None,
    memory_budget: Annotated[
        str | None,
        setting("training.memory_budget", "--memory-budget", panel=_TRAIN, metavar="AMOUNT"),
    ] = None,
    checkpoint_segments: Annotated[
        str | None,
        setting("training.checkpoint_segments", "--checkpoint-segments", panel=_TRAIN, metavar="NAME,NAME,..."),
    ] = None,
    use_qat: Annotated[bool | None, setting("quantization.use_qat", "--use-qat", panel=_QUANTIZE)] = None,
    use_int8: Annotated[bool | None, setting("quantization.use_int8", "--use-int8", panel=_QUANTIZE)] = None,
    qat_epochs: Annotated[int | None, setting("quantization.qat_epochs", "--qat-epochs", panel=_QUANTIZE)] = None,
    qat_learning_rate: Annotated[
        float | None, setting("quantization.qat_learning_rate", "--qat-learning-rate", panel=_QUANTIZE)
    ] = None,
    qat_ranges: Annotated[
        str | None,
        setting("quantization.qat_ranges", "--qat-ranges", panel=_QUANTIZE, metavar="observed|learned"),
    ] = None,
    calibrator: Annotated[
        str | None,
        setting(
            "quantization.calibrator",
            "--calibrator",
            panel=_QUANTIZE,
            metavar="moving-average|min-max|percentile|mse",
        ),
    ] = None,
    float_layers: Annotated[
        str | None,
        setting("quantization.float_layers", "--float-layers", panel=_QUANTIZE, metavar="NAME,NAME,..."),
    ] = None,
    target_profile: Annotated[
        str | None,
        setting(
            "quantization.target", "--target-profile", panel=_QUANTIZE, metavar="x86|x86-vnni|arm64|tensorrt|portable"
        ),
    ] = None,
    runs_dir: Annotated[
        str, typer.Option("--runs-dir", help="Folder of all runs.", rich_help_panel=_RUN, metavar="FOLDER")
    ] = "runs",
    name: Annotated[
        str | None,
        typer.Option("--name", help="Name of the run. Default: the time.", rich_help_panel=_RUN, show_default=False),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with an interrupted run: NAME, or the last one.", rich_help_panel=_RUN),
    ] = False,
    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            help="Settings in TOML, such as a run's config.toml; options given here win.",
            rich_help_panel=_RUN,
            show_default=False,
            metavar="FILE",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.", rich_help_panel=_RUN)] = False,
) -> None:
    """Train a Temporal Fusion Transformer and write its run folder.

    Without any option it trains on the embedded hourly temperatures of Seattle and San Francisco.
    """
    given = {
        "data.parquet_files": tuple(parquet_file) if parquet_file else None,
        "data.validation": validation,
        "data.test": test,
        "data.validation_from": validation_from,
        "data.test_from": test_from,
        "data.test_until": test_until,
        "data.standardize": standardize,
        "data.season": season,
        "data.duplicates": duplicates,
        "data.gaps": gaps,
        "data.cache": False if no_cache else None,
        "data.cache_dir": cache_dir,
        "data.calendar": calendar,
        "data.missing": missing,
        "data.min_history": min_history,
        "data.target_transform": target_transform,
        "model.history": history,
        "model.horizon": horizon,
        "model.hidden": hidden,
        "model.heads": heads,
        "model.dropout": dropout,
        "model.encoder_layers": encoder_layers,
        "model.quantiles": numbers(quantiles, "--quantiles"),
        "model.seasonal_difference": seasonal_difference,
        "model.selection_chunk": selection_chunk,
        "training.epochs": epochs,
        "training.batch_size": batch_size,
        "training.batches_per_epoch": batches_per_epoch,
        "training.accumulation": accumulation,
        "training.learning_rate": learning_rate,
        "training.patience": patience,
        "training.seed": seed,
        "training.precision": precision,
        "training.device": device,
        "training.use_gradient_checkpointing": use_gradient_checkpointing,
        "training.checkpoint_mode": checkpoint_mode,
        "training.memory_budget": memory_budget,
        "training.checkpoint_segments": checkpoint_segments,
        "quantization.use_qat": use_qat,
        "quantization.use_int8": use_int8,
        "quantization.qat_epochs": qat_epochs,
        "quantization.qat_learning_rate": qat_learning_rate,
        "quantization.qat_ranges": qat_ranges,
        "quantization.calibrator": calibrator,
        "quantization.float_layers": float_layers,
        "quantization.target": target_profile,
    }
    given = {path: value for path, value in given.items() if value is not None}
    named = {"time": time, "target": target, "id": id, "static": static, "known": known, "observed": observed}
    roles = {role: columns for role, columns in named.items() if columns is not None}
    if name_to_resume is not None and not resume:
        raise ConfigError(
            f"unexpected argument {name_to_resume!r}",
            next_step="Add --resume to go on with a run of that name; a file is named with --parquet-file",
        )
    merge_freed_blocks()
    from qat_tft.cli import train_run as training

    if resume:
        training.refuse_changes([*given, *roles], schema=schema, config=config, name=name)
        result = training.go_on(runs_dir, name_to_resume)
    else:
        result = training.start(given, roles, schema_file=schema, config_file=config, runs_dir=runs_dir, name=name)
    console.emit(result, json=json)
