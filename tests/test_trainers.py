"""The scripts of docs/howto/trainers.md and examples/, run as they stand there but for sizes.

They are killed in mid-epoch, then started again; the images that their networks see are those of a run to the end.
"""

import contextlib
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from support.batches import woven
from support.command import REPOSITORY, environment, run_packer
from support.face_source import views, write_frames
from support.known_trees import make_imagenet
from support.media import scene, write_image
from support.watched import KILLED, digests

from readers import Loader, open_dataset

EXAMPLES = REPOSITORY / "examples"
PAGE = (REPOSITORY / "docs" / "howto" / "trainers.md").read_text("utf-8")
SCRIPTS = {re.match(r"# (\w+\.py)", code)[1]: code for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)}

PHOTOS, TRAIN, BATCH, EPOCHS = 30, 24, 2, 2
SAVED, STOPPED = 2, 3
"""The step after which a checkpoint is written, and the one before which the process is killed."""
SMALLER = {
    "64": str(BATCH),
    "224": "64",
    "100": str(SAVED),
    "ViTConfig(": "ViTConfig(hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, ",
    "torchvision.models import resnet18": "torchvision.models import shufflenet_v2_x0_5 as resnet18",
}
NETWORK = ("--model", "shufflenet_v2_x0_5", "--batch-size", BATCH, "--epochs", 2, "--save-every", 2)


def needs(library: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find_spec(library) is None, reason=f"{library} is not installed (make test-external)")


def pack(folder: Path, text: str, **small: str) -> None:
    """Run the commands that a text shows, with other sizes."""
    for command, words in re.findall(r"^ {4}packer (\w+) ([^#\n]*)", text, re.MULTILINE):
        for option, value in small.items():
            words = re.sub(rf"--{option} \S+", f"--{option} {value}", words)
        more = ("--workers", 1, "--quiet") if command == "build" else ()
        run_packer(command, *shlex.split(words), *more, cwd=folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the page's datasets and scripts. Images, batches and intervals of checkpoints are small."""
    root = tmp_path_factory.mktemp("trainers")
    for number in range(PHOTOS):
        write_image(root / "photos" / ("cats", "dogs")[number % 2] / f"{number}.jpg", scene(number, (96, 80)))
    pack(root, PAGE, size="72")
    for name, code in SCRIPTS.items():
        for large, small in SMALLER.items():
            code = re.sub(rf"\b{re.escape(large)}", small, code)
        (root / name).write_text(code, "utf-8")
    return root


@pytest.fixture(scope="module")
def images(folder: Path) -> list[str]:
    """The digests of all images of both epochs, as a Loader in this process gives them."""
    made: dict[str, object] = {}
    with contextlib.chdir(folder):
        exec((folder / "data.py").read_text("utf-8"), made)
    loader = Loader(made["train"], BATCH, seed=0, workers=1)
    assert len(loader) * BATCH == TRAIN
    return [digest for _ in range(EPOCHS) for batch in loader for digest in digests(batch["image"])]


@pytest.fixture(scope="module")
def server() -> Iterator[subprocess.Popen[str]]:
    """Runs scripts; has imported once what takes seconds."""
    modules = ("torchvision.models", "lightning.pytorch", "accelerate", "readers.lightning.module")
    with subprocess.Popen(
        [sys.executable, REPOSITORY / "tests" / "support" / "watched.py", *modules],
        env=environment(ACCELERATE_USE_CPU="true", CUDA_VISIBLE_DEVICES=""), stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        yield process


@pytest.fixture
def run(server: "subprocess.Popen[str]", folder: Path) -> Callable[..., list[str]]:
    """Runs a script; the digests of the images that all ranks trained on, in the order of the whole sequence."""

    def run(*words: object, ranks: int = 1, killed: int = -1) -> list[str]:
        request = {"words": list(map(str, words)), "folder": str(folder), "ranks": ranks, "killed": killed}
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        done = json.loads(server.stdout.readline())
        assert done["status"] == (KILLED if killed >= 0 else 0), done["output"]
        return woven([[digest for batch in batches for digest in batch] for batches in done["seen"]])

    return run


CASES = [
    ("ddp.py", 2, 1, ()),
    ("lightning_script.py", 1, 1, ()),
    ("fabric_script.py", 1, 1, ()),
    ("accelerate_script.py", 1, 1, ()),
    ("fabric_script.py", 2, 1, pytest.mark.external),
    ("accelerate_script.py", 2, 2, pytest.mark.external),
    ("hf_trainer.py", 1, 1, (pytest.mark.external, needs("transformers"))),
    ("hf_trainer.py", 2, 2, (pytest.mark.external, needs("transformers"))),
]


@pytest.mark.parametrize(("script", "before", "after"), [pytest.param(*case[:3], marks=case[3]) for case in CASES])
def test_a_killed_script_resumes_with_the_next_image(run, folder, images, script, before, after):
    shutil.rmtree(folder / "run", ignore_errors=True)
    for left in folder.glob("*.ckpt"):
        left.unlink()
    assert run(script, ranks=before, killed=STOPPED) == images[: STOPPED * BATCH * before]
    assert run(script, ranks=after) == images[SAVED * BATCH * before :]


@pytest.mark.external
@needs("timm")
def test_timms_loop(run, folder, images):
    script = folder / "timm_script.py"
    code = script.read_text("utf-8")
    script.write_text(code.replace("mixup_alpha", "prob=0.0, mixup_alpha"))  # mixes nothing
    assert run("timm_script.py") == images
    assert list((folder / "timm").glob("*.tar"))


@pytest.mark.parametrize("release", ["1.0.28", "later"])
def test_the_lines_for_timms_own_script(folder, images, monkeypatch, release):
    """The script sets an epoch before its loop, also after ``--resume``, in one way or the other."""
    monkeypatch.chdir(folder)
    data = ModuleType("data")
    exec((folder / "data.py").read_text("utf-8"), vars(data))
    monkeypatch.setitem(sys.modules, "data", data)
    options = SimpleNamespace(batch_size=BATCH, validation_batch_size=None, seed=0)
    made = {"args": options, "device": torch.device("cpu")}
    exec(SCRIPTS["timm_train.py"], made)
    loader = made["loader_train"]
    if release == "1.0.28":
        assert hasattr(made["dataset_train"], "set_epoch")
        made["dataset_train"].set_epoch(1)
    else:
        assert not hasattr(loader.dataset, "set_epoch")
        loader.batch_sampler.set_epoch(1)
    seen = []
    for input, target in loader:
        assert input.is_contiguous(memory_format=torch.channels_last)
        assert target.dtype == torch.int64
        seen += digests(input)
    assert seen == images[TRAIN:]
    assert sum(len(target) for _, target in made["loader_eval"]) == PHOTOS - TRAIN


@pytest.mark.parametrize(("page", "name"), [("photos", "imagenet"), ("forgeries", "faces")])
def test_a_page_shows_the_data_section_of_its_script(page, name):
    text = (REPOSITORY / "docs" / "howto" / f"train_{page}.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(# Data\..*?)```", text, re.DOTALL)
    assert len(blocks) == 1
    assert blocks[0] in (EXAMPLES / f"train_{name}.py").read_text("utf-8")


def test_the_script_for_imagenet(run, folder):
    """The network sees images that were mixed, and mixes anew after a resume what it would have mixed."""
    script = EXAMPLES / "train_imagenet.py"
    make_imagenet(folder / "ILSVRC2012")
    pack(folder, script.read_text("utf-8").replace("parts/", "imagenet-parts/"), size="80")
    command = (script, "imagenet-parts/train", "imagenet-parts/val", "--size", 64, *NETWORK)
    whole = run(*command, "--checkpoint", "whole.pt")
    assert len(whole) == 2 * 6
    assert run(*command, killed=5) == whole[: 5 * BATCH]
    shutil.copy(folder / "imagenet.pt", folder / "ranks.pt")
    assert run(*command) == whole[4 * BATCH :]
    assert run(*command) == [], "all is done"
    assert len(set(run(*command, "--checkpoint", "ranks.pt", ranks=2))) == 4, "one step of two ranks is left"
    for name, ranks in (("imagenet.pt", 1), ("ranks.pt", 2)):
        for group in torch.load(folder / name)["optimizer"]["param_groups"]:
            assert group["initial_lr"] == 0.5 * BATCH * ranks / 1024
            assert group["lr"] == pytest.approx(0, abs=1e-9), "the schedule has ended"


def test_the_script_for_faces(run, folder):
    script = EXAMPLES / "train_faces.py"
    frames = list(views(24))
    for number in range(12):
        write_frames(folder / "videos" / ("real", "fake")[number % 2] / f"{number}.mp4", frames[2 * number :][:2])
    pack(folder, script.read_text("utf-8").replace("parts/", "face-parts/"), size="64", fps="25")
    command = (script, "face-parts", "--size", 48, *NETWORK)
    whole = run(*command, "--checkpoint", "whole-faces.pt")
    assert len(whole) == 2 * 16
    assert run(*command, killed=5) == whole[: 5 * BATCH]
    assert run(*command) == whole[4 * BATCH :]
    assert run(*command) == [], "all is done"


def test_deepfakebenchs_loop(tmp_path, monkeypatch):
    """The parts of its trainer, networks and per-video figures that read loaders and names."""
    frames = list(views(12))
    for number, label in enumerate(("real", "fake")):
        write_frames(tmp_path / "videos" / label / "0.mp4", frames[number * 6 :][:6])
    run_packer(
        "build", "videos", "packed/faces", "--preset", "images", "--size", 64, "--resize", "exact", "--every", 2,
        "--label-from", "folder", "--classes", "real,fake", "--workers", 1, "--quiet", cwd=tmp_path,
    )  # fmt: skip
    monkeypatch.chdir(tmp_path)
    made: dict[str, object] = {}
    exec(SCRIPTS["deepfakebench.py"], made)
    config = {
        "train_dataset": ["faces"], "test_dataset": ["faces"], "train_batchSize": 4, "test_batchSize": 4, "workers": 2,
        "manualSeed": 1024, "use_data_augmentation": True, "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5],
    }  # fmt: skip
    train, tests = made["prepare_training_data"](config), made["prepare_testing_data"](config)
    stored = open_dataset("packed/faces")
    for epoch in range(2):
        labels = []
        for data_dict in train:
            image = data_dict["image"].to("cpu")
            assert image.dtype == torch.float32
            assert image.shape[1:] == (3, 64, 64)
            assert -1 <= float(image.min()) < float(image.max()) <= 1
            assert image.view(len(image), -1).shape[1] == 3 * 64 * 64, "as its networks have it"
            assert data_dict["mask"] is data_dict["landmark"] is None
            labels += data_dict["label"].tolist()
        assert sorted(labels) == [0] * 3 + [1] * 3, epoch
    (loader,) = tests.values()
    with monkeypatch.context() as ranked:  # of several ranks, one evaluates everything
        ranked.setattr(torch.distributed, "is_initialized", lambda: True)
        ranked.setattr(torch.distributed, "get_rank", lambda *_: 0)
        ranked.setattr(torch.distributed, "get_world_size", lambda *_: 2)
        found = torch.cat([data_dict["label"] for data_dict in loader]).tolist()
    assert found == sorted(stored.column("label").tolist()) == loader.dataset.data_dict["label"]
    names = [name.split("/") for name in loader.dataset.data_dict["image"]]
    assert [parts[-2] for parts in names] == ["real_0.mp4"] * 3 + ["fake_0.mp4"] * 3
    assert [parts[-1] for parts in names] == ["0", "2", "4"] * 2
    images = {"source": ["real/0/0.png", "real/0/1.png", "fake/0/0.png"], "frame": np.zeros(3, np.int64)}
    assert made["frame_names"](SimpleNamespace(column=images.get)) == ["real_0/0.png", "real_0/1.png", "fake_0/0.png"]
