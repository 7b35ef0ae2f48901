"""The files of a field in the npy format, and the header of a ``.npy`` file, which the index has too."""

from shardspec.schema import Field

_ALIGN = 64
_MAGIC = b"\x93NUMPY\x01\x00"


def npy_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Magic and header, version 1.0, of an array in C order. The bytes do not depend on the version of any library.

    https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html

    Parameters
    ----------
    dtype : str
        With its byte order: ``"<f4"``, ``"|u1"``.
    """
    text = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    padding = -(len(_MAGIC) + 2 + len(text) + 1) % _ALIGN
    body = (text + " " * padding + "\n").encode("ascii")
    return _MAGIC + len(body).to_bytes(2, "little") + body


def npy_files(field: Field) -> tuple[str, ...]:
    """The names of a field's files, sorted: its values, and where those of each row begin, if that varies."""
    if field.is_fixed:
        return (f"{field.name}.npy",)
    values = f"{field.name}.npy" if field.kind == "ragged" else f"{field.name}.bin"
    return tuple(sorted((values, f"{field.name}.offsets.npy")))
