"""Install the built wheel into empty environments and use it there as a new user would, away from the clone.

``make test-dist`` runs it with ``pack``, ``faces-light`` and ``faces``, and ``make test-dist-all`` with every extra::

    python tests/installed.py WHEEL EXTRAS [EXTRAS ...]

EXTRAS are names joined by commas, or ``none``. Prints the size of each environment. The digests of the faces that
different environments find must be equal.
"""

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
from pathlib import Path

from skimage import data, io

REPOSITORY = Path(__file__).parents[1]
WRITES = {"parquet": "parquet", "hdf5": "hdf5"}
"""Format that an extra can write. Without one of them it is LMDB."""

WHERE = """
import sys
from pathlib import Path
import packer, readers, shardspec
assert all(Path(package.__file__).is_relative_to(sys.prefix) for package in (packer, readers, shardspec))
assert all(Path(package.__file__).with_name("py.typed").is_file() for package in (packer, readers, shardspec))
"""

READ = """
from readers import Loader, open_dataset
ds = open_dataset("packed", fields=["image", "label"])
assert len(ds) == 4 and {int(ds[n]["label"]) for n in range(4)} == {0, 1}
images = [batch["image"] for batch in Loader(ds, batch_size=1, seed=0)]
assert len(images) == 4 and all(image.shape[:2] == (1, 3) for image in images)
"""


def main(wheel: Path, *sets: str) -> None:
    """Test the wheel with each set of extras."""
    digests = {}
    with tempfile.TemporaryDirectory() as temporary:
        images = Path(temporary) / "images"
        for label, step in (("left", -1), ("right", 1)):
            (images / label).mkdir(parents=True)
            for row in (0, 16):
                io.imsave(
                    images / label / f"{row}.jpg", data.astronaut()[row:384, ::step][:, :368], check_contrast=False
                )
        for extras in sets:
            with tempfile.TemporaryDirectory() as folder:
                digest = use(wheel.absolute(), extras, images, Path(folder))
            if digest:
                digests[extras] = digest
    if len(set(digests.values())) > 1:
        raise SystemExit(f"expected the same faces in every environment, found {digests}")


def use(wheel: Path, extras: str, images: Path, folder: Path) -> str | None:
    """Install the wheel and use it. Return the digest of the faces, if the environment can find any."""
    began_s = time.monotonic()
    where = folder / "venv"
    venv.create(where, with_pip=True)
    scripts = where / ("Scripts" if os.name == "nt" else "bin")
    work = folder / "work"
    work.mkdir()
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}

    def run(program: str, *words: object) -> str:
        line = [str(scripts / program), *map(str, words)]
        done = subprocess.run(line, cwd=work, env=clean, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"with the extras {extras}: {' '.join(line)} ended with {done.returncode}\n{done.stdout}")
        return done.stdout

    names = [] if extras == "none" else extras.split(",")
    install = ("-m", "pip", "install", "--quiet", "--no-compile", "--constraint", REPOSITORY / "constraints.txt")
    run("python", *install, f"{wheel}[{','.join(names)}]" if names else wheel)
    installed_s = time.monotonic() - began_s

    for words in (["--help"], ["help", "faces"], ["--completion", "bash"], ["build", "--help"], ["doctor"]):
        assert run("packer", *words)
    missing = json.loads(run("facepack", "doctor", "--json"))["extras"]
    assert not any(missing[name] for name in names), {name: missing[name] for name in names}
    if extras == "faces-light":
        assert missing["torch"] == ["torch"]
    can = {name for name, libraries in missing.items() if not libraries}

    format = next((format for extra, format in WRITES.items() if extra in can), "lmdb")
    size = ["--size", 32, "--resize", "exact"] if "pack" in can else []
    run("packer", "build", images, "packed", "--label-from", "folder", "--format", format, "--quiet", *size)
    run("packer", "verify", "packed", "--deep")
    run("packer", "inspect", "packed")
    run("python", "-c", WHERE)
    run("packer", "export", "packed", "files", "--quiet")
    if "torch" in can:
        run("python", "-c", READ)
    if "view" in can:
        run("packer", "view", "--help")
    found = None
    if "faces-light" in can:
        run("packer", "build", images, "faces", "--preset", "faces", "--quiet")
        found = json.loads(run("packer", "inspect", "faces", "--json"))
        assert found["samples"] == 4, found
    size_mb = sum(path.stat().st_blocks for path in where.rglob("*") if path.is_file()) * 512 >> 20
    print(
        f"{extras}: {size_mb} MB, {installed_s:.0f} s to install, {time.monotonic() - began_s:.0f} s in all", flush=True
    )
    if extras == "pack":  # the advice of a message works as it is, without a facepack in the index
        line = [scripts / "packer", "build", images, "records", "--format", "hdf5", "--quiet"]
        said = subprocess.run(line, cwd=work, env=clean, stderr=subprocess.PIPE, text=True, check=False).stderr
        run("python", "-m", *shlex.split(said.rpartition("not installed: ")[2]), "--quiet")
        run("packer", *line[1:])
    return found and found["digest"]


def every_extra() -> list[str]:
    """The extras for users. Those for developers begin with `dev`."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = list(project["optional-dependencies"])
    return names[: names.index("dev")]


if __name__ == "__main__":
    wheel, *sets = sys.argv[1:]
    main(Path(wheel), *(name for given in sets for name in (every_extra() if given == "every" else [given])))
