"""The command `qat-tft`: registers one function per command file and turns errors into exit codes.

Each command `some-name` stands in `qat_tft/cli/commands/some_name.py` as the function `some_name`, annotated
for typer. Such a file imports only typer and this room at its top; what is heavy (torch, onnx) is imported in
the function.

Exit codes: 0 done, 1 a check failed, 2 bad usage or bad input, 130 interrupted.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module

import typer

from qat_tft.cli import console
from qat_tft.errors import QatTftError
from qat_tft.profiling.heap import restart_without_block_cache

COMMANDS = (
    "train",
    "quantize",
    "plan",
    "profile",
    "sensitivity",
    "export",
    "check",
    "backtest",
    "predict",
    "report",
    "inspect",
    "sample-data",
)
INTERRUPTED = 130

app = typer.Typer(
    name="qat-tft",
    help="Quantization-aware training of the Temporal Fusion Transformer, and its INT8 ONNX file.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _register(name: str) -> None:
    function = name.replace("-", "_")
    app.command(name)(getattr(import_module(f"qat_tft.cli.commands.{function}"), function))


for _name in COMMANDS:
    _register(_name)


@app.callback()
def _root() -> None:
    """Keep `qat-tft` a group of commands whatever their number."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        arguments: what stands after `qat-tft`; by default those of this process.
    """
    # A thread that waits in a busy loop for another one takes the core that the other one needs: measured 6 times
    # slower training with a second process on two cores. OpenMP reads this once, when torch is first imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    words = list(sys.argv[1:] if arguments is None else arguments)
    if arguments is None and words[:1] in (["train"], ["quantize"]):
        restart_without_block_cache()
    try:
        app(words, prog_name="qat-tft")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except KeyboardInterrupt:
        return INTERRUPTED
    except QatTftError as failure:
        if "--json" in words:
            console.emit_json({"error": str(failure)})
        console.error(str(failure))
        return int(getattr(failure, "exit_code", 1))
    return 0
