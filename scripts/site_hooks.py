"""Hooks of mkdocs.yml: the pictures of the benchmarks lie outside docs/, and are part of the
site.
"""

from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results"
OUTSIDE, INSIDE = "../benchmarks/results/", "benchmarks-results/"


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Add the pictures to the files of the site."""
    from mkdocs.structure.files import File

    for picture in sorted(RESULTS.glob("*.png")):
        files.append(File.generated(config, INSIDE + picture.name, abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Point the pages at the pictures in the site."""
    return markdown.replace(OUTSIDE, INSIDE)
