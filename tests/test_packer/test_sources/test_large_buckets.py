"""Buckets with many objects: listed in little memory, and without a file for each object."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.command import environment
from support.large_bucket import large_bucket

LIST = """
import json, os, sys, tempfile
from pathlib import Path
from packer.builds.planning.listing import list_items
from packer.builds.planning.plan import make_plan
from packer.recipe import Recipe
from packer.sources.base import counting
from packer.sources.opening import open_source

def files():
    return sum(1 + len(names) for _, _, names in os.walk(tempfile.gettempdir()))

def peak_bytes():
    with open("/proc/self/status") as status:
        return 1024 * next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

found = []
for source, recipe in [(source, Recipe(label_from=label)) for source, label in json.loads(sys.argv[1])]:
    most = []
    with counting(lambda count: most.append(files())):
        listing = list_items(open_source(source, Path("nowhere"), recipe), recipe)
    plan, lines = make_plan(recipe, {}, listing)
    item = listing.items[len(lines) - 1]
    found.append([len(lines), max(most), peak_bytes(), item.path, item.columns.get("label")])
    del plan, lines, listing
print(json.dumps(found))
"""
FEW, MANY = 8_000, 24_000
BYTES, FILES = 300, 20
"""Bytes of memory for each object, and files for the whole listing, at most."""


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's account of memory")
@pytest.mark.parametrize("kind", ["", "-flat"])
def test_a_large_bucket_is_listed_in_little_memory_and_few_files(tmp_path: Path, kind: str) -> None:
    sources = [(f"s3://data/{number}{kind}", "none" if kind else "folder") for number in (FEW, MANY)]
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with large_bucket() as variables:
        env = environment(**variables, TMPDIR=str(temporary))
        command = [sys.executable, "-c", LIST, json.dumps(sources)]
        done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    (few, _, less, *_), (many, files, more, path, label) = json.loads(done.stdout)
    assert (few, many) == (FEW, MANY)
    assert path == f"{sources[1][0]}/class-{'000' if kind else '099'}/{MANY - 1:08d}.jpg"
    assert label == (None if kind else 99)
    assert files < FILES
    assert (more - less) / (MANY - FEW) < BYTES
    assert not list(temporary.iterdir())
