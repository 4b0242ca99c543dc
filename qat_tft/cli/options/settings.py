"""Command line options that stand for settings of the configuration: help and defaults come from there."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import typer
from pydantic import BeforeValidator
from pydantic.fields import FieldInfo
from rich.markup import escape

from qat_tft.config.fields import Metavar, choices
from qat_tft.config.names import NO, Given, every_setting, flag_of, name_of, section_called
from qat_tft.errors import ConfigError


def with_options(
    parameter: str, options: Sequence[inspect.Parameter], collect: Callable[[dict[str, Any]], Any], *, at_top: int = 0
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command options in the place of one of its parameters.

    Args:
        parameter: name of the parameter.
        options: what stands on the command line instead.
        collect: makes the parameter's value of the options' values, which come by name.
        at_top: how many of the options the help shows first.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(**values: Any) -> None:
            taken = {option.name: values.pop(option.name) for option in options}
            command(**values, **{parameter: collect(taken)})

        own = list(inspect.signature(command).parameters.values())
        place = [one.name for one in own].index(parameter)
        shown = [*options[:at_top], *own[:place], *options[at_top:], *own[place + 1 :]]
        run.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
        del run.__wrapped__  # its annotations are not those of the options
        run.__annotations__ = {}
        return run

    return decorate


def with_settings(
    *, first: str, section: str = "", without: Sequence[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for every setting that has one; the command gets those that were used as `given`.

    Name, type, choices, help and default come from the configuration. An option that is not used is None, so that a
    configuration file can decide.

    Args:
        first: path of the setting whose option the help shows at the top.
        section: the only section whose settings get options; empty: all of them.
        without: paths of settings that get none.
    """
    wanted = [path for path in _with_option() if path.startswith(f"{section}.") or not section]
    paths = sorted((path for path in wanted if path not in without), key=lambda path: path != first)
    names = {name_of(path): path for path in paths}

    def used(values: dict[str, Any]) -> Given:
        given = {names[name]: value for name, value in values.items() if value is not None}
        turned_off = {path for path, value in given.items() if flag_of(path).startswith(NO) and value}
        return {path: path not in turned_off and value for path, value in given.items()}

    return with_options("given", [_parameter(path) for path in paths], used, at_top=1)


def option_of(path: str, default: object) -> inspect.Parameter:
    """Return the option of a setting for a command that has its own default for it."""
    field = _field(path)
    kind = _option_type(field.annotation, field.metadata)
    return keyword(name_of(path), kind, option_for(path, show_default=True), default)


def keyword(name: str, kind: Any, option: Any, default: object = None) -> inspect.Parameter:
    """Return a keyword parameter of a type and a default that stands for an option of typer's."""
    annotation = Annotated[kind, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def option_for(path: str, *, show_default: bool = False) -> Any:
    """Return the option of a setting for a command that has its own default; help and choices are the setting's."""
    field = _field(path)
    return typer.Option(
        flag_of(path),
        help=_sentence(f"{field.description}"),
        rich_help_panel=section_called(path.split(".")[0]).title,
        metavar=_metavar(field.annotation, field.metadata),
        show_default=show_default,
        autocompletion=_offering(field.annotation),
    )


def choices_of(path: str) -> str:
    """Return the choices of a setting as the help shows them: ``x86|arm64``."""
    return "|".join(choices(_field(path).annotation))


def _with_option() -> list[str]:
    split = {path: path.split(".") for path in every_setting()}
    return [path for path, (section, key) in split.items() if key not in section_called(section).only_in_files]


def _parameter(path: str) -> inspect.Parameter:
    field = _field(path)
    turned_off = flag_of(path).startswith(NO)
    text = escape(_sentence(f"do not {field.description}" if turned_off else f"{field.description}"))
    if field.default not in (None, ()) and not turned_off:
        text = rf"{text} [dim]\[default: {escape(_shown(field.default))}][/dim]"
    option = typer.Option(
        flag_of(path),
        help=text,
        show_default=False,
        rich_help_panel=section_called(path.split(".")[0]).title,
        metavar=_metavar(field.annotation, field.metadata),
        autocompletion=_offering(field.annotation),
    )
    kind = _option_type(field.annotation, field.metadata)
    return keyword(name_of(path), kind | None, option)


def _option_type(annotation: Any, metadata: list[Any]) -> Any:
    """Return what an option takes: a number, a flag, texts that may be repeated, or one text."""
    plain = next(part for part in _parts(annotation) if part is not type(None))
    if plain in (bool, int, float) and not any(isinstance(one, BeforeValidator) for one in _annotations(annotation)):
        return plain
    repeated = get_origin(plain) is tuple and not any(isinstance(one, BeforeValidator) for one in metadata)
    return list[str] if repeated and not any(_annotations(annotation)) else str


def _metavar(annotation: Any, metadata: list[Any]) -> str | None:
    named = [one.text for one in (*metadata, *_annotations(annotation)) if isinstance(one, Metavar)]
    return named[-1] if named else "|".join(choices(annotation)) or None


def _offering(annotation: Any) -> Callable[[], list[str]] | None:
    """Return what offers a shell the choices of a setting; None where it has none, so that the shell offers files."""
    names = list(choices(annotation))
    return (lambda: names) if names else None


def _parts(annotation: Any) -> Iterator[Any]:
    """Yield the types that an annotation allows, without what is annotated to them."""
    if get_origin(annotation) is Annotated:
        yield from _parts(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, UnionType):
        for part in get_args(annotation):
            yield from _parts(part)
    else:
        yield annotation


def _annotations(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) is Annotated:
        yield from get_args(annotation)[1:]
    elif get_origin(annotation) in (Union, UnionType):
        for part in get_args(annotation):
            yield from _annotations(part)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _field(path: str) -> FieldInfo:
    section, key = path.split(".")
    return section_called(section).model_fields[key]


def share(text: str | None, option: str) -> float | None:
    """Return a share written as 0.005 or 0.5%; None stays None.

    Raises:
        ConfigError: it is neither, or below zero.
    """
    if text is None:
        return None
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < float("inf"):
        raise ConfigError(f"{option} {text} is not a share", allowed="a number of at least 0, such as 0.005 or 0.5%")
    return value


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
