"""Three examples as notebooks: executed in a short form, and written as pages of the site.

python scripts/notebooks.py      # docs/notebooks/NAME.md, NAME.ipynb; needs the extra docs
"""

import ast
import os
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "docs" / "notebooks"
NOTEBOOKS = {
    "cleanrl_dqn": ("DQN, as in CleanRL", "main(steps=10_000)"),
    "sb3_sac": ("SAC of Stable-Baselines3", "main(steps=3_000, episodes=5)"),
    "feeder_dqn": ("Actors, a feeder and a learner", "main(updates=1_000)"),
}
"""Title, and the call that stands for the command line."""
LIMIT_S = 300
DEFINITIONS = (ast.FunctionDef, ast.ClassDef)


def code_cells(name: str) -> list[str]:
    """The example's code, a cell for each function and class, and for what is between them.

    Processes that are spawned import their function from a file, so these cells write one.
    """
    text = (ROOT / "examples" / f"{name}.py").read_text()
    _, *nodes, last = ast.parse(text).body
    assert ast.unparse(last).startswith("if __name__ == '__main__'"), f"{name}.py ends otherwise"
    lines = text.splitlines()
    cells: list[str] = []
    kind, begin = None, ast.parse(text).body[0].end_lineno
    for node in nodes:
        before, kind = kind, type(node)
        source = "\n".join(lines[begin : node.end_lineno])
        begin = node.end_lineno
        imports = {before, kind} <= {ast.Import, ast.ImportFrom}
        if before in DEFINITIONS or kind in DEFINITIONS or (before is not kind and not imports):
            cells.append(source.strip("\n"))
        else:
            cells[-1] += "\n" + source
    call = NOTEBOOKS[name][1]
    if "import multiprocessing" in text:
        first, *others = cells
        cells = [f"%%writefile {name}.py\n{first}"]
        cells += [f"%%writefile -a {name}.py\n{cell}" for cell in others]
        call = f"from {name} import main\n\n{call}"
    return [*cells, call]


def introduction(name: str) -> str:
    text = ast.get_docstring(ast.parse((ROOT / "examples" / f"{name}.py").read_text())) or ""
    return f"# {NOTEBOOKS[name][0]}\n\n{text.replace('::', ':')}"


def executed(name: str) -> Any:
    """The notebook with its output. An exception in a cell ends the build."""
    import nbclient
    from nbformat import v4

    notebook = v4.new_notebook()
    cells = [v4.new_code_cell(cell) for cell in code_cells(name)]
    notebook.cells = [v4.new_markdown_cell(introduction(name)), *cells]
    with tempfile.TemporaryDirectory() as folder:
        nbclient.NotebookClient(
            notebook, timeout=LIMIT_S, resources={"metadata": {"path": folder}},
            extra_arguments=["--log-level=ERROR"],
        ).execute()  # fmt: skip
    return notebook


def page(name: str, notebook: Any) -> str:
    """The executed notebook as Markdown."""
    head, *cells = notebook.cells
    parts = [head.source, f"Executed when this site was built: [{name}.ipynb]({name}.ipynb)."]
    parts.append("<style>.md-content__button { display: none }</style>")  # no page to edit
    for cell in cells:
        parts.append(f"```py\n{cell.source}\n```")
        output = "".join(one.get("text", "") for one in cell.outputs)
        if output and not cell.source.startswith("%%writefile"):
            parts.append(f"```text\n{output.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def main() -> None:
    import nbformat

    PAGES.mkdir(exist_ok=True)
    os.environ["OMP_NUM_THREADS"] = "1"  # more are slower: the networks are small
    for name in NOTEBOOKS:
        notebook = executed(name)
        nbformat.write(notebook, PAGES / f"{name}.ipynb")
        (PAGES / f"{name}.md").write_text(page(name, notebook))
        print(f"executed {name}.ipynb", flush=True)


if __name__ == "__main__":
    main()
