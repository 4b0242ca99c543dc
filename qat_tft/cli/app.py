"""The command `qat-tft`: registers one function per command file and turns errors into exit codes.

Each command `some-name` stands in `qat_tft/cli/commands/some_name.py` as the function `some_name`, annotated
for typer. Such a file imports only typer and this room at its top; what is heavy (torch, onnx) is imported in
the function.

Exit codes: 0 done, 1 a check failed, 2 bad usage or bad input, 130 interrupted.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout, suppress
from importlib import import_module

import typer

from qat_tft.cli import console
from qat_tft.cli.commands.runs import runs
from qat_tft.cli.options.short_help import short_help
from qat_tft.cli.streams import standard_streams
from qat_tft.errors import LostRankError, OutputError, QatTftError, UserError
from qat_tft.launch import Launch, launched
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
    "explain",
    "inspect",
    "sample-data",
)
SHARED = ("train", "quantize", "backtest")
"""Commands whose work several processes share."""
INTERRUPTED = 130

app = typer.Typer(
    name="qat-tft",
    help="Quantization-aware training of the Temporal Fusion Transformer, and its INT8 ONNX file.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _register(name: str) -> None:
    function = name.replace("-", "_")
    kind, command = short_help(name, getattr(import_module(f"qat_tft.cli.commands.{function}"), function))
    app.command(name, cls=kind, help=_paragraphs(command.__doc__ or ""))(command)


def _paragraphs(docstring: str) -> str:
    """Return each paragraph on one line: the terminal breaks it, and would keep the breaks of the source too."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in docstring.split("\n\n"))


for _name in COMMANDS:
    _register(_name)
app.add_typer(runs, name="runs")


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
    # onnxruntime would send events to its maker and keep an identifier in the home; it reads this when it is imported.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    words = list(sys.argv[1:] if arguments is None else arguments)
    if arguments is None and words[:1] in (["train"], ["quantize"]):
        restart_without_block_cache()
    with standard_streams():
        as_json, aloud = "--json" in words, True
        try:
            _require_text(words)
            aloud = _place(words).is_first
            with nullcontext() if aloud else _silence():
                app(words, prog_name="qat-tft")
        except SystemExit as stop:
            return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        except KeyboardInterrupt:
            return INTERRUPTED
        except UserError as failure:
            return _reported(failure.message(_options_of(words)), failure.exit_code, aloud=aloud, as_json=as_json)
        except LostRankError as failure:
            from qat_tft import ranks  # it imports torch

            return _reported(str(failure), failure.exit_code, aloud=ranks.may_tell_of_a_lost_rank(), as_json=as_json)
        except QatTftError as failure:
            return _reported(str(failure), getattr(failure, "exit_code", 1), aloud=aloud, as_json=as_json)
        except OSError as failure:  # what no room has a word for: a file system that fails, or forbids to look
            if failure.filename is None:
                raise
            refused = UserError(f"{failure.strerror}", where=os.fsdecode(failure.filename))
            return _reported(str(refused), refused.exit_code, aloud=aloud, as_json=as_json)
    return 0


def _place(words: Sequence[str]) -> Launch:
    """Return the place of this process among those that were started together.

    Raises:
        UserError: several were started, but by no launcher, or for a command that does not share its work.
    """
    launch = launched()
    if launch.world > 1 and words and words[0] in COMMANDS and words[0] not in SHARED:
        raise UserError(
            f"`qat-tft {words[0]}` runs in one process, and {launch.world} were started",
            allowed=f"{', '.join(SHARED)} with several processes",
            next_step=f"Start it by itself: `qat-tft {' '.join(words)}`",
        )
    return launch


@contextmanager
def _silence() -> Iterator[None]:
    """Print nothing: of processes that do the same, one is to be heard."""
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield


def _require_text(words: Sequence[str]) -> None:
    """Refuse a word whose bytes are not text here: Parquet and weights could not be found under such a name."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise UserError(
                f"{word!r} is not text in the encoding of file names here, {sys.getfilesystemencoding()}",
                next_step="Rename the file or folder; if its name is UTF-8, set the environment variable PYTHONUTF8=1",
            ) from None


def _options_of(words: Sequence[str]) -> frozenset[str]:
    """Return the options of the command that runs."""
    commands = getattr(typer.main.get_command(app), "commands", {})
    parameters = commands[words[0]].params if words and words[0] in commands else ()
    return frozenset(option for parameter in parameters for option in parameter.opts)


def _reported(message: str, code: int, *, aloud: bool, as_json: bool) -> int:
    """Print the message of an error, where this process is the one that does, and return its exit code."""
    if not aloud:
        return code
    if as_json:
        with suppress(OutputError):  # standard error has the message too
            console.emit_json({"error": message})
    console.error(message)
    return code
