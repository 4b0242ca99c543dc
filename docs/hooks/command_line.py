"""The page of the command line, made from the commands themselves whenever the site is built."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from qat_tft.cli.app import app

PAGE = "reference/cli.md"
PREFACE = """# Command line

Every command with every option, as `qat-tft COMMAND --help` shows them (of `train`, `quantize`, `plan` and `profile`,
`--help-all`). Exit codes: 0 done, 1 a check failed, 2 bad usage or bad input, 130 interrupted."""
STYLE = re.compile(r"\[(/|/?dim|/?bold)\]")
OWN_PANELS = {"option": "Options", "argument": "Arguments"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page."""
    files.append(File.generated(config, PAGE, content=command_line()))
    return files


def command_line() -> str:
    """Return the Markdown of the page: a section per command, a table per group of its options."""
    root = typer.main.get_command(app)
    context = typer.Context(root, info_name="qat-tft")
    sections = (section for name in root.list_commands(context) for section in _sections(root, name, context))
    return "\n\n".join([PREFACE, *sections])


def _sections(group: Any, name: str, above: typer.Context) -> Iterator[str]:
    command = group.get_command(above, name)
    context = typer.Context(command, info_name=name, parent=above)
    yield f"## {context.command_path}"
    yield f"    {context.command_path} {' '.join(command.collect_usage_pieces(context))}"
    yield STYLE.sub("", command.help or "")
    for title, records in _panels(command.get_params(context), context).items():
        yield f"**{title}**"
        yield _table(records)
    for inner in command.list_commands(context) if hasattr(command, "list_commands") else ():
        yield from _sections(command, inner, context)


def _panels(parameters: Iterable[Any], context: typer.Context) -> dict[str, list[tuple[str, str]]]:
    panels: dict[str, list[tuple[str, str]]] = {}
    for one in parameters:
        record = one.get_help_record(context)
        if record is not None:
            panels.setdefault(one.rich_help_panel or OWN_PANELS[one.param_type_name], []).append(record)
    return panels


def _table(records: list[tuple[str, str]]) -> str:
    rows = [f"| `{name}` | {_cell(text)} |" for name, text in records]
    return "\n".join(["| | |", "| --- | --- |", *rows])


def _cell(text: str) -> str:
    """A help text as a cell; what stands between backticks is code, in which nothing is escaped."""
    plain = " ".join(STYLE.sub("", text).split())
    parts = plain.split("`")
    parts[::2] = [part.replace("|", r"\|").replace("<", "&lt;") for part in parts[::2]]
    return "`".join(parts)
