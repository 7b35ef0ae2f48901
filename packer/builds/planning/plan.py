"""Make the plan of a build, which consists of tasks and a fingerprint, from a recipe and its items."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any, ClassVar

from packer.jobs.plan import Task, Tasks
from packer.recipe import Recipe
from packer.sources.archives.member import Member
from packer.sources.base import Listing, count_listed
from packer.sources.folders.frames import Frames
from packer.sources.item import PACKED_ROW, QUOTE, Item, read_items, sum_lines
from packer.sources.rows import digest_value
from packer.steps.encode import keeps_images
from packer.workspace import Workspace
from packer.workspace.disk_list import DiskList, Reiterable
from packer.workspace.durable import line_encoder
from packer.workspace.machines import library_version
from shardspec.manifest import Manifest, sha256_json
from shardspec.registry import check_installed
from shardspec.wording import LONG, shorten

TASK_ITEMS = 32
"""Most images in a task of a small build. A video, or a folder of frames, counts as this many images: even a short
video is far more work than an image, and a killed build loses its unfinished tasks."""

_MOST_TASK_ITEMS = 512
_TASKS, _TASKS_OF_KEPT = 256, 64
"""A large build is cut into about this number of tasks, since each task costs a file and two messages. If the bytes of
images are kept unchanged, items take so little time that fewer tasks are better."""

TASK_BYTES = 16 * 10**6
"""Most bytes in a task. A single item, or items that are read in one pass over an archive, may exceed this."""

HEIF_LIBRARY = "pillow-heif"
"""Listed among the libraries of a plan only if its items include HEIC images."""

DIGEST_BYTES = 8
"""Number of bytes of an item's digest that a dataset records."""

_PLAIN = frozenset((str, int, float, bool, type(None)))
_SORTED = line_encoder(sort_keys=True)

_HEIC = tuple(suffix for name in (".heic", ".heif") for suffix in (name, name.upper()))
_COUNTED = 500


@dataclass(frozen=True)
class BuildPlan:
    """Plan of a build.

    Attributes
    ----------
    recipe : dict
        The resolved recipe, as JSON.
    runtime : dict
        Versions of the libraries, and the detector's runtime.
    items_digest : str
        SHA-256 over the items: names, sizes, modification times, columns.
    arrays : dict of str to list
        For columns whose lists of numbers become arrays: the dtype, and the sizes after the first axis.
    declared : dict
        Declaration of the samples that a function returns (`packer.recipe.fields.Declaration`); empty if the recipe has
        steps.
    base : str
        Digest of the dataset that is updated; empty for a new dataset.
    gone : str
        Digest of the numbers of the dataset's items to drop; empty if none are dropped.
    fields : dict of str to str
        The field that each column of the source becomes, by column (`packer.sources.base.Listing`).
    inputs : list of dict
        Provenance of the packed datasets whose samples are joined or divided; empty if there are none.
    """

    recipe: Mapping[str, Any]
    runtime: Mapping[str, Any]
    items: int
    items_digest: str
    ignored: int
    classes: Mapping[str, list[str]]
    tasks: Sequence[Task]
    arrays: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    declared: Mapping[str, Any] = field(default_factory=dict)
    base: str = ""
    gone: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)
    inputs: Sequence[Mapping[str, Any]] = ()

    kind: ClassVar[str] = "build"

    @cached_property
    def options(self) -> Recipe:
        """The recipe as an object. Only a plan that was read from a file parses it."""
        return Recipe.from_options(self.recipe)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of everything that affects the bytes of the dataset."""
        names = ("runtime", "items_digest", "classes", "arrays", "declared", "base", "gone")
        return sha256_json([self.manifest_recipe, *(getattr(self, name) for name in names)])

    @property
    def terms(self) -> str:
        """SHA-256 of everything except the item itself that affects its output."""
        return sha256_json([self.manifest_recipe, self.runtime, self.arrays, self.declared])

    @cached_property
    def manifest_recipe(self) -> dict[str, Any]:
        """The recipe for the manifest, with names in place of paths, since `runtime` has the digests of the files."""
        paths = [spec.name for spec in fields(Recipe) if spec.metadata.get("path") and self.recipe.get(spec.name)]
        inputs = {"inputs": list(self.inputs)} if self.inputs else {}
        return {**self.recipe, **{name: _names_alone(self.recipe[name]) for name in paths}, **inputs}

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON."""
        values = {spec.name: getattr(self, spec.name) for spec in fields(self)}
        return {"kind": self.kind, **values, "tasks": Tasks(self.tasks).to_json(), "fingerprint": self.fingerprint}

    def made(self, manifest: Manifest) -> bool:
        """Return whether this plan made the dataset.

        The recipe is compared too, because a converted dataset keeps the fingerprint but has another recipe.
        """
        last = manifest.newest
        return last.fingerprint == self.fingerprint and sha256_json(last.recipe) == sha256_json(self.manifest_recipe)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "BuildPlan":
        """Read the result of `to_json`."""
        values = {spec.name: document[spec.name] for spec in fields(cls)}
        return cls(**{**values, "tasks": Tasks.from_json(document["tasks"])})


def _names_alone(paths: Any) -> Any:
    return PurePath(paths).name if isinstance(paths, str) else [PurePath(path).name for path in paths]


class ItemLines(DiskList[str]):
    """Lines of the plan's items file.

    Attributes
    ----------
    digests : bytearray
        The first `DIGEST_BYTES` bytes of each item's digest, concatenated.
    live : dict of int to Item
        Items with arrays or bytes, by index. Their lines hold only digests of these values, so only this process can
        pack such items.
    """

    def __init__(self) -> None:
        super().__init__(str, str)
        self.digests = bytearray()
        self.live: dict[int, Item] = {}

    @classmethod
    def load(cls, path: Path, tasks: Iterable[Task]) -> "ItemLines":
        """Read the items file of a plan.

        Raises
        ------
        BuildError
            If the file is damaged.
        """
        lines = cls()
        for task in tasks:
            for item in read_items(path, *task):
                lines.digests += digest_item(item, item.columns)[:DIGEST_BYTES]
                lines.append(item.to_line())
        return lines


def make_plan(
    recipe: Recipe,
    runtime: Mapping[str, Any],
    listing: Listing,
    declared: Mapping[str, Any] | None = None,
    base: str = "",
    gone: str = "",
    observe: Callable[[Item], None] | None = None,
) -> tuple[BuildPlan, ItemLines]:
    """Cut the items into tasks and compute the fingerprint, in one pass over the items.

    Parameters
    ----------
    base, gone : str
        See `BuildPlan`.
    observe : callable, optional
        Called with every item.

    Raises
    ------
    MissingDependencyError
        If there are HEIC images to decode, and the library for them is not installed.
    """
    items: Sequence[Item] = listing.items[: recipe.limit]
    lines, digest = ItemLines(), hashlib.sha256()
    cut = _Cut(len(items), _TASKS_OF_KEPT if keeps_images(recipe) else _TASKS)
    heic = ""
    for made, item in enumerate(items, 1):
        if item.name.endswith(_HEIC) and item.reject is None:
            heic = heic or item.name
        columns = digest_columns(item)
        known = digest_item(item, columns)
        digest.update(known)
        if item.number is not None:
            digest.update(item.number.to_bytes(8, "little"))
        lines.digests += known[:DIGEST_BYTES]
        if columns is item.columns:
            line = item.to_line()
        else:
            line, lines.live[item.index] = item._replace(columns=columns).to_line(), item
        lines.append(line)
        cut.add(item, line)
        if observe is not None:
            observe(item)
        if not made % _COUNTED:
            count_listed(_COUNTED)
    count_listed(len(lines) % _COUNTED)
    if heic and any(step.use == "decode" for step in recipe.chain):
        check_installed(("pillow_heif",), what=f"image {shorten(heic, LONG)}", extra="heif")
        runtime = dict(sorted({**runtime, HEIF_LIBRARY: library_version(HEIF_LIBRARY)}.items()))
    plan = BuildPlan(
        recipe=recipe.to_json(),
        runtime=dict(runtime),
        items=len(items),
        items_digest=digest.hexdigest(),
        ignored=listing.ignored,
        classes=dict(listing.classes),
        tasks=cut.end(),
        arrays={name: list(kind) for name, kind in listing.arrays.items()},
        declared=declared or {},
        base=base,
        gone=gone,
        fields=dict(listing.fields),
    )
    vars(plan)["options"] = recipe
    return plan, lines


def source_row(item: Item, plan: BuildPlan) -> dict[str, Any]:
    """Return the row of an item in its source, with the original column names, class names, and None for missing values.

    For items of archives and packed datasets, the result is empty, since their columns can be read again. Arrays and
    bytes of Python rows are left out.
    """
    if isinstance(item.member, Member) or PACKED_ROW in item.columns:
        return {}
    columns, names = item.columns, {name: column for column, name in plan.fields.items()}
    chosen = str(plan.recipe.get("label_from"))
    if chosen in plan.fields:
        names["label"] = chosen
    row: dict[str, Any] = {}
    for name, value in columns.items():
        if name not in names and name.endswith("_valid") and name.removesuffix("_valid") in columns:
            continue
        if isinstance(value, Mapping) and "sha256" in value:
            continue
        if f"{name}_valid" not in names and not columns.get(f"{name}_valid", True):
            value = None
        classes = plan.classes.get(name)
        if classes is not None and value is not None:
            value = classes[value] if 0 <= value < len(classes) else None
        row[names.get(name, name)] = value
    return {name: row[name] for name in (*plan.fields, *row) if name in row}


class _Cut:
    """Cuts a known number of items into tasks, one item after another. Many items are cut into about `tasks` tasks."""

    def __init__(self, items: int, tasks: int) -> None:
        self._most = min(_MOST_TASK_ITEMS, max(TASK_ITEMS, items // tasks))
        self._tasks = Tasks()
        self._start = self._start_offset = self._offset = self._size = self._items = self._room = self._sum = 0
        self._last: Item | None = None

    def add(self, item: Item, line: str) -> None:
        """Add an item, given its line in the items file."""
        read = item.bytes
        if item.files:
            read += sum(file.bytes for file in item.files.values())
        medium = item.medium
        weight = read if isinstance(item.member, Frames) else medium.weight * read
        room = TASK_ITEMS if medium.is_sequence else 1
        full = self._room + room > self._most or self._size + weight > TASK_BYTES
        if full and self._last is not None and self._items > self._start and not _in_one_pass(self._last, item):
            self._tasks.append((self._start, self._items, self._start_offset, self._sum))
            self._start, self._start_offset, self._size, self._room = self._items, self._offset, 0, 0
            self._sum = 0
        self._size += weight
        self._room += room
        self._offset += len(line)
        self._sum = sum_lines([line], self._sum)
        self._items += 1
        self._last = item

    def end(self) -> Tasks:
        """Return the tasks. Call this after the last item."""
        if self._items:
            self._tasks.append((self._start, self._items, self._start_offset, self._sum))
        return self._tasks


def _in_one_pass(one: Item, other: Item) -> bool:
    """Return whether two items are read in the same pass over an archive, and so belong into the same task."""
    if one.member is None or other.member is None or other.member.run is None:
        return False
    return (one.path, one.member.run) == (other.path, other.member.run)


def read_item_lines(space: Workspace) -> Iterable[str]:
    """Return the lines of the items file in a workspace. They can be iterated over several times."""

    def read() -> Iterator[str]:
        with space.items.open(encoding="ascii") as lines:
            yield from lines

    return Reiterable(read)


def item_digest(item: Item) -> str:
    """Return the SHA-256 of all data that the source has about an item, in hexadecimal digits."""
    return digest_item(item, digest_columns(item)).hex()


def digest_item(item: Item, columns: Mapping[str, Any]) -> bytes:
    """Return the SHA-256 of an item, given its columns from `digest_columns`."""
    # The digest of a JSON list. Encoding it piece by piece takes less than half the time. ASCII, since a name may be
    # invalid UTF-8.
    given = _SORTED(columns) if columns else "{}"
    reject = "null" if item.reject is None else QUOTE(item.reject)
    files = _SORTED(_describe_files(item)) if item.files else "[]"
    member = "" if item.member is None else f", {_SORTED(item.member)}, {_SORTED(dict(item.arrays))}"
    text = f"[{QUOTE(item.name)}, {item.bytes}, {item.mtime_ns}, {given}, {reject}, {files}{member}]"
    return hashlib.sha256(text.encode("ascii")).digest()


def digest_columns(item: Item) -> Mapping[str, Any]:
    """Return the columns of an item, with arrays and bytes replaced by their digests."""
    columns = item.columns
    if not columns or all(type(value) in _PLAIN for value in columns.values()):
        return columns
    digested = {name: digest_value(value) for name, value in columns.items()}
    return columns if all(digested[name] is value for name, value in columns.items()) else digested


def _describe_files(item: Item) -> list[Any]:
    return sorted(
        [option, file.name, file.bytes, file.mtime_ns, *([] if file.member is None else [file.member])]
        for option, file in item.files.items()
    )


def is_storable(item: Item) -> bool:
    """Return whether all of an item's columns are JSON values, so that a worker process can read them from the plan."""
    return digest_columns(item) is item.columns


def live_columns(item: Item) -> list[str]:
    """Return the columns of an item that a plan cannot store, that is, arrays and bytes."""
    return [name for name, value in item.columns.items() if digest_value(value) is not value]
