"""Tables and images are made of the benchmarks' JSON, and those of the docs are of the results that lie beside them."""

import io
import json
import subprocess
import sys
from contextlib import redirect_stdout
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import patch
from xml.etree import ElementTree

import pytest
from support.command import REPOSITORY, environment

from benchmarks.measure import document, summarise
from benchmarks.tables import READING, TABLES, compared_table

DOCUMENTED = (*READING, "augment", "clips", "pack_faces", "pack_pictures", "pack_scale", "remote")
TOGETHER = (
    ("peers-raw-20261121", "peers-jpeg-20261121", "peers-photo500-20261121"),
    ("peers-raw-20261128", "peers-jpeg-20261128", "peers-photo-20261128"),
    ("cold-20261121", "larger-20261121"),
)
"""Results that the docs show in one table."""
LIMITS = {"gather, reused buffers": [100.0, 50.0, 80.0], "gather, fresh memory": [40.0, 20.0, 50.0]}


def row(name: str, rates: list[float], cpu_ms: float | None = 0.02, **more: Any) -> dict[str, Any]:
    kept = {
        "ours": name.startswith("Loader"),
        "is_limit": name in LIMITS,
        "rates": rates,
        "error": "",
        "cpu_ms": cpu_ms,
    }
    numbers = ("median", "low", "high", "of_limit", "memory_mb", "disk_mb", "pack_s", "order_correlation")
    return {"name": name, **kept, **dict.fromkeys(numbers), **more}


def group(name: str, *rows: dict[str, Any]) -> dict[str, Any]:
    every = [row(limit, rates, 0.01) for limit, rates in LIMITS.items()] + list(rows)
    for one in every:
        summarise(one, every[0])
    return {"name": name, "limit": every[0]["name"], "rows": every}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    failed = row("WebDataset", [], None, error="Traceback\nModuleNotFoundError: No module named 'webdataset'")
    facts = {"memory_mb": 548.4, "disk_mb": 1505.6, "pack_s": 3.25, "order_correlation": -0.004}
    found = document(
        "peers",
        {},
        [
            group("raw (1)", row("Loader, npy", [90.0, 48.0, 60.0], **facts), row("FFCV", [60.0, 24.0, 40.0], 0.04)),
            group("raw (2)", row("Loader, npy", [90.0, 48.0, 60.0]), row("LitData", [5.0, 4.0, 8.0], 0.4), failed),
        ],
    )
    path = tmp_path / "peers.json"
    path.write_text(json.dumps(found))
    return path


def run(module: str, *words: object) -> str:
    """Call the main function of a benchmark's module, and return what it printed."""
    with (
        patch.object(sys, "argv", [module, *map(str, words)]),
        redirect_stdout(io.StringIO()) as printed,
    ):
        import_module(f"benchmarks.{module}").main()
    return printed.getvalue()


def test_every_group_is_a_table(results: Path) -> None:
    lines = run("tables", results).splitlines()
    (conditions,) = (line for line in lines if f"numpy {version('numpy')}, " in line)
    assert conditions.startswith(json.loads(results.read_text())["time_utc"][:10])
    assert "**raw (1)**" in lines
    assert "| *gather, reused buffers* | 80 (50–100) | 1.00 | 0.010 | 1.00 |  |  |  |  |" in lines
    assert "| **Loader, npy** | 60 (48–90) | 0.90 | 0.020 | 0.50 | 548 | 1,506 | 3.2 | 0.00 |" in lines
    assert "| FFCV | 40 (24–60) | 0.50 | 0.040 | 0.25 |  |  |  |  |" in lines
    (failed,) = (line for line in lines if line.startswith("| WebDataset |"))
    assert failed.startswith("| WebDataset | ModuleNotFoundError: No module named 'webdataset' |")
    assert failed.count("|") == next(line for line in lines if line.startswith("| loader |")).count("|")


def test_the_image_shows_all_and_is_the_same_each_time(results: Path, tmp_path: Path, leaks_allowed: None) -> None:
    images = [tmp_path / f"{number}.svg" for number in (1, 2)]
    run("plots", results, "--to", images[0])
    command = [sys.executable, "-m", "benchmarks.plots", results, "--to", images[1]]
    subprocess.run(command, cwd=REPOSITORY, env=environment(PYTHONHASHSEED="1"), check=True)
    first, second = (picture.read_bytes() for picture in images)
    assert first == second
    assert b"dc:date" not in first
    assert b"<image" not in first
    texts = {"".join(node.itertext()).strip() for node in ElementTree.fromstring(first).iter() if "text" in node.tag}
    assert {"Raw crops of 224 × 224, samples/s", "Loader, npy", "FFCV", "LitData"} <= texts
    assert {"60", "40", "5"} <= texts
    assert "not measured: WebDataset" in texts
    assert "limit: gather, reused buffers 80" in texts
    assert first.count(b"stroke-dasharray") == 4  # two lines, and the two of their names


def test_a_file_that_is_not_a_result_is_refused(results: Path, tmp_path: Path) -> None:
    results.write_text(json.dumps(json.loads(results.read_text()) | {"benchmark": "cooking"}))
    with pytest.raises(SystemExit, match="expected the JSON of one of"):
        run("tables", results)
    with pytest.raises(SystemExit, match="expected the JSON of a benchmark"):
        run("tables", tmp_path / "none.json")


def test_runs_of_the_detector_are_compared_side_by_side(tmp_path: Path) -> None:
    paths = []
    for number, times in enumerate((3.0, 3.5)):
        numbers = dict.fromkeys(("ms", "best_ms", "iou_mean", "iou_min", "points_max"), 1.0)
        counts = ("missing", "extra", "faces", "sure_missing", "sure_faces", "sure_square_missing", "sure_square_faces")
        base = {**numbers, **dict.fromkeys(counts, 2), "ratio": times + 0.2, "cpu_ratio": times}
        rows = [{"contender": name, **base} for name in ("facenet-pytorch", "parity, openvino", "dataset, torch")]
        rates = {"1": 10.0, "2": 16.0 + number}
        found = {"benchmark": "detector", "machine": {}, "rows": rows, "process_rates": rates}
        paths.append(tmp_path / f"{number}.json")
        paths[-1].write_text(json.dumps(found))
    lines = run("tables", *paths).splitlines()
    assert "| parity, openvino | 3.0, 3.5 | 3.2, 3.7 |" in lines
    assert "| dataset, torch | 3.0, 3.5 | 3.2, 3.7 |" in lines
    assert "| two processes over one, dataset mode | | 1.60, 1.70 |" in lines
    assert "| parity, openvino | 1.0, 1.0 | 2, 2 of 2 | 2 of 2 | 2 of 2 | 1.00000, 1.000 | 1.0000 |" in lines


def test_tables_of_the_docs_are_of_the_results() -> None:
    """By the heads of tables that scripts print: every row under one in the docs is in a result."""
    known: dict[str, set[str]] = {}
    for path in (REPOSITORY / "benchmarks" / "results").glob("*.json"):
        found = json.loads(path.read_text())
        if found["benchmark"] in DOCUMENTED:
            for table in TABLES[found["benchmark"]](found):
                head, _, *rows = [line for line in table.splitlines() if line.startswith("|")]
                known.setdefault(head, set()).update(rows)
    for names in TOGETHER:
        found = [json.loads((REPOSITORY / "benchmarks" / "results" / f"{name}.json").read_text()) for name in names]
        head, _, *rows = compared_table(found).splitlines()
        known[head] = set(rows)
    shown: dict[str, list[str]] = {head: [] for head in known}
    head = ""
    pages = [REPOSITORY / "docs" / name for name in ("background/benchmarks.md", "howto/stores.md")]
    for line in "\n".join(page.read_text() for page in pages).splitlines():
        if not line.startswith("|"):
            head = ""
        elif not head:
            head = line
        elif head in shown and not line.startswith("|---"):
            shown[head].append(line)
    assert [head for head, rows in shown.items() if len(rows) < 2] == []
    assert [line for head, rows in shown.items() for line in rows if line not in known[head]] == []
