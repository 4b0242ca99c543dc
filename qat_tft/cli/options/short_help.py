"""Help of commands with many options: `--help` shows those that people need first, `--help-all` every one."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperCommand

from qat_tft.cli.options.settings import keyword

_STEP = (
    *("--parquet-file", "--observed", "--known", "--history", "--horizon", "--hidden", "--batch-size", "--precision"),
)
"""What a training step consists of."""
FIRST: Mapping[str, tuple[str, ...]] = {
    "train": (
        "--parquet-file",
        "--time",
        "--target",
        "--id",
        "--known",
        "--observed",
        "--history",
        "--horizon",
        "--epochs",
        "--use-qat",
    ),
    "quantize": (
        "--weight-bits",
        "--target-profile",
        "--qat-epochs",
        "--qat-learning-rate",
        "--qat-ranges",
        "--float-layers",
        "--use-int8",
        "--runs-dir",
        "--name",
        "--json",
    ),
    "plan": (*_STEP, "--memory-budget", "--json"),
    "profile": (*_STEP, "--device", "--json"),
}
"""Options that `--help` shows, for each command that has many."""

_HELPS = {"--help", "--help-all"}
_EVERY = "every option"


def short_help(name: str, command: Callable[..., None]) -> tuple[type[TyperCommand] | None, Callable[..., None]]:
    """Return the class that shows a command's help, None for the usual one, and the command with `--help-all`."""
    if name not in FIRST:
        return None, command
    own = inspect.signature(command)
    option = typer.Option("--help-all", callback=_show_every, is_eager=True, help="Show every option and exit.")
    added = keyword("help_all", bool, option, default=False)

    def run(help_all: bool = False, **values: Any) -> None:
        command(**values)

    run.__signature__ = own.replace(parameters=[*own.parameters.values(), added])  # type: ignore[attr-defined]
    run.__doc__, run.__annotations__ = command.__doc__, {}
    return ShortHelp, run


class ShortHelp(TyperCommand):
    """A command whose help shows its first options alone, unless `--help-all` asked for it."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help."""
        if ctx.meta.get(_EVERY):
            super().format_help(ctx, formatter)
            return
        with self._first_alone():
            super().format_help(ctx, formatter)

    @contextmanager
    def _first_alone(self) -> Iterator[None]:
        shown = _HELPS.union(FIRST[str(self.name)])
        behind = [one for one in self.params if one.param_type_name == "option" and shown.isdisjoint(one.opts)]
        epilog = self.epilog
        for option in behind:
            option.hidden = True  # type: ignore[attr-defined]
        self.epilog = f"{len(behind)} more options: [bold]qat-tft {self.name} --help-all[/]"
        try:
            yield
        finally:
            self.epilog = epilog
            for option in behind:
                option.hidden = False  # type: ignore[attr-defined]


def _show_every(context: typer.Context, asked: bool) -> None:
    if asked:
        context.meta[_EVERY] = True
        typer.echo(context.get_help(), color=context.color)
        raise typer.Exit
