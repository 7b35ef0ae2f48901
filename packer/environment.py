"""``packer doctor``: the facts of this installation and machine that a bug report needs, and known bad combinations."""

import operator
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec
from itertools import count, takewhile
from pathlib import Path
from typing import Any

from packer.jobs.result import Result
from packer.recipe.engines import free_memory, slurm_memory, slurm_processors, usable_processors
from packer.vision.detect.networks import gpu_name
from packer.workspace.machines import MISSING, library_version
from readers.formats.machine import cgroup_processors, file_system_of, is_network_file_system, usable_memory
from shardspec.errors import UsageError
from shardspec.layout import given_path
from shardspec.wording import OTHER_NAME, PROGRAM, list_some

_FOR_DEVELOPERS = ("all", "dev", "external", "page", "peers")
_REQUIREMENT = re.compile(r"""([\w.-]+)(?:\[([\w,-]+)\])?([^;]*)(?:;.*extra == "([\w-]+)")?""")
"""Of a requirement in a package's metadata: the library, its extras, the versions, and the extra that requires it."""
_BOUND = re.compile(r"(>=|<=|==|<|>)\s*([\w.]+)")
_REASONS: Mapping[str, str] = {
    "albumentations": "later ones under this name are AGPL",
    "h5py": "with 3.11 to 3.14 the same samples gave other bytes each time",
    "opencv-python-headless": "OpenCV 4 gives other pixels, and other colours of videos",
    "pyarrow": "shards written by 17 are refused by the readers",
}
"""Why some of the required versions are required."""

_MESH_UNTIL = "0.10.21"
"""The last version of mediapipe whose wheel contains the model for ``--landmarks mesh``."""

_OPENCV = ("opencv-python", "opencv-contrib-python", "opencv-contrib-python-headless")
_CUDA = re.compile(r"^cuda\b.*=\s*['\"](.+)['\"]", re.MULTILINE)
_SCRIPT_BYTES = 4096
_GB = 10**9


@dataclass(frozen=True)
class FolderNote:
    """The file system of a folder.

    Attributes
    ----------
    path : Path
    mount, kind : str
        Mount point and type; an empty type if the system does not say.
    is_network : bool
        Whether it may be shared by several machines.
    free_bytes : int
    """

    path: Path
    mount: str
    kind: str
    is_network: bool
    free_bytes: int

    def describe(self) -> str:
        """The folder in one line."""
        network = ", a network file system" if self.is_network else ""
        return (
            f"{self.path}: {self.kind or 'unknown type'} at {self.mount}{network}, {self.free_bytes / _GB:.1f} GB free"
        )

    def to_json(self) -> dict[str, Any]:
        """The folder as JSON."""
        return {**vars(self), "path": str(self.path)}


@dataclass(frozen=True, repr=False)
class DoctorReport(Result):
    """The facts of this installation and machine.

    Attributes
    ----------
    versions : dict of str to str
        Of facepack, Python, the system, and the libraries that are installed.
    extras : dict of str to tuple of str
        By extra of facepack, the libraries that are missing.
    processors : dict of str to int
        ``usable`` by this process; and what it follows from: those of the ``machine``, by ``affinity``, and the limits
        of a ``cgroup`` and of ``slurm``, where there are any.
    memory_bytes : dict of str to int
        ``usable``: that of the machine, or the limit of a cgroup if that is less; ``free`` of it; and the limit of
        ``slurm``, where there is one.
    folders : tuple of FolderNote
    gpus : tuple of str
        Names of the CUDA devices.
    cuda : str or None
        Version of CUDA that torch was built for.
    warnings : tuple of str
        Known bad combinations, a line each.
    """

    versions: dict[str, str]
    extras: dict[str, tuple[str, ...]]
    processors: dict[str, int]
    memory_bytes: dict[str, int]
    folders: tuple[FolderNote, ...]
    gpus: tuple[str, ...]
    cuda: str | None
    warnings: tuple[str, ...]

    def describe(self) -> str:
        """The facts, a line or a few for each kind, and the warnings."""
        own = ("facepack", "python", "system")
        libraries = [f"{name} {version}" for name, version in self.versions.items() if name not in own]
        present = [name for name, missing in self.extras.items() if not missing]
        lines = [
            f"facepack {self.versions['facepack']}, Python {self.versions['python']}, {self.versions['system']}",
            f"libraries: {', '.join(libraries)}",
            f"extras: {', '.join(present) or 'none'}",
        ]
        lines += [f"extra {name} lacks {', '.join(missing)}" for name, missing in self.extras.items() if missing]
        limits = [f"{name} {number}" for name, number in self.processors.items() if name != "usable"]
        lines.append(f"processors: {self.processors['usable']} usable ({', '.join(limits)})")
        memory = [f"{name} {size / _GB:.1f} GB" for name, size in self.memory_bytes.items()]
        lines.append(f"memory: {', '.join(memory) or 'unknown'}")
        lines += [folder.describe() for folder in self.folders]
        lines.append(f"GPU: {', '.join(self.gpus) or 'none'}; torch for CUDA: {self.cuda or 'none'}")
        return "\n".join((*lines, *(f"warning: {line}" for line in self.warnings)))

    def to_json(self) -> dict[str, Any]:
        """The report as JSON."""
        return {**vars(self), "folders": [folder.to_json() for folder in self.folders]}


def doctor(folders: Sequence[str | os.PathLike[str]] = ()) -> DoctorReport:
    """Report versions, extras, usable processors and memory, file systems, GPUs, and known bad combinations.

    Parameters
    ----------
    folders : sequence of path
        Folders whose file systems are reported, after the current one and the one for temporary files.

    Returns
    -------
    DoctorReport

    Raises
    ------
    UsageError
        If a folder does not exist.
    """
    temporary = Path(tempfile.gettempdir())
    places = [Path.cwd(), temporary, *(given_path("folders", folder) for folder in folders)]
    notes = tuple(map(_examine, dict.fromkeys(places)))
    required = _read_requirements()
    names = sorted({name for libraries in required.values() for name in libraries})
    libraries = {name: version for name in names if (version := library_version(name)) != MISSING}
    extras = {
        extra: tuple(name for name in sorted(needs) if name not in libraries)
        for extra, needs in required.items()
        if extra is not None
    }
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    versions = {"facepack": library_version("facepack"), "python": platform.python_version(), "system": system}
    gpus = tuple(map(str, takewhile(bool, (gpu_name(f"cuda:{number}") for number in count()))))
    cuda = _read_cuda_of_torch()
    warnings = [*_check_versions(required, libraries), *_check_programs()]
    if gpus and "torch" in libraries and cuda is None:
        warnings.append("torch was built without CUDA, so it uses no GPU: install its build for CUDA (pytorch.org)")
    if any(note.path == temporary and note.is_network for note in notes):
        warnings.append("temporary files are on a network file system, which is slow: set TMPDIR to a local folder")
    return DoctorReport(
        {**versions, **libraries}, extras, _count_processors(), _measure_memory(), notes, gpus, cuda, tuple(warnings)
    )


def _examine(folder: Path) -> FolderNote:
    if not folder.is_dir():
        raise UsageError(
            option="folders", expected="a folder", found=f"{'a file' if folder.exists() else 'none'} at {folder}"
        )
    mount, kind = file_system_of(folder)
    return FolderNote(folder, mount, kind, is_network_file_system(kind), shutil.disk_usage(folder).free)


def _read_requirements() -> dict[str | None, dict[str, str]]:
    """Return the libraries that each extra needs, with the versions that are required; under None, the core's."""
    found: dict[str | None, dict[str, str]] = {None: {}}
    included: list[tuple[str, str]] = []
    try:
        lines = requires("facepack") or []
    except PackageNotFoundError:
        return found
    for line in lines:
        match = _REQUIREMENT.match(line)
        if match is None or match[4] in _FOR_DEVELOPERS:
            continue
        if match[1] == "facepack":  # comes after the extras that it includes
            included += [(str(match[4]), extra) for extra in str(match[2]).split(",")]
        else:
            found.setdefault(match[4], {})[match[1].lower()] = match[3].strip()
    for extra, other in included:
        found[extra] = {**found.get(other, {}), **found.get(extra, {})}
    return found


def _check_versions(required: Mapping[str | None, Mapping[str, str]], libraries: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each library of which another version is required, or which others get in the way of."""
    every = {name: bounds for needs in required.values() for name, bounds in needs.items()}
    for name, version in libraries.items():
        if not _fits(version, every[name]):
            reason = f" ({_REASONS[name]})" if name in _REASONS else ""
            yield f'{name} {version}: expected {every[name]}{reason}: pip install "{name}{every[name]}"'
    others = [name for name in _OPENCV if library_version(name) != MISSING]
    if others:
        yield (
            f"{list_some(others)} and opencv-python-headless share the folder cv2, and the one installed last "
            f"overwrote the other: pip uninstall {' '.join(others)}, then pip install --force-reinstall opencv-python-headless"
        )
    mediapipe = library_version("mediapipe")
    if mediapipe != MISSING and not _fits(mediapipe, f"<={_MESH_UNTIL}"):
        yield (
            f"mediapipe {mediapipe} has no model for --landmarks mesh; wheels up to {_MESH_UNTIL} have it "
            "(docs/howto/landmarks.md)"
        )


def _fits(version: str, bounds: str) -> bool:
    """Return whether a version is within bounds such as ``>=2.0,<=2.0.8``."""
    found = _numbers(version)
    holds = {">=": operator.ge, "<=": operator.le, "==": operator.eq, "<": operator.lt, ">": operator.gt}
    return all(holds[sign](found, _numbers(bound)) for sign, bound in _BOUND.findall(bounds))


def _numbers(version: str) -> list[int]:
    """The numbers of a release, four of them; what follows, such as ``rc1`` or ``+cpu``, is left out."""
    release = re.match(r"[0-9.]*", version)
    parts = [int(part) for part in (release[0] if release else "").split(".") if part]
    return [*parts, 0, 0, 0, 0][:4]


def _check_programs() -> Iterator[str]:
    """Yield a line if the name ``packer`` calls another program."""
    path = shutil.which(PROGRAM)
    if path is None or os.name == "nt":  # a program of Windows does not show what it calls
        return
    try:
        with open(path, "rb") as file:  # noqa: PTH123 -- shorter for a text
            is_ours = b"packer.cli" in file.read(_SCRIPT_BYTES)
    except OSError:
        return
    if not is_ours:
        yield f"{path} is another program called {PROGRAM}: call this one {OTHER_NAME}"


def _count_processors() -> dict[str, int]:
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    found = {
        "usable": usable_processors(),
        "machine": os.cpu_count(),
        "affinity": affinity,
        "cgroup": min(cgroup_processors(), default=None),
        "slurm": slurm_processors(),
    }
    return {name: number for name, number in found.items() if number is not None}


def _measure_memory() -> dict[str, int]:
    found = {"usable": usable_memory(), "free": free_memory(), "slurm": slurm_memory()}
    return {name: size for name, size in found.items() if size is not None}


def _read_cuda_of_torch() -> str | None:
    """Return the version of CUDA that torch was built for; torch itself takes seconds to import."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        match = _CUDA.search(Path(spec.origin).with_name("version.py").read_text("utf-8"))
    except OSError:
        return None
    return None if match is None else match[1]
