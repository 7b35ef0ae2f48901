"""What the Ray engine decides without a cluster; on a real Ray, see test_cluster."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.builds import write_images
from support.errors import raises

import packer
from packer.recipe.engines import ClusterSettings
from shardspec.errors import BuildError, MissingDependencyError, UsageError
from shardspec.layout import BUILD_FOLDER


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_images(tmp_path / "source", ["a.png"])
    monkeypatch.setattr("packer.recipe.engines.find_spec", lambda _: None)
    with pytest.raises(MissingDependencyError, match=r'pip install "facepack\[ray\]"'):
        packer.build(source, tmp_path / "out", engine="ray", progress=False)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("engine", ["processes", "ray"])
def test_functions_of_the_calling_script_are_refused_before_any_work(
    tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers could not import them. No cluster is asked."""
    monkeypatch.setattr("packer.recipe.engines.find_spec", lambda _: object())
    source = write_images(tmp_path / "source", ["a.png"])

    def flip(samples: Iterator[Any]) -> Iterator[Any]:
        yield from samples

    how: dict[str, Any] = {"size": 16, "engine": engine, "progress": False}
    for step in (flip, "__main__:flip"):
        with pytest.raises(UsageError, match="module:function"):
            packer.build(source, tmp_path / "out", steps=["decode", "resize", step], **how)
    assert list(tmp_path.iterdir()) == [source]


def test_no_cluster_at_the_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the address, from the option or the environment. A source is not listed before."""
    monkeypatch.setattr("packer.recipe.engines.find_spec", lambda _: object())
    source = write_images(tmp_path / "source", ["a.png"])
    packer.build(source, tmp_path / "made", size=16, engine="inline", progress=False)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    how: dict[str, Any] = {"engine": "ray", "progress": False}
    with raises(BuildError, expected="a Ray cluster at '127.0.0.1:2'"):
        packer.build(tmp_path / "source", tmp_path / "out", size=16, ray_address="127.0.0.1:2", **how)
    for address in ("127.0.0.1", "ray://127.0.0.1:10001"):
        with raises(UsageError, option="ray_address"):
            packer.build(tmp_path / "source", tmp_path / "out", size=16, ray_address=address, **how)
    with raises(BuildError, expected="a Ray cluster at '127.0.0.1:1'"):
        packer.compute(tmp_path / "made", "digest", **how)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made", "source"]
    assert not (tmp_path / "made" / BUILD_FOLDER).exists()


def test_the_gpus_of_a_node_share_its_workers() -> None:
    pytest.importorskip("ray")
    from packer.jobs.engines.ray import Share, share_node

    def share(per_node: int | None, share_of_gpu: float, cores: int, gpus: float, one: bool = False) -> list[Share]:
        return share_node(ClusterSettings(None, per_node, None, 10**9, share_of_gpu, one), cores, 10**10, gpus)

    assert share(None, 1, 8, 3) == [Share(2, 2), Share(3, 2), Share(3, 2)]
    assert share(7, 1, 8, 3) == [Share(2, 2), Share(2, 2), Share(3, 2)]
    assert share(2, 1, 8, 3) == [Share(1, 1), Share(1, 1)]
    assert share(None, 0.5, 8, 1) == [Share(4, 4), Share(4, 4)]
    assert share(None, 1, 8, 0) == []
    assert share(None, 1, 8, 2, one=True) == [Share(1, 1), Share(1, 1)]
    assert share(4, 1, 8, 2, one=True) == [Share(2, 2), Share(2, 2)]
    assert share(None, 0, 8, 0) == [Share(8, 8)]
    assert share(None, 0, 64, 0) == [Share(10, 10)], "as its memory allows"
    assert share(None, 0, 0, 0) == [], "the head of a cluster often has no cores"


def test_workers_are_spread_over_the_nodes() -> None:
    pytest.importorskip("ray")
    from packer.jobs.engines.ray import Place, Share, limit_shares

    nodes = {Place(name, 0): Share(count, count) for name, count in (("a", 2), ("b", 8), ("c", 8))}
    for left, expected in ((None, [2, 8, 8]), (7, [2, 3, 2]), (2, [1, 1]), (0, [])):
        assert [share.workers for share in limit_shares(nodes, left).values()] == expected
