"""Hooks of mkdocs.yml: pages that are not in docs/, links between them, equations, and lists of pages.

The pages are written for the hosting service, where links are paths of the repository. On the site, README.md is the
home page, an example is a page with its code, and other files that a page links to, such as records, are copied.
"""

import ast
import contextlib
import html
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md", "examples/README.md")
LINK = re.compile(r"(!?)\[([^\]\[]*(?:\[[^\]]*\][^\]\[]*)*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def on_config(config: Any) -> Any:
    """Replace "folder/*" in the navigation by the pages of the folder, and add the pages that it does not list."""
    sections = {title: pages for section in config["nav"] for title, pages in section.items()}
    sections = {title: [page for entry in pages for page in _expand(entry)] for title, pages in sections.items()}
    listed = {page for pages in sections.values() for page in pages}
    written = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    sections["Reference"] += sorted(written - listed)
    config["nav"] = [{title: pages} for title, pages in sections.items()]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are not in docs/, and the files that pages link to."""
    for path in OUTSIDE:
        files.append(File.generated(config, _place(Path(path)), content=(ROOT / path).read_text(encoding="utf-8")))
    for path in sorted((ROOT / "examples").glob("*.py")):
        files.append(File.generated(config, f"examples/{path.stem}.md", content=_example(path)))
    files.append(File.generated(config, "methods/README.md", content=_list_of_methods()))
    files.append(File.generated(config, "commands.md", content=_help_of_commands()))
    for place in sorted({place for file in files.documentation_pages() for place in _linked_files(file)}):
        if files.get_file_from_path(place) is None:
            files.append(File.generated(config, place, abs_src_path=str(ROOT / place)))
    return files


def on_page_markdown(markdown: str, page: Any, **others: Any) -> str:
    """Make the links of a page those of the site, and its equations MathML, which browsers show without scripts."""
    source = _source(page.file.src_uri)
    markdown = LINK.sub(lambda match: _link_on_site(match, source, page.file.src_uri), markdown)
    return re.sub(r"```math\n(.*?)\n```", lambda match: f"<p>{_mathml(match[1], 'block')}</p>", markdown)


def on_page_content(content: str, **others: Any) -> str:
    """Make $`...`$ in a line of text MathML."""
    return re.sub(r"\$<code>(.*?)</code>\$", lambda match: _mathml(html.unescape(match[1])), content)


def _mathml(latex: str, display: str = "inline") -> str:
    """Convert LaTeX; relations need their commands to be spaced as such, and functions a space before a letter."""
    for symbol, command in {"≤": "le", "≠": "ne", "∈": "in", "←": "leftarrow"}.items():
        latex = latex.replace(symbol, f"\\{command} ")
    return convert(re.sub(r"\\(log|ln) ", r"\\\1\\, ", latex), display=display)


def _expand(entry: str) -> list[str]:
    folder, star, _ = entry.partition("/*")
    if not star:
        return [entry]
    pages = {path.stem for top in ("", "docs") for path in (ROOT / top / folder).glob("*.[mp][dy]")} - {"README"}
    index = [] if folder == "api" else [f"{folder}/README.md"]
    return [*index, *(f"{folder}/{page}.md" for page in sorted(pages))]


def _place(path: Path) -> str:
    """Return the place on the site of a file of the repository."""
    if path == Path("README.md"):
        return "index.md"
    if path.parts[0] == "docs":
        return path.relative_to("docs").as_posix()
    return (path.with_suffix(".md") if path.parent.name == "examples" else path).as_posix()


def _source(place: str) -> Path:
    """Return the file of the repository that is shown at a place of the site."""
    if place == "index.md":
        return Path("README.md")
    return Path(place) if place in OUTSIDE or place.startswith("examples/") else Path("docs") / place


def _linked_path(source: Path, target: str) -> Path | None:
    """Return the file or folder of the repository that a page links to; None for other links, and for code."""
    if ":" in target:
        return None
    path = Path(os.path.normpath(source.parent / target))
    return path if (ROOT / path).exists() and path.parts[0] != ".." else None


def _linked_files(file: Any) -> Iterator[str]:
    source = _source(file.src_uri)
    for match in LINK.finditer(file.content_string):
        path = _linked_path(source, match[3])
        if path is not None and (ROOT / path).is_file():
            yield _place(path)


def _link_on_site(match: re.Match[str], source: Path, place: str) -> str:
    image, text, target, anchor = match.groups()
    path = _linked_path(source, target)
    if path is None:
        return match[0]
    if (ROOT / path).is_dir():
        return text  # folders have no page
    return f"{image}[{text}]({os.path.relpath(_place(path), Path(place).parent)}{anchor or ''})"


def _example(path: Path) -> str:
    """Return the page of an example: the docstring, how to run it, and the code."""
    code = path.read_text(encoding="utf-8")
    title, _, text = (ast.get_docstring(ast.parse(code)) or path.stem).partition("\n")
    code = code.split('"""', 2)[2].strip()
    return f"# {title.rstrip('.')}\n{text}\n\n```\npython examples/{path.name}\n```\n\n```python\n{code}\n```\n"


def _list_of_methods() -> str:
    """Return a table of the methods, with the first sentence of their pages."""
    rows = []
    for path in sorted((ROOT / "docs" / "methods").glob("*.md")):
        summary = path.read_text(encoding="utf-8").split("\n\n")[1].replace("\n", " ")
        rows.append(f"| [{path.stem}]({path.name}) | {summary} |")
    return "\n".join(["# Methods", "", "| method | summary |", "| --- | --- |", *rows, ""])


def _help_of_commands() -> str:
    """Return a page with what `labelsieve COMMAND --help` prints."""
    from labelsieve.cli import parse
    from labelsieve.commands import COMMANDS

    sections = ["# Commands"]
    for name in COMMANDS:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
            parse([name, "--help"])
        sections.append(f"## labelsieve {name}\n\n```\n{printed.getvalue().strip()}\n```")
    return "\n\n".join(sections)
