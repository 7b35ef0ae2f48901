"""``packer copy`` to and from S3 servers that are as sloppy as those of a NAS."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.builds import write_images
from support.command import run_packer
from support.packed_files import files_below, write_faces
from support.sloppy import BUCKET, SERVERS, cutting, find_server, sloppy_server

pytestmark = [pytest.mark.stores, pytest.mark.usefixtures("leaks_allowed")]

_SIDE = 500
"""Of images, so that a shard takes megabytes."""


@pytest.fixture(params=SERVERS)
def env(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, str]]:
    if find_server(request.param) is None:
        pytest.skip(f"{request.param} is not installed, and `make test-stores` could not install it")
    with sloppy_server(request.param, tmp_path / "server") as found:
        yield found


def test_a_dataset_is_copied_both_ways_despite_a_cut_download(env: dict[str, str], tmp_path: Path) -> None:
    write_faces(tmp_path / "faces", 12, size=_SIDE)
    write_faces(tmp_path / "small", 3)
    url = f"s3://{BUCKET}/sets/faces 1+2%"
    run_packer("copy", tmp_path / "faces", url, env=env)
    with cutting(env, 2_000_000) as (relay, cut):
        run_packer("copy", url, tmp_path / "back", env=relay)
        assert cut
    assert files_below(tmp_path / "back") == files_below(tmp_path / "faces")
    run_packer("copy", url, f"{url}-copy", env=env)
    again = json.loads(run_packer("copy", tmp_path / "faces", f"{url}-copy", "--json", env=env).stdout)
    assert again["files_copied"] == 0
    assert "another dataset" in run_packer("copy", tmp_path / "small", url, env=env, expect=2).stderr
    run_packer("copy", tmp_path / "small", url, "--overwrite", env=env)
    run_packer("copy", url, tmp_path / "replaced", env=env)
    assert files_below(tmp_path / "replaced") == files_below(tmp_path / "small")
    run_packer("copy", f"{url}-copy", tmp_path / "part", "--where", "frame < 30", env=env)
    run_packer("verify", tmp_path / "part", "--deep")


def test_a_build_is_uploaded_and_replaced(env: dict[str, str], tmp_path: Path) -> None:
    write_images(tmp_path / "in", [f"{number}.png" for number in range(9)])
    url = f"s3://{BUCKET}/built"
    for size in (100, 120):
        options = ("--size", size, "--encode", "png", "--shard-size", "64KiB", "--overwrite", "--workers", 1)
        run_packer("build", tmp_path / "in", url, *options, env=env, cwd=tmp_path)
    run_packer("copy", url, tmp_path / "back", env=env)
    run_packer("verify", tmp_path / "back", "--deep")


def test_missing_and_forbidden_repositories_are_named(env: dict[str, str], tmp_path: Path) -> None:
    assert "found none" in run_packer("copy", f"s3://{BUCKET}/none", tmp_path / "out", env=env, expect=2).stderr
    wrong = {**env, "AWS_SECRET_ACCESS_KEY": "another"}
    failed = run_packer("copy", f"s3://{BUCKET}/none", tmp_path / "out", env=wrong, expect=None)
    assert failed.returncode in (1, 2)
    assert "another" not in failed.stderr
