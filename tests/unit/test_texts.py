"""Text that somebody else wrote is read within bounds, and shown without its commands."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from qat_tft import texts


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("a = " + "[" * 5000 + "]" * 5000, "nested too deep", id="arrays"),
        pytest.param("a = " + "{a = " * 5000 + "1" + "}" * 5000, "nested too deep", id="tables"),
        pytest.param("a" + ".a" * 200 + " = 1", "more than 100 parts", id="key"),
        pytest.param("[a" + ".a" * 200 + "]", "more than 100 parts", id="head of a table"),
        pytest.param("a = " + "9" * 5000, "4300 digits", id="digits"),
        pytest.param("#" * 2**23, "too large", id="size"),
        pytest.param("a = 1\na = 2", "overwrite", id="twice"),
    ],
)
def test_toml_that_cannot_be_parsed_is_one_kind_of_error(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        texts.parse_toml(text)


def test_dots_in_values_are_no_parts_of_a_key() -> None:
    names = [f"year=2024/part.{number}.parquet" for number in range(500)]
    assert texts.parse_toml(f"files = {names}")["files"] == names


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("[" * 100_000, "nested too deep", id="depth"),
        pytest.param("[NaN]", "NaN is no finite number", id="NaN"),
        pytest.param("-Infinity", "-Infinity is no finite number", id="infinity"),
        pytest.param("1e999", "1e999 is no finite number", id="beyond a float"),
        pytest.param("9" * 5000, "4300 digits", id="digits"),
        pytest.param('{"a": ', "Expecting value", id="cut"),
    ],
)
def test_json_that_cannot_be_parsed_is_one_kind_of_error(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        texts.parse_json(text)


def test_a_pipe_a_device_and_a_broken_link_are_refused_without_being_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("nowhere")
    for path, said in ((tmp_path / "pipe", "not a regular file"), (Path("/dev/zero"), "not a regular file")):
        with pytest.raises(OSError, match=said):
            texts.read_text(path)
    for path in (tmp_path / "link", tmp_path / "none", tmp_path / ("n" * 300)):
        with pytest.raises(OSError):  # noqa: PT011 - as the system says it
            texts.read_text(path)


def test_commands_to_a_terminal_are_written_out() -> None:
    assert texts.shown("a\x1b[31m\x07\x9b\u202eb\ud800\n") == "a\\x1b[31m\\x07\\x9b\\u202eb\\ud800\n"
    assert texts.shown("a\nerror: b", one_line=True) == "a\\nerror: b"
    assert texts.shown("größe, 温度, 🙂") == "größe, 温度, 🙂"
