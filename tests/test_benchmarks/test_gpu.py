"""`make test-gpu`: its checks run on the CPU, find what is wrong, and are skipped where there is no GPU."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import gpu
from packer.vision.detect.torch_runtime import TorchFrame
from readers.augment import BatchNormalize


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "BATCHES", (1, 2))
    monkeypatch.setattr(gpu, "MATRIX", 64)


def test_every_check_holds_on_the_cpu() -> None:
    lines = gpu.run("cpu", frames=3, rows=70, workers=[1], size=(480, 360))
    judged = [line for line in lines if line.good is not None]
    assert len(judged) == 7
    assert all(line.good for line in judged), gpu.table(lines)
    assert gpu.table(lines).count("\n") == len(lines) + 1


def test_a_detector_that_samples_other_pixels_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    propose = TorchFrame.propose
    monkeypatch.setattr(
        TorchFrame, "propose", lambda self, height, width, least: propose(self, height, width, least + 6)
    )
    first, *_ = gpu.check_detector("cpu", gpu.make_frames(2, (480, 360)))
    assert first.good is False


def test_a_loader_with_other_values_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    normalized, calls = BatchNormalize.normalized, []

    def wrong_at_first(self: BatchNormalize, *arguments: object) -> object:
        calls.append(1)
        batch = normalized(self, *arguments)
        return batch if len(calls) > 1 else {**batch, "image": batch["image"] + 0.01}

    monkeypatch.setattr(BatchNormalize, "normalized", wrong_at_first)
    assert next(gpu.check_loader("cpu", gpu.write_images(tmp_path, 40))).good is False


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_the_gpu_run_is_skipped_with_a_reason(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert gpu.main([]) == 0
    assert capsys.readouterr().out == "skipped: torch finds no CUDA device on this machine\n"
    monkeypatch.setitem(sys.modules, "torch", None)
    assert gpu.main([]) == 0
    assert capsys.readouterr().out == "skipped: torch is not installed\n"


def test_a_failed_check_is_the_exit_status(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "run", lambda *_: [gpu.Line("a", "b", True), gpu.Line("c", "d", False)])
    assert gpu.main(["--device", "cpu"]) == 1
    assert "| c | d | **NO** |" in capsys.readouterr().out


def test_frames_have_faces_of_several_sizes() -> None:
    one, other = gpu.make_frames(2, (480, 360))
    assert one.shape == (360, 480, 3)
    assert not np.array_equal(one, other)
