"""`qat-tft profile`: what a training step takes here, mode by mode, measured beside the simulation."""

from typing import Annotated

import typer

from qat_tft.cli import console
from qat_tft.cli.options import shape
from qat_tft.cli.options.settings import naming_options, option_for


def profile(
    static: shape.Static = None,
    observed: shape.Observed = None,
    known: shape.Known = None,
    parquet_file: shape.ParquetFiles = None,
    schema: shape.SchemaFile = None,
    history: shape.History = 50,
    horizon: shape.Horizon = 10,
    hidden: shape.Hidden = 128,
    heads: shape.Heads = 4,
    encoder_layers: shape.EncoderLayers = 0,
    selection_chunk: shape.SelectionChunk = shape.CHUNK,
    batch_size: shape.BatchSize = 32,
    precision: shape.Precision = "fp32",
    use_qat: Annotated[
        bool, typer.Option("--use-qat/--no-use-qat", help="Measure the quantization-aware phase as well.")
    ] = True,
    checkpoint_segments: Annotated[
        str | None,
        typer.Option(
            "--checkpoint-segments",
            help="Also measure these segments, in addition to the modes.",
            show_default=False,
            metavar="NAME,NAME,...",
        ),
    ] = None,
    device: Annotated[str, option_for("training.device", show_default=True)] = "auto",
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Worker processes that measure each row.")] = 2,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run training steps on random numbers in each checkpoint mode and show the memory and time they take here.

    Each row is measured in its own worker processes, which start as `qat-tft train` does. Without options it measures
    the tft225 shape, as `qat-tft plan` does: 5 static, 210 observed and 10 known columns.
    """
    counts = {"static": static, "observed": observed, "known": known}
    config = shape.shape_config(
        history=history,
        horizon=horizon,
        hidden=hidden,
        heads=heads,
        encoder_layers=encoder_layers,
        selection_chunk=selection_chunk,
        batch_size=batch_size,
        precision=precision,
        use_qat=use_qat,
        device=device,
        checkpoint_segments=checkpoint_segments,
    )
    shape.require_one_source(counts, parquet_file, schema)
    from qat_tft.profiling.step_profile import make_profile

    own = config.training.recomputed_segments
    groups = shape.groups_of(config, counts, parquet_file, schema)
    with naming_options(("training.device", "training.precision"), file=shape.OPTIONS):
        result = make_profile(config, groups, own=own, repeats=repeats, progress=console.note)
    console.emit(result, json=json)
