"""Read the weights of the three networks from the installed facenet-pytorch distribution.

facenet-pytorch 2.5.x contains ``pnet.pt``, ``rnet.pt`` and ``onet.pt`` in the format that ``torch.save`` wrote before
torch 1.6: four pickles (magic number, protocol, system, state dict), a pickled list of storage keys, and for each
storage an element count and the raw little-endian numbers. This can be read without torch, whose import costs every
worker process seconds and half a gigabyte that the OpenVINO runtime does not need. The unpickler below knows three
names (an ordered dict, the tensor constructor, the float storage), all resolved to functions of this file or the
standard library, and refuses every other one. It is stricter than ``torch.load(..., weights_only=True)``, and a test
checks that both give the same numbers.
"""

import hashlib
import importlib.metadata
import importlib.util
import pickle
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardspec.errors import MissingDependencyError

FloatArray = npt.NDArray[np.float32]

_MAGIC = 0x1950A86A20F9469CFC6C  # torch/serialization.py: MAGIC_NUMBER
_PROTOCOL = 1001  # torch/serialization.py: PROTOCOL_VERSION
_MAX_FILE_BYTES = 64 << 20  # the largest real file has 1.6 MB
_INSTALL = "install it with `pip install --no-deps facenet-pytorch==2.5.3`"


@dataclass(frozen=True, slots=True)
class Weights:
    """The parameters of P-, R- and O-net as in the files.

    Attributes
    ----------
    nets : dict of str to dict of str to ndarray, float32
        ``nets["pnet"]["conv1.weight"]`` and so on, with the names of the published state dicts.
    declared : dict of str to str
        ``name``: the distribution and its version, such as ``"facenet-pytorch 2.5.3"``; ``sha256`` over the three
        files; ``license``.
    """

    nets: dict[str, dict[str, FloatArray]]
    declared: dict[str, str]


def load_weights() -> Weights:
    """Read the three networks from the installed facenet-pytorch, without importing it.

    Raises
    ------
    MissingDependencyError
        If facenet-pytorch or one of its weight files is missing.
    ValueError
        If a weight file differs from those of facenet-pytorch.
    """
    nets, digest = {}, hashlib.sha256()
    for path in _find_weights():
        nets[path.stem] = read_legacy_state_dict(path)
        digest.update(path.read_bytes())
    name = f"facenet-pytorch {importlib.metadata.version('facenet-pytorch')}"
    return Weights(nets, {"name": name, "sha256": digest.hexdigest(), "license": "MIT"})


def _find_weights() -> list[Path]:
    spec = importlib.util.find_spec("facenet_pytorch")  # finds a top-level package without running it
    if spec is None or not spec.submodule_search_locations:
        raise MissingDependencyError(
            f"the detector's weights come with facenet-pytorch, which is not installed; {_INSTALL}"
        )
    paths = [Path(spec.submodule_search_locations[0]) / "data" / f"{name}.pt" for name in ("pnet", "rnet", "onet")]
    for path in paths:
        if not path.is_file():
            raise MissingDependencyError(
                expected=f"the detector's weights in {path}", found=f"no such file; {_INSTALL}"
            )
    return paths


def read_legacy_state_dict(path: Path) -> dict[str, FloatArray]:
    """Read a state dict of float32 tensors in torch's format before 1.6, without torch. The order is the file's.

    Raises
    ------
    ValueError
        If the file has another format, names anything but float tensors, or is truncated.
    """
    if path.stat().st_size > _MAX_FILE_BYTES:
        raise ValueError(f"{path}: expected at most {_MAX_FILE_BYTES} bytes of weights, found {path.stat().st_size}")
    try:
        with path.open("rb") as file:
            return _read(file)
    except Exception as error:  # a damaged pickle can raise anything
        raise ValueError(
            f"{path}: expected a state dict of float32 tensors in torch's legacy format, found {error}; {_INSTALL}"
        ) from error


class _Unpickler(pickle.Unpickler):
    """Builds ordered dicts of `_Tensor`, and nothing else. `storages` gets the size of each storage by key."""

    def __init__(self, file: IO[bytes], storages: dict[str, int]) -> None:
        super().__init__(file)
        self._storages = storages

    def find_class(self, module: str, name: str) -> Any:
        known: dict[tuple[str, str], Callable[..., Any] | str] = {
            ("collections", "OrderedDict"): OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2"): lambda *arguments: _Tensor(*arguments[:4]),
            ("torch", "FloatStorage"): "float32",
        }
        if (module, name) not in known:
            raise pickle.UnpicklingError(f"the name {module}.{name}, which is not loaded")
        return known[module, name]

    def persistent_load(self, pid: Any) -> str:
        kind, dtype, key, _location, size, view = pid
        if (kind, dtype, view) != ("storage", "float32", None) or not isinstance(size, int) or size < 0:
            raise pickle.UnpicklingError(f"the storage {pid!r}")
        self._storages[key] = size
        return str(key)


class _Tensor(NamedTuple):
    """The key of a tensor's storage, and its place in it, counted in numbers."""

    storage: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _read(file: IO[bytes]) -> dict[str, FloatArray]:
    storages: dict[str, int] = {}
    header = [_Unpickler(file, storages).load() for _ in range(3)]
    if header[:2] != [_MAGIC, _PROTOCOL] or not header[2].get("little_endian"):
        raise ValueError(f"the header {header!r}")
    tensors = _Unpickler(file, storages).load()
    numbers = {}
    for key in _Unpickler(file, storages).load():
        size, raw = int.from_bytes(file.read(8), "little"), file.read(4 * storages[key])
        if size != storages[key] or len(raw) != 4 * size:
            raise ValueError(f"{min(size, len(raw) // 4)} numbers in storage {key} in place of {storages[key]}")
        numbers[key] = np.frombuffer(raw, "<f4").astype(np.float32)
    return {name: _array(name, tensor, numbers[tensor.storage]) for name, tensor in tensors.items()}


def _array(name: str, tensor: _Tensor, storage: FloatArray) -> FloatArray:
    numbers = (tensor.offset, *tensor.shape, *tensor.strides)
    last = tensor.offset + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.strides, strict=True))
    if not all(isinstance(n, int) and n >= 0 for n in numbers) or 0 in tensor.shape or last >= storage.size:
        raise ValueError(f"tensor {name} reaching outside its storage: {numbers} in {storage.size} numbers")
    view = np.lib.stride_tricks.as_strided(storage[tensor.offset :], tensor.shape, [4 * s for s in tensor.strides])
    return np.array(view, np.float32, order="C")
