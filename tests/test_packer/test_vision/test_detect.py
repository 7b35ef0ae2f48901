"""The detector's interface: what it takes, gives and refuses."""

import importlib.util
import json
import re
import subprocess
import sys

import numpy as np
import pytest
import skimage.data

from packer import Detections, Detector
from packer.vision.detect import detector as detector_module
from packer.vision.detect import networks as runtimes
from packer.vision.detect.detector import min_nms
from packer.vision.detect.interface import Faces
from packer.vision.detect.networks import build_networks, load_weights
from shardspec.errors import UsageError

PORTRAIT = skimage.data.astronaut()
RUNTIMES = ["openvino", "torch"]


@pytest.fixture(scope="module", params=RUNTIMES)
def detector(request):
    if not importlib.util.find_spec(request.param):
        pytest.skip(f"needs {request.param}")
    return Detector(runtime=request.param)


def _equal(a: Detections, b: Detections) -> bool:
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in ("boxes", "scores", "points", "offsets"))


def _faces_equal(a: Faces, b: Faces) -> bool:
    return all(map(np.array_equal, a, b))


def test_import_loads_no_heavy_library():
    code = (
        "import sys, packer.vision.detect; packer.vision.detect.__all__; from packer.vision.detect import Detections;"
        "print(sorted({'torch', 'openvino', 'cv2', 'torchvision', 'mtcnn', 'joblib'} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


@pytest.mark.skipif(not importlib.util.find_spec("openvino"), reason="needs openvino")
def test_openvino_needs_no_torch_and_sends_no_telemetry():
    code = (
        "import sys, threading; from packer.vision.detect import Detector; Detector(runtime='openvino');"
        "print(sorted({'torch', 'torchvision', 'mtcnn', 'joblib'} & set(sys.modules)),"
        "sys.modules['openvino_telemetry'], threading.active_count())"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[] None 1"


def test_result_is_ragged_arrays(detector):
    blank = np.zeros((100, 80, 3), np.uint8)
    found = detector.detect([blank, PORTRAIT, blank, PORTRAIT[:, ::-1]])
    assert [array.dtype.str for array in (found.boxes, found.scores, found.points, found.offsets)] == [
        "<f4",
        "<f4",
        "<f4",
        "<i8",
    ]
    assert found.offsets.tolist() == [0, 0, 1, 1, 2]
    assert (found.boxes.shape, found.scores.shape, found.points.shape) == ((2, 4), (2,), (2, 5, 2))
    assert len(found) == 4
    assert [len(frame.boxes) for frame in found] == [0, 1, 0, 1]
    assert _faces_equal(found[-1], found[3])
    with pytest.raises(IndexError, match="4"):
        found[4]
    left, top, right, bottom = found.boxes[0]
    assert np.all((found.points[0] > (left, top)) & (found.points[0] < (right, bottom)))


def test_left_is_the_viewers(detector):
    for frame in (PORTRAIT, PORTRAIT[:, ::-1]):
        left_eye, right_eye, nose, left_mouth, right_mouth = detector.detect([frame]).points[0]
        assert left_eye[0] < nose[0] < right_eye[0]
        assert left_mouth[0] < right_mouth[0]
        assert max(left_eye[1], right_eye[1]) < nose[1] < min(left_mouth[1], right_mouth[1])


def test_the_result_of_a_frame_does_not_depend_on_its_batch(detector):
    frames = [
        PORTRAIT,
        PORTRAIT[::2, ::2],
        np.tile(PORTRAIT[::2, ::2], (1, 3, 1)),
        PORTRAIT[:, ::-1],
        PORTRAIT[100:, :400],
    ]
    alone = Detections.concatenate([detector.detect([frame]) for frame in frames])
    assert len(alone.boxes) > 5
    assert _equal(alone, detector.detect(frames))
    backwards = detector.detect(frames[::-1])
    assert all(_faces_equal(a, b) for a, b in zip(alone, reversed(list(backwards)), strict=True))
    again = Detector(runtime=detector.describe()["runtime"].split()[0])
    assert _equal(alone, again.detect(iter(frames)))


def test_boxes_that_are_cut_to_the_same_window_tie(detector):
    face = np.ascontiguousarray(PORTRAIT[60:220, 150:310])
    frame = detector._runtime.open(face)
    for count in range(2, 40):
        boxes = np.array([[1 - i, 1 - i, 160 + i, 160 + i] for i in range(count)], np.float32)
        _, scores, _ = detector._refine("onet", frame, boxes, *face.shape[:2])
        assert len(scores) == count
        assert np.unique(scores).size == 1


def test_a_box_that_the_last_step_moves_out_of_the_frame_is_dropped(monkeypatch):
    def move(boxes, scores, threshold):
        boxes -= 1000
        return min_nms(boxes, scores, threshold)

    detector = Detector()
    assert len(detector.detect([PORTRAIT]).boxes) == 1
    monkeypatch.setattr(detector_module, "min_nms", move)
    assert len(detector.detect([PORTRAIT]).boxes) == 0


def test_array_of_frames(detector):
    frames = np.stack([PORTRAIT, PORTRAIT[:, ::-1]])
    assert _equal(detector.detect(frames), detector.detect(list(frames)))
    assert len(detector.detect(frames[:0])) == 0
    assert detector.detect([]).offsets.tolist() == [0]


@pytest.mark.parametrize("shape", [(0, 0), (0, 50), (1, 1), (19, 300), (300, 19), (20, 20), (20, 4000), (5000, 21)])
def test_tiny_and_narrow_frames_hold_no_face(detector, shape):
    noise = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
    for frame in (np.zeros_like(noise), np.full_like(noise, 255)):
        assert detector.detect([frame]).offsets.tolist() == [0, 0]
    assert len(detector.detect([noise])) == 1


@pytest.mark.parametrize(
    ("frames", "error", "message"),
    [
        (PORTRAIT, ValueError, r"pass \[frame\]"),
        ([PORTRAIT, PORTRAIT[..., 0]], ValueError, r"frame 1: .* grey one of shape \(512, 512\)"),
        ([PORTRAIT[..., :1]], ValueError, "grey"),
        ([PORTRAIT.transpose(2, 0, 1)], ValueError, "colours first"),
        ([np.dstack([PORTRAIT, PORTRAIT[..., 0]])], ValueError, r"\(512, 512, 4\)"),
        ([PORTRAIT / 255], TypeError, "float64"),
        ([PORTRAIT.astype(np.float32)], TypeError, "float32"),
        ([PORTRAIT.tolist()], TypeError, "list"),
        (PORTRAIT[..., 0], ValueError, "one array"),
    ],
)
def test_refuses_arrays_that_are_not_rgb_frames(detector, frames, error, message):
    with pytest.raises(error, match=message):
        detector.detect(frames)


def test_frames_are_left_alone(detector):
    frame = PORTRAIT.copy()
    frame.flags.writeable = False
    strided = np.asfortranarray(PORTRAIT)
    assert _equal(detector.detect([frame]), detector.detect([strided]))
    assert np.array_equal(frame, PORTRAIT)


@pytest.mark.parametrize(
    ("missing", "settings", "message"),
    [
        (
            "openvino torch",
            {},
            r"runtime 'openvino' needs the library 'openvino', which is not installed: .*facepack\[faces-light\]",
        ),
        ("openvino torch", {"device": "cuda"}, r"runtime 'torch' needs the library 'torch', .*facepack\[faces\]"),
        ("torch", {"runtime": "torch"}, r"runtime 'torch' needs the library 'torch', .*facepack\[faces\]"),
        ("openvino", {"runtime": "openvino"}, r"runtime 'openvino' needs .* 'openvino', .*facepack\[faces-light\]"),
    ],
)
def test_says_what_to_install(missing, settings, message):
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({missing.split()}));"
        f"from packer.vision.detect import Detector; Detector(**{settings})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert re.search(f"MissingDependencyError: {message}", done.stderr.splitlines()[-1]), done.stderr


def test_auto_takes_what_is_installed():
    code = (
        "import sys; sys.modules['openvino'] = None; from packer.vision.detect.networks import resolve_runtime;"
        "print(resolve_runtime('auto', 'cpu'))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "torch\n"


def test_auto_prefers_openvino_on_the_cpu():
    if not importlib.util.find_spec("openvino"):
        pytest.skip("needs openvino")
    assert Detector().describe()["runtime"].startswith("openvino ")
    assert runtimes.resolve_runtime("auto", "cuda") == "torch"


def test_description_is_json_with_everything_that_affects_the_result(detector):
    description = detector.describe()
    assert json.loads(json.dumps(description)) == description
    assert description["weights"] == "mtcnn 1.0.0"
    assert description["precision"] == "float32"
    others = [
        Detector(min_face=30),
        Detector(skip_levels=1),
        Detector(thresholds=(0.5, 0.7, 0.7)),
        Detector(factor=0.5),
    ]
    usual = Detector().describe()
    assert all(other.describe() != usual for other in others)


@pytest.mark.parametrize(
    ("min_face", "levels", "finest"),
    [(10, 0, 20), (20, 1, 28.2), (40, 3, 56.1), (55, 3, 56.1), (57, 4, 79.1), (200, 7, 222)],
)
def test_dataset_mode_starts_on_the_grid(min_face, levels, finest):
    detector = Detector.dataset(min_face=min_face)
    assert detector.describe()["skip_levels"] == levels
    assert detector.describe()["min_face"] == 20
    assert 20 / 0.709**levels == pytest.approx(finest, abs=0.1)
    assert levels == 0 or finest <= 1.4143 * min_face < finest / 0.709


def test_dataset_mode_finds_what_the_whole_pyramid_finds(detector):
    name = detector.describe()["runtime"].split()[0]
    whole, coarse = (detector.detect([PORTRAIT]), Detector.dataset(runtime=name).detect([PORTRAIT]))
    np.testing.assert_allclose(coarse.boxes, whole.boxes, atol=1)


def test_sampling_on_the_device_finds_the_same_faces():
    """The path that a GPU takes, run on the CPU."""
    torch_runtime = pytest.importorskip("packer.vision.detect.torch_runtime")
    detector = Detector(runtime="torch")
    frames = [PORTRAIT, np.zeros((64, 50, 3), np.uint8), np.tile(PORTRAIT[::2, ::2], (2, 3, 1)), PORTRAIT[:, ::-1]]
    expected = detector.detect(frames)
    networks = build_networks(load_weights().nets)
    detector._runtime = torch_runtime.TorchRuntime(networks, device="cpu", sample_on_device=True)
    found = detector.detect(frames)
    assert np.array_equal(found.offsets, expected.offsets)
    np.testing.assert_allclose(found.boxes, expected.boxes, atol=0.01)
    np.testing.assert_allclose(found.points, expected.points, atol=0.01)
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-4)
    assert _equal(Detections.concatenate([detector.detect([frame]) for frame in frames]), found)


def test_device_takes_only_images_that_fit(monkeypatch):
    torch_runtime = pytest.importorskip("packer.vision.detect.torch_runtime")
    monkeypatch.setattr(torch_runtime, "_MAX_DEVICE_PIXELS", 1000)
    runtime = torch_runtime.TorchRuntime(build_networks(load_weights().nets), sample_on_device=True)
    assert isinstance(runtime.open(PORTRAIT[:30, :30]), torch_runtime._RetriedFrame)
    assert isinstance(runtime.open(PORTRAIT), torch_runtime.CpuFrame)


def test_a_device_takes_read_only_frames_without_a_warning():
    torch = pytest.importorskip("torch")
    torch_runtime = pytest.importorskip("packer.vision.detect.torch_runtime")
    runtime = torch_runtime.TorchRuntime(build_networks(load_weights().nets), sample_on_device=True)
    frame = PORTRAIT.copy()
    frame.flags.writeable = False
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        assert len(runtime.open(frame).refine("onet", np.array([[0, 0, 90, 90]]))) == 1
    finally:
        torch.set_warn_always(before)


def test_threads_change_no_face():
    one, two = (Detector(threads=1).detect([PORTRAIT]), Detector(threads=2).detect([PORTRAIT]))
    np.testing.assert_allclose(one.boxes, two.boxes, atol=0.05)


def test_images_too_large_for_a_device_are_sampled_in_pieces(monkeypatch):
    torch = pytest.importorskip("torch")
    torch_runtime = pytest.importorskip("packer.vision.detect.torch_runtime")
    detector = Detector(runtime="torch")
    expected = detector.detect([PORTRAIT])
    networks = build_networks(load_weights().nets)
    detector._runtime = torch_runtime.TorchRuntime(networks, sample_on_device=True)
    calls = []

    def refuse(self, net, windows):
        calls.append(net)
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(torch_runtime.TorchFrame, "refine", refuse)
        found = detector.detect([PORTRAIT])
        assert calls == ["rnet"]  # from then on in pieces
        patch.setattr(torch_runtime.CpuFrame, "refine", refuse)
        with pytest.raises(torch.OutOfMemoryError):
            detector.detect([PORTRAIT])
    np.testing.assert_allclose(found.boxes, expected.boxes, atol=0.01)
    np.testing.assert_allclose(found.points, expected.points, atol=0.01)


def test_precision_settings_of_the_caller_are_kept_and_not_used():
    torch = pytest.importorskip("torch")
    torch_runtime = pytest.importorskip("packer.vision.detect.torch_runtime")
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with torch_runtime._exact():
            assert torch.get_float32_matmul_precision() == "highest"
            assert torch.backends.cudnn.enabled
            assert not torch.backends.cudnn.allow_tf32
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.skipif(not importlib.util.find_spec("openvino"), reason="needs openvino")
def test_detectors_freed_in_order_of_creation_leave_signals_alone():
    """OpenVINO's cores each set a signal stack; see ``packer.vision.openvino.core``."""
    script = """
import signal

from packer import Detector

first, second = (Detector(runtime="openvino") for _ in range(2))
del first
del second
signal.signal(signal.SIGUSR1, lambda number, frame: print("handled"))
signal.raise_signal(signal.SIGUSR1)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "handled\n"), done.stderr


def test_a_gpu_is_named_without_being_taken(monkeypatch):
    asked = []

    class Driver:
        """Knows what needs no context."""

        @staticmethod
        def cuInit(flags):  # noqa: N802 -- the driver's name
            return 0

        @staticmethod
        def cuDeviceGet(found, index):  # noqa: N802
            found._obj.value = 40 + index
            return 0 if index < 2 else 101

        @staticmethod
        def cuDeviceGetName(name, size, number):  # noqa: N802
            asked.append(number.value)
            name.value = b"A Card"
            return 0

    monkeypatch.setattr(runtimes.ctypes, "CDLL", lambda _: Driver)
    assert [runtimes.gpu_name(device) for device in ("cuda", "cuda:1", "cuda:2", "cpu")] == ["A Card"] * 2 + [None] * 2
    assert asked == [40, 41]


def test_a_device_is_checked_before_a_build_and_a_gpu_is_not_taken(monkeypatch):
    torch_runtime = pytest.importorskip("packer.vision.detect.torch_runtime")
    check, torch = torch_runtime.check_device, torch_runtime.torch
    check("cpu")
    for device in ("gpu", "cuda:99"):
        refused = "expected cpu, or a device that torch can use here, found '" + device
        with pytest.raises(UsageError, match=refused):
            check(device)
        with pytest.raises(UsageError, match=refused):
            Detector(device=device)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: pytest.fail("a context is made"))
    check("cuda")
    check("cuda:1")
