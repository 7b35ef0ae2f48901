"""The directions of imports: between the packages, inside them, and what an import loads."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import NamedTuple

import pytest
from support.command import environment

from packer.cli.line import OWN_MODULES
from packer.steps.chain import STEPS
from shardspec.formats import FORMATS

REPOSITORY = Path(__file__).parents[1]
PACKAGES = ("packer", "readers", "shardspec")

MAY_IMPORT: Mapping[str, tuple[str, ...]] = {
    "shardspec": ("shardspec",),
    "readers": ("shardspec", "readers"),
    "packer": (
        "shardspec",
        "packer",
        "readers.conditions",
        "readers.drawing",
        "readers.formats",
        "readers.seeding",
        "readers.staging",
        "readers.transforms",
    ),
}

FLOORS: Mapping[str, tuple[str | tuple[str, ...], ...]] = {
    "packer": (
        ("recipe", "workspace", "vision"),
        "assembly",
        "sources",
        "steps",
        "jobs",
        "builds",
        "packed",
        ("analysis", "known"),
        "environment",
        "page",
        "cli",
    ),
    "readers": (
        ("arguments", "conditions", "formats"),
        ("drawing", "seeding", "staging", "transforms"),
        "order",
        "decode",
        "dataset",
        ("augment", "loader"),
        "lightning",
    ),
}
"""The stages of a package from the ground up. Each imports only what stands below it; neighbours do not know each other."""

_CODEC_FILES = tuple(f"shardspec.codecs.{name}" for name in ("base", "image", "raw", "text"))

MUST_NOT_IMPORT: Mapping[str, tuple[str, ...]] = {
    # what steps are made of could stand alone
    "packer.vision.decode": ("packer.vision.detect", "packer.vision.geometry", "packer.vision.landmarks"),
    "packer.vision.detect": ("packer.vision.decode",),
    "packer.vision.geometry": ("packer.vision.decode", "packer.vision.detect"),
    "packer.vision.landmarks": ("packer.vision.decode",),
    # the contract is data: only the codecs know libraries, and nothing but the layout knows folders
    "shardspec.schema": ("shardspec.manifest", "shardspec.layout", *_CODEC_FILES),
    "shardspec.manifest": ("shardspec.layout", *_CODEC_FILES),
}
"""Allowed imports that the order of packages does not show."""

CATALOGUES = {"packer.cli.commands", "packer.known"}
"""Packages of one file for each entry of a list that people read: the commands, and the public datasets."""

MOST_ENTRIES = 15
"""Modules and folders side by side in a package, its `__init__` aside."""

HEAVY = (
    "PIL",
    "albumentations",
    "av",
    "cv2",
    "deflate",
    "dlib",
    "h5py",
    "jpeglib",
    "kornia",
    "lightning",
    "lmdb",
    "openvino",
    "pyarrow",
    "scipy",
    "simplejpeg",
    "torch",
    "torchvision",
)

_DISTRIBUTIONS = {
    "cv2": "opencv-python-headless",
    "dlib": "dlib-bin",
    "google_crc32c": "google-crc32c",
    "PIL": "pillow",
}
"""Where a library comes from that is not installed here and is not called as it is imported."""


_OPTIONAL = {("readers.formats.pool", "cv2")}
"""Imports that may fail."""

_BROUGHT = {"albumentations": ("opencv-python-headless",), "torchvision": ("torch",)}
"""Libraries that a library of ours brings, and that we import."""


class Import(NamedTuple):
    """One import: of what, by which module, in which line, inside a function or not, for type checkers alone or not."""

    target: str
    by: str
    line: int
    inside: bool
    types_only: bool

    def __str__(self) -> str:
        return f"{self.by}:{self.line} imports {self.target}"


@cache
def modules() -> Mapping[str, Path]:
    """Every module of ours by its name."""
    found = {}
    for package in PACKAGES:
        for path in sorted((REPOSITORY / package).rglob("*.py")):
            parts = path.relative_to(REPOSITORY).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports() -> tuple[Import, ...]:
    """Every import of every module of ours, wherever it stands."""
    return tuple(found for name, path in modules().items() for found in _imports_of(name, path))


def _imports_of(name: str, path: Path) -> Iterator[Import]:
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]

    def visit(node: ast.AST, inside: bool, types_only: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            typed = types_only or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test))
            deeper = inside or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(alias.name, name, child.lineno, inside, types_only)
            elif isinstance(child, ast.ImportFrom):
                base = child.module or ""
                if child.level:
                    base = ".".join(
                        [
                            *package.split(".")[: len(package.split(".")) - child.level + 1],
                            *filter(None, [base]),
                        ]
                    )
                for alias in child.names:
                    whole = f"{base}.{alias.name}"
                    yield Import(
                        whole if whole in modules() else base,
                        name,
                        child.lineno,
                        inside,
                        types_only,
                    )
            else:
                yield from visit(child, deeper, typed)

    yield from visit(ast.parse(path.read_text(encoding="utf-8")), inside=False, types_only=False)


def is_below(name: str, package: str) -> bool:
    """Return whether a module is the package itself or in it."""
    return name == package or name.startswith(package + ".")


def is_ours(name: str) -> bool:
    """Return whether a module is one of this project."""
    return any(is_below(name, package) for package in PACKAGES)


BUDGET = {"packer": 55_970, "readers": 18_670, "shardspec": 7_855, "benchmarks": 7_000, "tests": 60_865}


@pytest.mark.parametrize("room", sorted(BUDGET))
def test_no_room_grows_beyond_its_budget(room: str) -> None:
    lines = sum(len(path.read_text().splitlines()) for path in (Path(__file__).parents[1] / room).rglob("*.py"))
    assert lines <= BUDGET[room]


def test_the_scan_sees_what_it_should() -> None:
    assert {"packer.builds.job", "readers.order.order", "shardspec.schema", "shardspec"} <= set(modules())
    assert any(i.by == "packer.builds.build" and i.target == "packer.builds.job" for i in imports())
    assert any(i.by == "packer" and i.types_only for i in imports())


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_in_one_direction(package: str) -> None:
    wrong = [
        str(i)
        for i in imports()
        if is_below(i.by, package)
        and is_ours(i.target)
        and not any(is_below(i.target, allowed) for allowed in MAY_IMPORT[package])
    ]
    assert not wrong


@pytest.mark.parametrize("package", sorted(FLOORS))
def test_a_stage_imports_only_what_stands_below_it(package: str) -> None:
    height = {
        f"{package}.{stage}": number
        for number, floor in enumerate(FLOORS[package])
        for stage in ([floor] if isinstance(floor, str) else floor)
    }

    def stage_of(module: str) -> str | None:
        return next((stage for stage in height if is_below(module, stage)), None)

    no_floor = {name for name in modules() if is_below(name, package) and stage_of(name) is None}
    assert no_floor <= {package, f"{package}.__main__"}
    assert {stage_of(name) for name in modules()} >= set(height), "a floor names a stage that is gone"
    wrong = []
    for i in imports():
        by, target = stage_of(i.by), stage_of(i.target)
        if by is not None and target is not None and by != target and height[target] >= height[by]:
            wrong.append(str(i))
    assert not wrong


@pytest.mark.parametrize("name", sorted(MUST_NOT_IMPORT))
def test_layers_inside_a_stage(name: str) -> None:
    assert any(is_below(module, name) for module in modules()), f"the table of layers names {name}, which is gone"
    wrong = [
        str(i)
        for i in imports()
        if is_below(i.by, name) and any(is_below(i.target, forbidden) for forbidden in MUST_NOT_IMPORT[name])
    ]
    assert not wrong


def test_no_package_shows_more_than_fits_one_look() -> None:
    shown = {
        package: {name for name in modules() if name.rpartition(".")[0] == package} - {f"{package}.__main__"}
        for package in {name.rpartition(".")[0] for name in modules()} - {"", *CATALOGUES}
    }
    assert {package: len(names) for package, names in shown.items() if len(names) > MOST_ENTRIES} == {}


def test_sources_steps_writers_and_engines_do_not_know_their_neighbours() -> None:
    named = {entry.target.split(":")[0] for entry in STEPS.values()}
    named |= {format.writer.target.split(":")[0] for format in FORMATS.values()}
    named |= {"packer.jobs.engines.inline", "packer.jobs.engines.processes"}
    opened = {i.target for i in imports() if i.by == "packer.sources.opening" and i.target in modules()}
    sources = {
        name for name in opened if re.search(r"^class \w+Source\b", modules()[name].read_text("utf-8"), re.MULTILINE)
    }
    assert len(sources) >= 4
    named |= sources
    wrong = {(i.by, i.target) for i in imports() if i.target in named and i.by in named and i.by != i.target}
    # A table is a list of rows that lies in a file, and a folder is one if its paths or sidecars make columns.
    assert wrong <= {(f"packer.sources.{name}", "packer.sources.rows") for name in ("table", "folder")}


def test_no_import_of_ours_inside_a_function() -> None:
    assert not [str(i) for i in imports() if i.inside and is_ours(i.target)]


def test_no_cycles() -> None:
    graph: dict[str, set[str]] = {name: set() for name in modules()}
    for i in imports():
        if is_ours(i.target) and not i.types_only:
            assert i.target in graph, f"{i}, which is not there"
            graph[i.by].add(i.target)
    done: set[str] = set()

    def walk(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, "a cycle: " + " -> ".join([*path[path.index(name) :], name])
        if name not in done:
            for target in sorted(graph[name]):
                walk(target, (*path, name))
            done.add(name)

    for name in graph:
        walk(name, ())


def test_every_library_that_is_imported_is_declared() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [
        *project["dependencies"],
        *(line for extra in project["optional-dependencies"].values() for line in extra),
    ]
    declared = {re.split(r"[^A-Za-z0-9_.-]", line)[0].lower().replace("_", "-") for line in lines}
    by_import = packages_distributions()
    wrong = set()
    for i in imports():
        name = i.target.split(".")[0]
        if is_ours(name) or name in sys.stdlib_module_names or i.types_only:
            continue
        distributions = {
            d.lower().replace("_", "-") for d in [*by_import.get(name, []), _DISTRIBUTIONS.get(name, name)]
        }
        if not distributions & declared:
            wrong.add(f"{i} ({', '.join(sorted(distributions))})")
    assert not wrong


def test_every_extra_that_a_message_names_is_declared() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = {
        (extra, name)
        for name, path in modules().items()
        for extra in re.findall(
            r'facepack\[([\w-]+)\]|ImportTarget\("[\w.:]+", "([\w-]+)"\)',
            path.read_text(encoding="utf-8"),
        )
        for extra in extra
        if extra
    }
    assert {extra for extra, _ in named} >= {"pack", "faces-light", "parquet"}
    assert {(extra, name) for extra, name in named if extra not in project["optional-dependencies"]} == set()


def entries() -> dict[tuple[str, str | None], str]:
    """By the module of each table entry and its extra, the module whose table it is in; the commands among them."""
    found: dict[tuple[str, str | None], str] = {}
    for name, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "ImportTarget":
                if not all(isinstance(argument, ast.Constant) for argument in node.args):
                    continue
                target, *more = (ast.literal_eval(argument) for argument in node.args)
                found[target.partition(":")[0], *more or (None,)] = name
    for name in OWN_MODULES:
        found[f"packer.cli.commands.{name}", None] = "packer.cli.line"
    return found


def test_an_extra_installs_what_its_names_import() -> None:
    """Or the name, and all that needs it, fails where only that extra is installed."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]

    def distributions(lines: list[str]) -> Iterator[str]:
        for line in lines:
            inside = re.match(r"facepack\[([\w,-]+)\]", line)
            for extra in inside[1].split(",") if inside else ():
                yield from distributions(extras[extra])
            yield re.split(r"[^A-Za-z0-9_.-]", line)[0].lower()

    needs: dict[str, set[str]] = {}
    for i in imports():
        if not i.inside and not i.types_only and (i.by, i.target) not in _OPTIONAL:
            needs.setdefault(i.by, set()).add(i.target)

    def closure(name: str, seen: set[str]) -> set[str]:
        parts = name.split(".")
        for module in (".".join(parts[:end]) for end in range(1, len(parts) + 1)):
            if module not in seen:
                seen.add(module)
                for target in needs.get(module, ()):
                    closure(target, seen) if is_ours(target) else seen.add(target)
        return seen

    wrong = []
    for (module, extra), by in entries().items():
        there = set(distributions([*project["dependencies"], *extras.get(extra or "", ())]))
        there |= {brought for name, several in _BROUGHT.items() if name in there for brought in several}
        libraries = {name.split(".")[0] for name in closure(module, set()) if not is_ours(name)}
        for library in sorted(libraries - sys.stdlib_module_names):
            if _DISTRIBUTIONS.get(library, library) not in there:
                wrong.append(f"{module}, which {by} names with the extra {extra}, needs {library}")
    assert not wrong


def targets() -> dict[str, str]:
    """Every text that names something of ours as ``"module:name"``, with a module that has it."""
    return {
        node.value: name
        for name, path in modules().items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if re.fullmatch(rf"({'|'.join(PACKAGES)})[\w.]*:\w+", node.value)
    }


@cache
def names_of(module: str) -> set[str]:
    """The names that a module binds at its top, or loads at first use by a table in it."""
    found = set()
    body = ast.parse(modules()[module].read_text(encoding="utf-8")).body
    for node in [*body, *(one for choice in body if isinstance(choice, ast.If) for one in choice.orelse)]:
        match node:
            case ast.FunctionDef(name) | ast.ClassDef(name):
                found.add(name)
            case ast.Import() | ast.ImportFrom():
                found |= {alias.asname or alias.name for alias in node.names}
            case ast.Assign() | ast.AnnAssign():
                found |= {
                    one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
                }
                tables = [one for one in ast.walk(node) if isinstance(one, ast.Dict)]
                found |= {key.value for one in tables for key in one.keys if isinstance(key, ast.Constant)}
    return found


def test_every_target_that_is_named_by_text_exists() -> None:
    assert {"packer.packed.convert.regroup:regroup", "readers:Loader"} <= targets().keys()
    wrong = []
    for target, by in targets().items():
        module, _, name = target.partition(":")
        if module not in modules() or name not in names_of(module):
            wrong.append(f"{by} names {target}")
    assert not wrong


def loaded_by(code: str) -> set[str]:
    """Top-level modules outside the standard library that a fresh interpreter has loaded after some code."""
    script = f"{code}\nimport sys, json\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    names = {name.split(".")[0] for name in json.loads(done.stdout.splitlines()[-1])}
    # What the interpreter's own start loads (editable installs, coverage) is not the code's doing.
    return {n for n in names - sys.stdlib_module_names - _at_start() if n not in PACKAGES}


@cache
def _at_start() -> set[str]:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, json; print(json.dumps(sorted(sys.modules)))",
        ],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return {name.split(".")[0] for name in json.loads(done.stdout)}


def test_importing_the_contract_loads_numpy_alone() -> None:
    apart = ("shardspec.codecs.", "shardspec.stores.aws")  # loaded by name at first use
    names = ", ".join(name for name in modules() if is_below(name, "shardspec") and not name.startswith(apart))
    assert loaded_by(f"import {names}") <= {"numpy"}


def test_importing_the_packer_loads_no_heavy_library() -> None:
    assert not loaded_by("import packer")


def test_planning_a_build_loads_no_heavy_library() -> None:
    assert not loaded_by("from packer import build, Recipe, BuildOptions") & set(HEAVY)


def test_a_worker_that_keeps_images_loads_no_library_of_pixels() -> None:
    code = (
        "import packer.jobs.worker, packer.builds.work\n"
        "from packer.recipe import Recipe\n"
        "from packer.steps.chain import StepResources, Pipeline\n"
        "from packer.steps.encode import Encoder\n"
        "recipe = Recipe()\n"
        "Encoder(recipe)\n"
        "Pipeline(recipe, {}, StepResources())"
    )
    assert not loaded_by(code) & {*HEAVY, "filelock", "tqdm"} - {"simplejpeg"}


def test_the_command_answers_help_without_heavy_libraries() -> None:
    for arguments in (
        ["--help"],
        ["--version"],
        ["build", "--help"],
        ["inspect", "--help"],
    ):
        code = f"import packer.cli\ntry:\n    packer.cli.main({arguments!r})\nexcept SystemExit as e:\n    assert not e.code"
        assert not loaded_by(code) & set(HEAVY)


@pytest.mark.parametrize(
    "name", ["readers", "readers.formats", "readers.order.order", "readers.formats.npy", "readers.staging.server"]
)
def test_reading_parts_that_need_no_torch_load_none(name: str) -> None:
    assert not loaded_by(f"import {name}") & {
        "torch",
        "torchvision",
        "lightning",
        "cv2",
        "av",
        "pyarrow",
        "h5py",
    }


@pytest.mark.parametrize("name", sorted(n for n in modules() if is_below(n, "readers.formats")))
def test_no_format_needs_torch(name: str) -> None:
    assert "torch" not in {i.target.split(".")[0] for i in imports() if i.by == name}


@pytest.mark.parametrize("name", sorted(n for n in modules() if is_below(n, "readers")))
def test_no_reader_gives_a_shard_to_a_library_that_trusts_it(name: str) -> None:
    """These end the process over crafted files."""
    assert not {i.target.split(".")[0] for i in imports() if i.by == name} & {"h5py", "lmdb", "pyarrow"}
