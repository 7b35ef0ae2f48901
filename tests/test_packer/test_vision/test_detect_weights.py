"""The weight files are read as torch reads them, and nothing else is."""

import contextlib
import importlib.util
import pickle
from pathlib import Path

import numpy as np
import pytest

from packer.vision.detect import networks as reader
from packer.vision.detect.networks import load_weights, read_legacy_state_dict
from shardspec.errors import MissingDependencyError

FOLDER = Path(importlib.util.find_spec("facenet_pytorch").submodule_search_locations[0]) / "data"


@pytest.mark.parametrize("name", ["pnet", "rnet", "onet"])
def test_same_numbers_as_torch(name):
    torch = pytest.importorskip("torch")
    expected = torch.load(FOLDER / f"{name}.pt", weights_only=True)
    found = load_weights().nets[name]
    assert list(found) == list(expected)
    for key, tensor in expected.items():
        assert found[key].dtype == np.float32
        assert found[key].flags.c_contiguous
        assert np.array_equal(found[key], tensor.numpy())


class _Harm:
    def __reduce__(self):
        return (Path.touch, (Path("harm-was-done"),))


@pytest.mark.parametrize("value", [_Harm(), np.zeros(3), Path("x")])
@pytest.mark.parametrize("place", [0, 2, 3, 4])
def test_refuses_to_load_other_names(tmp_path, monkeypatch, value, place):
    monkeypatch.chdir(tmp_path)
    header = [reader._MAGIC, reader._PROTOCOL, {"little_endian": True}, {}, []]
    header[place] = value
    path = tmp_path / "pnet.pt"
    path.write_bytes(b"".join(pickle.dumps(part, protocol=2) for part in header))
    with pytest.raises(ValueError, match=r"pnet\.pt: .*pip install --no-deps facenet-pytorch==2\.5\.3"):
        read_legacy_state_dict(path)
    assert not (tmp_path / "harm-was-done").exists()


def test_truncated_files_are_value_errors(tmp_path):
    whole = (FOLDER / "pnet.pt").read_bytes()
    path = tmp_path / "pnet.pt"
    for length in range(0, len(whole), 997):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"pnet\.pt"):
            read_legacy_state_dict(path)


@pytest.mark.parametrize("seed", range(20))
def test_flipped_bits_give_a_value_error_or_other_numbers(tmp_path, seed):
    path = tmp_path / "pnet.pt"
    rng = np.random.default_rng(seed)
    for _ in range(20):
        damaged = bytearray((FOLDER / "pnet.pt").read_bytes())
        damaged[rng.integers(2100)] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        with contextlib.suppress(ValueError):  # any other error fails
            assert all(array.dtype == np.float32 for array in read_legacy_state_dict(path).values())


def test_refuses_tensors_outside_their_storage(tmp_path):
    whole = (FOLDER / "pnet.pt").read_bytes()
    path = tmp_path / "pnet.pt"
    path.write_bytes(whole.replace(b"M\x0e\x01N", b"M\x0d\x01N", 1))  # conv1's 270 numbers said to be 269
    with pytest.raises(ValueError, match="storage"):
        read_legacy_state_dict(path)


def test_says_what_to_install(monkeypatch):
    monkeypatch.setattr(reader.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match="pip install --no-deps facenet-pytorch"):
        load_weights()
