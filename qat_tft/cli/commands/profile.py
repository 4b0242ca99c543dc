"""`qat-tft profile`: what a training step takes here, mode by mode, measured beside the simulation."""

from typing import Annotated

import typer

from qat_tft.cli import console
from qat_tft.cli.next_step import command, say_next
from qat_tft.cli.options.common import Json
from qat_tft.cli.options.settings import option_for
from qat_tft.cli.options.shape import OPTIONS, Shape, with_shape
from qat_tft.config.names import naming_options


@with_shape
def profile(
    *,
    shape: Shape,
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
    json: Json = False,
) -> None:
    """Run training steps on random numbers in each checkpoint mode and show the memory and time they take here.

    Each row is measured in its own worker processes, which start as `qat-tft train` does. Without options it measures
    the tft225 shape, as `qat-tft plan` does: 5 static, 210 observed and 10 known columns.
    """
    config = shape.config(device=device, checkpoint_segments=checkpoint_segments)
    from qat_tft.profiling.step_profile import make_profile

    own = config.training.recomputed_segments
    groups = shape.groups(config)
    with naming_options(("training.device", "training.precision"), file=OPTIONS):
        result = make_profile(config, groups, own=own, repeats=repeats, progress=console.note)
    console.emit(result, json=json)
    training = command("train", "--checkpoint-mode", "aggressive")
    say_next(f"{training} trains in the mode of a row", json=json)
