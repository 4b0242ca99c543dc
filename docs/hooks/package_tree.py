"""The docstrings are read from a tree in which `export/` stands where it is imported from."""

from pathlib import Path
from tempfile import TemporaryDirectory

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority

_trees: list[TemporaryDirectory[str]] = []


@event_priority(100)  # before mkdocstrings reads its settings
def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Make the tree of links and give it to mkdocstrings."""
    root = Path(config.config_file_path).parent
    tree = TemporaryDirectory(prefix="qat-tft-docs-")
    _trees.append(tree)
    package = Path(tree.name, "qat_tft")
    package.mkdir()
    for part in [*(root / "qat_tft").iterdir(), root / "export"]:
        (package / part.name).symlink_to(part)
    config.plugins["mkdocstrings"].config.handlers["python"]["paths"] = [tree.name]
    return config


def on_post_build(config: MkDocsConfig) -> None:
    """Remove the tree."""
    while _trees:
        _trees.pop().cleanup()
