"""`qat-tft quantize`: calibrate and train a finished run's floating-point model for integers anew."""

from typing import Annotated

import typer

from qat_tft.cli import console
from qat_tft.cli.next_step import say_next
from qat_tft.cli.options.common import Json, Run, RunsDir
from qat_tft.cli.options.settings import with_settings
from qat_tft.config.names import Given
from qat_tft.profiling.heap import merge_freed_blocks


@with_settings(first="quantization.weight_bits", section="quantization", without=("quantization.use_qat",))
def quantize(
    *,
    run: Run = None,
    given: Given,
    runs_dir: RunsDir = "runs",
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the new run. Default: the current time.", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """Quantize a finished run in another way, into a run of its own, without training its FP32 model again.

    Data, schema, split and floating-point weights are those of the run; options that are not given keep its settings.
    """
    merge_freed_blocks()
    from qat_tft.cli import train_run as training

    result = training.quantize(given, run, runs_dir=runs_dir, name=name)
    console.emit(result, json=json)
    say_next(result.next_step(runs_dir), json=json)
