"""The header of a ``.npy`` file, which the npy format and the index use."""

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
