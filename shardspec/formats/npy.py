"""Files of a field in the npy format, and the header of a ``.npy`` file."""

from shardspec.schema import Field

_ALIGN = 64
_MAGIC = b"\x93NUMPY\x01\x00"


def npy_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Return magic bytes and header, version 1.0, of an array in C order, independently of any library's version.

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
    """Return the sorted names of a field's files: its values and, if their size varies, their offsets."""
    if field.is_fixed:
        return (f"{field.name}.npy",)
    values = f"{field.name}.npy" if field.kind == "ragged" else f"{field.name}.bin"
    return tuple(sorted((values, f"{field.name}.offsets.npy")))
