"""The notebooks run from the first cell to the last, and show what their text says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.graph_pictures import check_picture
from tests.support.product import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
RUN = "from nbclient.cli import main; main()"
MOST_BYTES = 12_000

pytestmark = pytest.mark.pages


def executed(name: str, directory: Path) -> dict[str, list[dict[str, Any]]]:
    """The outputs of each cell, by its id; the kernel is of a process of its own."""
    done = subprocess.run(
        [
            sys.executable, "-c", RUN, "--timeout=120", f"--output={directory / 'executed'}",
            str(ROOT / "docs" / "notebooks" / f"{name}.ipynb"),
        ],
        cwd=directory,
        env=os.environ | {"PYTHONPATH": str(ROOT), "HOME": str(directory)},
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    notebook = json.loads((directory / "executed.ipynb").read_text("utf-8"))
    outputs = {c["id"]: c["outputs"] for c in notebook["cells"] if c["cell_type"] == "code"}
    assert not [o for found in outputs.values() for o in found if o["output_type"] == "error"]
    return outputs


def shown(outputs: list[dict[str, Any]], kind: str = "text/plain") -> str:
    """The only output of a cell: its value, or the text that it prints."""
    (output,) = outputs
    return "".join(output["data"][kind] if "data" in output else output["text"]).strip()


def table(outputs: list[dict[str, Any]]) -> list[list[str]]:
    """The cells of a DataFrame, without its index."""
    return [line.split()[1:] for line in shown(outputs).splitlines()[1:]]


def test_the_first_pipeline(tmp_path: Path) -> None:
    cells = executed("first-pipeline", tmp_path)
    drawn = check_picture(shown(cells["pipeline"], "image/svg+xml"))
    assert [(a.start, a.end, a.texts) for a in drawn.arrows] == [
        ("searches_injector", "count_searches", ["searches", "by query"]),
        ("count_searches", "trends_to_trends", ["trends", "by query"]),
    ]
    assert table(cells["start"]) == [["cats", "1"], ["cats", "2"], ["cats", "3"], ["owls", "1"]]
    assert table(cells["rows"]) == [["cats", "3"], ["owls", "1"]]
    assert table(cells["states"]) == [["cats", "cats", "3"], ["owls", "owls", "1"]]
    assert "<table" in shown(cells["states"], "text/html")
    assert shown(cells["exactly-once"]) == "each effect happened once"
    assert cells["close"] == []


def test_late_data(tmp_path: Path) -> None:
    cells = executed("late-data", tmp_path)
    check_picture(shown(cells["pipeline"], "image/svg+xml"))
    assert shown(cells["watermark"]) == "2024-05-01 10:00:20+00:00"
    assert shown(cells["on-time"]) == "[]"
    first = ["2024-05-01", "10:00:00+00:00"]
    assert table(cells["closed"]) == [[*first, "390", "0", "False"]]
    assert table(cells["amended"])[1:] == [[*first, "440", "1", "True"]]
    assert table(cells["rows"]) == [["corner", *first, "440"]]
    assert table(cells["sent"]) == [["2024-05-01", "10:00:30+00:00", "corner", "75"]]
    assert shown(cells["final"]) == "940 cents in 2 minutes"


def test_each_notebook_is_run_by_a_test() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["first-pipeline", "late-data"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_kept_without_outputs(path: Path) -> None:
    """Outputs are made anew for each reader; kept ones would show an earlier version."""
    text = path.read_text("utf-8")
    assert len(text) < MOST_BYTES
    cells = json.loads(text)["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert len({cell["id"] for cell in cells}) == len(cells)
    written = [line for cell in cells for line in "".join(cell["source"]).splitlines()]
    assert [line for line in written if len(line) > 100] == []
