"""Files outside docs/ that a page links to become pages of the site, and the links lead there.

A page links to a file as it stands in the repository, such as `../examples/ten_lines.py`, so that the link also works
where the Markdown is read. In the site that file is the page `repository/examples/ten_lines.py.md`.
"""

import json
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

FOLDER = "repository/"
DOCS = "docs/"
LANGUAGES = {".py": "python", ".toml": "toml", ".c": "c"}
LINK = re.compile(r"(\]\(|^\[[^\]]+\]: )([^)\s#]+)", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each file that pages link to, and for those that these link to."""
    root = Path(config.config_file_path).parent
    waiting = [file for file in files.documentation_pages() if file.src_uri.endswith(".md")]
    while waiting:
        page = waiting.pop()
        for _, link in LINK.findall(page.content_string):
            source = _in_repository(page.src_uri, link)
            if "://" in link or source.startswith((DOCS, "..")) or not (root / source).is_file():
                continue
            if files.get_file_from_path(_in_site(source)) is None:
                added = File.generated(config, _in_site(source), content=_as_page(root / source))
                files.append(added)
                waiting.append(added)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between files of the repository into links between pages of the site."""
    here = page.file.src_uri
    folder = posixpath.dirname(here) or "."

    def turned(found: re.Match[str]) -> str:
        there = _in_site(_in_repository(here, found[2]))
        if "://" in found[2] or files.get_file_from_path(there) is None:
            return found[0]
        return found[1] + posixpath.relpath(there, folder)

    return LINK.sub(turned, markdown)


def _in_repository(page: str, link: str) -> str:
    """Where in the repository the link of a page leads, the page given as it stands in the site."""
    source = page.removeprefix(FOLDER) if page.startswith(FOLDER) else DOCS + page
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), link))


def _in_site(source: str) -> str:
    if source.startswith(DOCS):
        return source.removeprefix(DOCS)
    return FOLDER + (source if source.endswith(".md") else f"{source}.md")


def _as_page(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    if path.suffix == ".ipynb":
        return "\n\n".join(map(_as_markdown, json.loads(text)["cells"]))
    return f"# {path.name}\n\n{_fenced(text, LANGUAGES.get(path.suffix, 'text'))}"


def _as_markdown(cell: dict[str, object]) -> str:
    lines = cell["source"]
    assert isinstance(lines, list)
    text = "".join(lines)
    return text if cell["cell_type"] == "markdown" else _fenced(text, "python")


def _fenced(text: str, language: str) -> str:
    return f"````{language}\n{text.rstrip()}\n````\n"
