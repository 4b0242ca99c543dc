"""README.md is short, and shows the commands of `make demo`; tests/pipeline compares what they print."""

from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MOST_LINES = 120
OUTPUT = """Installing torch
"/some where/bin/qat-tft" train --use-qat
An epoch draws 80 batches
  q-risk on the test part
│ FP32 │
└──────┘
│ another table │
"/some where/bin/qat-tft" check
│ tensors compared │
│ something else │
PASSED
"""


def test_the_readme_is_short_and_shows_the_commands_of_the_demo_in_their_order(readme_block: ModuleType) -> None:
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\ndemo: install\n")[2].partition("\n\n")[0]
    demo = [line.strip().replace('"$(BIN)/qat-tft"', "qat-tft") for line in recipe.splitlines() if 'qat-tft" ' in line]
    assert len(demo) == 4
    shown = readme_block.taken(README).splitlines()
    assert [line.strip() for line in shown if line.startswith("    qat-tft ")] == demo
    assert len(README.splitlines()) <= MOST_LINES


@pytest.mark.parametrize("option", ["--parquet-file", "--epochs", "--batch-size", "--use-int8"])
def test_the_readme_names_what_a_first_training_needs(option: str) -> None:
    assert f"{option} " in README


def test_the_block_holds_the_commands_the_table_of_one_and_lines_of_the_other(readme_block: ModuleType) -> None:
    assert readme_block.block(OUTPUT).splitlines() == [
        "    qat-tft train --use-qat",
        "      q-risk on the test part",
        "    │ FP32 │",
        "    └──────┘",
        "    qat-tft check",
        "    │ tensors compared │",
        "    PASSED",
    ]


def test_the_block_is_replaced_and_everything_around_it_stays(readme_block: ModuleType) -> None:
    page = f"before\n{readme_block.BEGIN}\nold\n\n{readme_block.END}after\n"
    assert readme_block.put(page, "new\n") == page.replace("old", "new")
    assert readme_block.put(readme_block.put(page, "new\n"), "old\n") == page
    assert readme_block.taken(page).strip() == "old"
