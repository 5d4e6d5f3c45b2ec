"""README and docs: every Python block runs in a process of its own, links lead somewhere,
figures are the recorded ones.
"""

from __future__ import annotations

import ast
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from zygote import Zygote

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "async_loader"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in PAGES if page.parent.name != "notebooks"]  # made with the site
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

NOTEBOOKS = runpy.run_path(str(ROOT / "scripts" / "notebooks.py"))

# Warnings are errors, but for those that come after 10 s of waiting, as in pyproject.toml: they say
# nothing on a shared machine where kernels are compiled meanwhile.
_SLOW = ["no batch for", "waiting to insert for", "waiting to sample for"]
_WARNINGS = (
    "-W",
    "error",
    *(part for text in _SLOW for part in ("-W", f"ignore:{text}:RuntimeWarning")),
)


def blocks():
    for page in PAGES:
        for number, match in enumerate(_BLOCK.finditer(page.read_text())):
            yield pytest.param(match[1], id=f"{page.relative_to(ROOT)}-{number}")


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    folders = (str(Path(__file__).parent),)
    modules = ("torch", "async_loader.feeder.server", "loaded_kernels")
    zygote = Zygote(*modules, folders=folders, options=_WARNINGS)
    yield zygote
    zygote.close()


@pytest.mark.slow
@pytest.mark.parametrize("code", list(blocks()))
def test_an_example_runs_as_it_stands(code: str, tmp_path: Path, zygote: Zygote):
    script = tmp_path / "example.py"
    script.write_text(code)
    exit_code, _, errors = zygote.run(script)
    assert exit_code == 0, errors


def test_the_first_example_of_the_readme_needs_no_accelerator_and_leaves_nothing_open():
    """It is what a reader pastes first; that it ends by itself, the test above shows."""
    first = _BLOCK.search((ROOT / "README.md").read_text())[1]
    assert "AsyncDataLoader" in first
    assert 'device="cuda"' not in "".join(line.split("#")[0] for line in first.splitlines())
    assert "with AsyncDataLoader" in first


def links(page: Path) -> list[str]:
    """Where a page's links and pictures lead, without those to other sites and to itself."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"\]\(([^)\s]+)\)", text)
    return [link for link in found if not link.startswith(("http", "#"))]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MkDocs make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    words = [re.sub(r"[^\w\s-]", "", heading.lower()).strip() for heading in headings]
    return {re.sub(r"\s+", "-", text) for text in words}


def leads_nowhere(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = page.parent / path
    if not target.exists():
        return True
    return bool(anchor) and target.suffix == ".md" and anchor not in anchors(target)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_to_a_file_and_a_heading(page: Path):
    assert [link for link in links(page) if leads_nowhere(page, link)] == []


def test_the_readme_has_links_and_at_most_150_lines():
    readme = ROOT / "README.md"
    assert links(readme)
    assert len(readme.read_text().splitlines()) <= 150


def test_the_cookbook_answers_twenty_questions_each_with_a_block_that_runs():
    recipes = re.split(r"^## ", (ROOT / "docs" / "cookbook.md").read_text(), flags=re.MULTILINE)[1:]
    assert len(recipes) == 20
    assert [recipe.splitlines()[0] for recipe in recipes if not _BLOCK.search(recipe)] == []


def missing_files(text: str) -> list[str]:
    """The paths in backticks that are neither in the repository nor in the package."""
    named = set(re.findall(r"`((?:[a-z_]+/)+[a-z_.]*|[a-z_]+\.py)`", text))
    return sorted(
        path for path in named if not any((root / path).exists() for root in (ROOT, PACKAGE))
    )


@pytest.mark.parametrize("name", ["architecture.md", "life-of-a-batch.md"])
def test_the_pages_of_the_architecture_name_files_that_exist(name: str):
    text = (ROOT / "docs" / name).read_text()
    assert len(re.findall(r"`[a-z_/]+\.py`", text)) > 10
    assert missing_files(text) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_that_begin_with_a_folder_of_ours_exist(page: Path):
    folders = "async_loader|benchmarks|configs|docs|examples|scripts|tests"
    paths = set(re.findall(rf"(?<![\w/.])(?:{folders})/[\w./-]*\w", page.read_text()))
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


def test_the_table_of_rooms_names_each_module_and_folder_of_the_package():
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = page.split("| room |")[1].split("\n\n")[0]
    first = " ".join(re.findall(r"^\| (`.+?) \|", table, re.MULTILINE))
    named = {name.strip("/").split("/")[0] for name in re.findall(r"`([\w/]+)`", first)}
    files = [
        path
        for path in PACKAGE.iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    ]
    rooms = {path.stem for path in files} - {"__init__", "__main__"}
    assert named == rooms


def missing_modules(text: str) -> list[str]:
    """The dotted names of the package that are neither a module nor a name in one."""
    missing = []
    for dotted in sorted(set(re.findall(r"\basync_loader(?:\.[A-Za-z_]\w*)+", text))):
        path, *names = dotted.split(".")
        module = ROOT / path
        while names and ((module / names[0]).is_dir() or (module / f"{names[0]}.py").exists()):
            module /= names.pop(0)
        source = module / "__init__.py" if module.is_dir() else module.with_suffix(".py")
        if names and not re.search(rf"\b{names[0]}\b", source.read_text()):
            missing.append(dotted)
    return missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_dotted_names_of_the_package_exist(page: Path):
    assert missing_modules(page.read_text()) == []


def wrong_places(text: str) -> list[str]:
    """The rows of the list of places that name what none of their files defines."""
    rows = re.findall(r"^\| (.+?) \| (`.+?\.py`.*?) \| (.+?) \|$", text, re.MULTILINE)
    wrong = []
    for what, files, names in rows:
        sources = [PACKAGE / path for path in re.findall(r"`([\w/]+\.py)`", files)]
        code = "\n".join(path.read_text() for path in sources if path.exists())
        for name in re.findall(r"`([\w.]+)`", names):
            for part in name.split("."):
                if not re.search(rf"^\s*(?:class|def) {part}\b", code, re.MULTILINE):
                    wrong.append(f"{what}: {name}")
        wrong += [
            f"{what}: {note}" for note in re.findall(r"NOTE \[.+?\]", names) if note not in code
        ]
    return wrong


def test_the_list_of_places_names_what_its_files_define():
    text = (ROOT / "docs" / "architecture.md").read_text()
    section = text.split("## Where to find what")[1].split("\n## ")[0]
    assert section.count("\n| ") >= 9
    assert wrong_places(section) == []


# Words that stand for a noun which the sentence should name.
_VAGUE = "nobody|no one|whoever|somebody|someone|anybody|anyone|so many|what came|is none"


def vague(text: str) -> list[str]:
    """Lines with a vague word. `is None` of Python is left out."""
    words = re.compile(rf"\b(?:{_VAGUE})\b", re.IGNORECASE)
    return [line for line in text.splitlines() if words.search(re.sub(r"\bis None\b", "", line))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_nouns_in_place_of_vague_words(page: Path):
    assert vague(page.read_text()) == []


def site_pages(entry: Any) -> list[str]:
    """The pages of an entry of the navigation in mkdocs.yml."""
    if isinstance(entry, str):
        return [entry]
    inner = entry.values() if isinstance(entry, dict) else entry
    return [page for one in inner for page in site_pages(one)]


def test_every_page_of_the_docs_is_in_the_navigation_of_the_site_once():
    pages = [str(page.relative_to(ROOT / "docs")) for page in PAGES[1:]]
    pages += [f"notebooks/{name}.md" for name in NOTEBOOKS["NOTEBOOKS"]]
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    assert sorted(site_pages(nav)) == sorted(pages)


@pytest.mark.parametrize("name", NOTEBOOKS["NOTEBOOKS"])
def test_a_notebook_is_the_code_of_its_example_without_the_command_line(name: str):
    *cells, call = NOTEBOOKS["code_cells"](name)
    assert re.search(r"^main\(.+\)$", call, re.MULTILINE)
    joined = "\n".join(re.sub(r"^%%writefile.*\n", "", cell) for cell in cells)
    code = (ROOT / "examples" / f"{name}.py").read_text().split("if __name__ ==")[0]
    wanted = ast.parse(code)
    assert ast.dump(ast.parse(joined)) == ast.dump(ast.Module(wanted.body[1:], []))


def public_names() -> set[str]:
    """The names in tests/data/api.txt, each once: not in the second module that lists it."""
    module, lines = "", {}
    elsewhere = re.compile(r"(= async_loader\.[\w.]+|module async_loader\.\w+)$")
    for line in (ROOT / "tests" / "data" / "api.txt").read_text().splitlines():
        match = re.match(r"  (?:class )?([a-zA-Z]\w*)(?:\(|:| =)", line)
        if line and not line.startswith(" "):
            module = line
        elif match and not elsewhere.search(line):
            lines.setdefault(line, f"{module}.{match[1]}")
    return set(lines.values())


def test_every_public_name_is_on_one_page_of_the_reference():
    pages = [page.read_text() for page in sorted((ROOT / "docs" / "reference").glob("*.md"))]
    shown = re.findall(r"^::: (async_loader\.[\w.]+)$", "\n".join(pages), re.MULTILINE)
    assert sorted(shown) == sorted(public_names())


@pytest.fixture
def readme(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT))
    import benchmarks.readme

    return benchmarks.readme


def test_the_figures_on_both_pages_are_the_recorded_ones(readme):
    records = readme.recorded()
    assert readme.summary(records) in readme.README.read_text()
    assert readme.section(records) in readme.PAGE.read_text()


def test_the_readme_has_three_figures_and_the_page_every_target_that_is_missed(readme):
    records = readme.recorded()
    lines = readme.summary(records).splitlines()
    assert len([line for line in lines if line.startswith("| ")][1:]) == 3
    missed = [
        target
        for record in records
        for row in record["rows"]
        for target in row["targets"]
        if target["outcome"] == "missed"
    ]
    assert readme.section(records).count("| missed |") == len(missed) > 0
