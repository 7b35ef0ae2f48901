"""The fields of samples that Python code makes: their types, as a user declares them or as the values show them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np

from packer.recipe.encodings import ENCODINGS, LOSSY, picture_codec
from packer.recipe.recipe import DEFAULT_QUALITY, DEFAULT_SUBSAMPLING
from shardspec.errors import SchemaError, UsageError
from shardspec.fields import is_mask_name, is_picture_field
from shardspec.schema import AXES_MAX, DTYPES, NAME, NamedConfig, describe_wrong_classes
from shardspec.wording import did_you_mean, list_some, shorten

LABEL = "label"
"""The field whose texts are the names of classes."""

FieldKind = Literal["array", "class", "blob", "json", "text", "picture"]

_INT64 = np.iinfo(np.int64)
_JOINED = {("<i8", "<f8"): "<f8", ("<f8", "<i8"): "<f8"}


@dataclass(frozen=True)
class Picture:
    """A field of pictures: arrays (H, W, 3) uint8 RGB, or the bytes of encoded pictures.

    Attributes
    ----------
    encode : {'jpeg', 'png', 'webp', 'raw'}
        How arrays are stored. Bytes of a JPEG in a field of JPEGs are kept if a build would keep them; any other bytes
        are decoded and stored in this way.
    quality : int, optional
        Quality of JPEG and WebP, 1 to 100; 95 by default.
    subsampling : {'420', '422', '444'}, optional
        Chroma subsampling of JPEG; 420 by default.

    Raises
    ------
    UsageError
        If a value is invalid, or the encoding does not read it.
    """

    encode: str = "jpeg"
    quality: int | None = None
    subsampling: str | None = None

    def __post_init__(self) -> None:
        if self.encode not in ENCODINGS:
            like = did_you_mean(str(self.encode), ENCODINGS)
            raise UsageError(f"Picture: expected one of {', '.join(ENCODINGS)}, found {shorten(self.encode)}{like}")
        if self.quality is not None:
            if self.encode not in LOSSY:
                raise UsageError(f"Picture: quality is read only with jpeg and webp, found {self.encode}")
            if type(self.quality) is not int or not 1 <= self.quality <= 100:
                raise UsageError(f"Picture: expected a quality of 1 to 100, found {shorten(self.quality)}")
        if self.subsampling is not None:
            if self.encode != "jpeg":
                raise UsageError(f"Picture: subsampling is read only with jpeg, found {self.encode}")
            object.__setattr__(self, "subsampling", str(self.subsampling))
            if self.subsampling not in ("420", "422", "444"):
                raise UsageError(f"Picture: expected subsampling 420, 422 or 444, found {shorten(self.subsampling)}")

    @property
    def codec(self) -> NamedConfig:
        """The codec of the field."""
        quality = DEFAULT_QUALITY if self.quality is None else self.quality
        return picture_codec(self.encode, quality, self.subsampling or DEFAULT_SUBSAMPLING)


@dataclass(frozen=True)
class Array:
    """A field of arrays of one dtype.

    Attributes
    ----------
    dtype : str or dtype
        Booleans, integers of 8 to 64 bits, floats of 16 to 64 bits: ``"f4"``, ``"uint8"``, ``numpy.float32``.
    shape : tuple of (int or None)
        The size of each axis; None where it varies. ``()``, the default, is a single number.

    Raises
    ------
    UsageError
        If no field can have that dtype or shape.
    """

    dtype: Any
    shape: tuple[int | None, ...] = ()

    def __post_init__(self) -> None:
        try:
            dtype = np.dtype(self.dtype).newbyteorder("<").str
        except TypeError:
            dtype = ""
        if dtype not in DTYPES:
            raise UsageError(f"Array: expected a dtype, one of {', '.join(DTYPES)}, found {shorten(self.dtype)}")
        shape = (self.shape,) if isinstance(self.shape, int) else self.shape
        if (
            not isinstance(shape, Sequence)
            or len(shape) > AXES_MAX
            or not all(axis is None or (type(axis) is int and axis >= 0) for axis in shape)
        ):
            raise UsageError(
                f"Array: expected a shape of at most {AXES_MAX} sizes of 0 or more, None where a size varies, "
                f"found {shorten(self.shape)}"
            )
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "shape", tuple(shape))


@dataclass(frozen=True)
class FieldType:
    """What the values of one field are.

    Attributes
    ----------
    kind : {"array", "class", "blob", "json", "text", "picture"}
        *class*: a text that names the sample's class.
    dtype : str
        Of an array.
    shape : tuple of (int or None)
        Of an array; None for an axis whose size is free.
    settled : bool
        Whether `shape` is the field's shape. Otherwise the samples decide which of the free axes vary.
    listed : bool
        Whether the values are lists. ``()`` as the shape of an array then stands for lists that were all empty; a text
        that is listed stands for values that were all None.
    codec : NamedConfig or None
        Of a picture.
    optional : bool
        Whether a value may be None.
    """

    kind: FieldKind
    dtype: str = "|u1"
    shape: tuple[int | None, ...] = ()
    settled: bool = False
    listed: bool = False
    codec: NamedConfig | None = None
    optional: bool = False

    def describe(self) -> str:
        """The type in words, as an error names it."""
        if self.kind == "array" and not self.shape and not self.listed:
            words = {"<i8": "an integer", "<f8": "a number", "|b1": "True or False"}.get(self.dtype)
            return words or f"a number of dtype {self.dtype}"
        if self.kind == "array":
            return f"an array of dtype {self.dtype} and shape {self.shape}"
        return {
            "class": "the name of a class",
            "blob": "bytes",
            "json": "a dict or a list for JSON",
            "text": "text",
            "picture": "a picture, an array uint8 of shape (H, W, 3) or encoded bytes",
        }[self.kind]

    def to_json(self) -> dict[str, Any]:
        """The type as JSON."""
        codec = None if self.codec is None else self.codec.to_json()
        return {**vars(self), "shape": list(self.shape), "codec": codec}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "FieldType":
        """Read what `to_json` made."""
        codec = None if document["codec"] is None else NamedConfig(**document["codec"])
        return cls(**{**document, "shape": tuple(document["shape"]), "codec": codec})


@dataclass(frozen=True)
class Declaration:
    """What a user says of the samples that Python code makes.

    Attributes
    ----------
    fields : dict of str to FieldType or None
        All fields except the key; None if the values show them.
    classes : tuple of str or None
        Class names of the field ``label``; None if its texts are the names.
    picture : NamedConfig
        The codec of pictures of undeclared fields.
    """

    fields: Mapping[str, FieldType] | None = None
    classes: tuple[str, ...] | None = None
    picture: NamedConfig = field(default_factory=lambda: Picture().codec)

    def to_json(self) -> dict[str, Any]:
        """The declaration as JSON."""
        fields = None if self.fields is None else {name: kind.to_json() for name, kind in self.fields.items()}
        classes = None if self.classes is None else list(self.classes)
        return {"fields": fields, "classes": classes, "picture": self.picture.to_json()}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Declaration":
        """Read what `to_json` made."""
        fields, classes = document["fields"], document["classes"]
        return cls(
            None if fields is None else {name: FieldType.from_json(kind) for name, kind in fields.items()},
            None if classes is None else tuple(classes),
            NamedConfig(**document["picture"]),
        )


def declare(fields: Mapping[str, Any] | None, classes: Sequence[str] | None, picture: NamedConfig) -> Declaration:
    """Check what a user declares.

    Parameters
    ----------
    fields : mapping of str to type, optional
        ``bool``, ``int``, ``float``, ``str``, ``bytes``, ``dict``, ``list``, a numpy scalar type, `Picture`, `Array`;
        ``int | None`` where a value may be missing.
    classes : sequence of str, optional
    picture : NamedConfig

    Raises
    ------
    UsageError
        If a name or a type is invalid, or a class is named twice.
    """
    names = None if classes is None else _check_classes(classes)
    if fields is None:
        return Declaration(None, names, picture)
    if not isinstance(fields, Mapping) or not fields:
        raise UsageError(f"fields: expected a dict of names and types, found {shorten(fields)}")
    types: dict[str, FieldType] = {}
    for name, given in fields.items():
        check_name(name, "fields")
        types[name] = _declared_type(name, given)
    for name in [name for name, kind in types.items() if kind.optional]:
        if f"{name}_valid" in types:
            raise UsageError(f"fields: {name!r} may be missing, so that there is a field '{name}_valid': rename yours")
    if names is not None and LABEL not in types:
        raise UsageError(f"classes: expected a field {LABEL!r}, found {list_some(list(types))}")
    if names is not None and types[LABEL].kind != "class" and types[LABEL].dtype[1] not in "iu":
        raise UsageError(f"classes: expected a field {LABEL!r} of int or str, found {types[LABEL].describe()}")
    return Declaration(types, names, picture)


def check_name(name: Any, where: str) -> None:
    """Check the name of a field.

    Raises
    ------
    UsageError
        If it is invalid.
    """
    if not isinstance(name, str) or not NAME.match(name):
        raise UsageError(
            f"{where}: expected names of lower-case letters, digits and underscores, a letter first, "
            f"found {shorten(name)}"
        )
    if name == "key":
        raise UsageError(f"{where}: expected other fields than the key, which every sample has")


def infer(name: str, value: Any, picture: NamedConfig) -> FieldType:
    """The type that a value shows.

    Raises
    ------
    SchemaError
        If no field can hold the value.
    """
    if isinstance(value, bool | np.bool_):
        return FieldType("array", "|b1")
    if isinstance(value, int):
        if not _INT64.min <= value <= _INT64.max:
            raise SchemaError(f"expected an integer of 64 bits, found {shorten(value)}: make it a text")
        return FieldType("array", "<i8")
    if isinstance(value, float) and not isinstance(value, np.generic):
        return FieldType("array", "<f8")
    if isinstance(value, str):
        return FieldType("class" if name == LABEL else "text")
    if isinstance(value, bytes | bytearray | memoryview):
        return _picture_type(name, picture) if is_picture_field(name) else FieldType("blob")
    if isinstance(value, dict):
        return FieldType("json")
    if isinstance(value, list | tuple):
        return _infer_list(value)
    if value is None:
        return FieldType("text", optional=True, listed=True)
    array = as_array(value)
    if is_picture_field(name) and array.dtype == np.uint8 and array.ndim == 3 and array.shape[2] == 3:
        return _picture_type(name, picture)
    return FieldType("array", array.dtype.str, (None,) * array.ndim)


def join(one: FieldType, other: FieldType) -> FieldType | None:
    """The type that holds the values of both; None if there is none."""
    optional = one.optional or other.optional
    for kind, rest in ((one, other), (other, one)):
        if kind.kind == "text" and kind.listed:  # nothing but None so far
            return replace(rest, optional=True)
    one, other = replace(one, optional=optional), replace(other, optional=optional)
    if one == other:
        return one
    as_json = FieldType("json", listed=True, optional=optional)
    if one.listed and other.listed:
        if "json" in (one.kind, other.kind):
            return as_json
        if not one.shape or not other.shape:  # an empty list may be one of any numbers
            return one if one.shape else other
        dtype = one.dtype if one.dtype == other.dtype else _JOINED.get((one.dtype, other.dtype))
        return as_json if dtype is None or one.shape != other.shape else replace(one, dtype=dtype)
    if one.kind == other.kind == "array" and not one.shape and not other.shape and not (one.listed or other.listed):
        dtype = _JOINED.get((one.dtype, other.dtype))
        return None if dtype is None else replace(one, dtype=dtype)
    return None


def settle_empty(kind: FieldType) -> FieldType:
    """The type of a field whose first samples are known: lists that were all empty are JSON."""
    if kind.kind == "text" and kind.listed:
        return replace(kind, listed=False)
    if kind.kind == "array" and kind.listed and not kind.shape:
        return FieldType("json", listed=True, optional=kind.optional)
    return kind


def as_array(value: Any) -> np.ndarray[Any, Any]:
    """A value that is no number, text, list or dict of Python as an array of a dtype that a field may have.

    Raises
    ------
    SchemaError
        If it is not one.
    """
    try:
        array = np.asarray(value)
    except Exception as error:  # of whatever library the value is
        raise SchemaError(
            f"expected a value that numpy reads as an array, found {type(value).__name__}: {error}"
        ) from error
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    if array.dtype.str not in DTYPES:
        raise SchemaError(
            f"expected numbers, texts, bytes, JSON, or arrays of {', '.join(DTYPES)}, "
            f"found {type(value).__name__}{'' if array.dtype == object else f' of dtype {array.dtype}'}"
        )
    return array


def _picture_type(name: str, picture: NamedConfig) -> FieldType:
    """Pictures that may be label maps are never stored with loss."""
    return FieldType("picture", codec=NamedConfig("png") if picture.name in LOSSY and is_mask_name(name) else picture)


def _infer_list(value: Sequence[Any]) -> FieldType:
    """Numbers are an array if the list is rectangular and all of them fit; any other list is JSON."""
    if not value:
        return FieldType("array", "<i8", (), listed=True)
    kinds: set[type] = set()
    shape = _list_shape(value, kinds)
    if shape is None or 0 in shape or len(shape) > AXES_MAX:
        return FieldType("json", listed=True)
    dtype = {
        frozenset((bool,)): "|b1",
        frozenset((int,)): "<i8",
        frozenset((float,)): "<f8",
        frozenset((int, float)): "<f8",
    }.get(frozenset(kinds))
    if dtype is None:
        return FieldType("json", listed=True)
    try:
        np.array(value, dtype)
    except OverflowError:
        return FieldType("json", listed=True)
    return FieldType("array", dtype, (None, *shape[1:]), listed=True)


def _list_shape(value: Any, kinds: set[type]) -> tuple[int, ...] | None:
    """The shape of nested lists, whose leaves' types are collected; None if they are not rectangular."""
    if not isinstance(value, list | tuple):
        kinds.add(type(value))
        return ()
    shapes = {_list_shape(entry, kinds) for entry in value}
    if len(shapes) > 1:
        return None
    tail = shapes.pop() if shapes else ()
    return None if tail is None else (len(value), *tail)


def _check_classes(classes: Any) -> tuple[str, ...]:
    if isinstance(classes, str) or not isinstance(classes, Sequence) or not classes:
        raise UsageError(f"classes: expected a list of names, found {shorten(classes)}")
    wrong = describe_wrong_classes(classes)
    if wrong is not None:
        raise UsageError(f"classes: {wrong}")
    return tuple(classes)


_PLAIN: Mapping[Any, FieldType] = {
    bool: FieldType("array", "|b1", settled=True),
    int: FieldType("array", "<i8", settled=True),
    float: FieldType("array", "<f8", settled=True),
    str: FieldType("text"),
    bytes: FieldType("blob"),
    dict: FieldType("json"),
    list: FieldType("json", listed=True),
}


def _declared_type(name: str, given: Any) -> FieldType:
    """The type that a user declares for a field."""
    if get_origin(given) in (UnionType, Union):
        kinds = [kind for kind in get_args(given) if kind is not NoneType]
        if len(kinds) == 1:
            found = _declared_type(name, kinds[0])
            if found.kind in ("picture", "class"):
                raise UsageError(f"fields: {name!r} must have a value: nothing can stand for a missing one")
            return replace(found, optional=True)
    if given is Picture:
        given = Picture()
    if isinstance(given, Picture):
        return FieldType("picture", codec=given.codec)
    if isinstance(given, type) and issubclass(given, np.generic) and np.dtype(given).str in DTYPES:
        given = Array(given)
    if isinstance(given, np.dtype):
        given = Array(given)
    if isinstance(given, Array):
        return FieldType("array", given.dtype, given.shape, settled=True)
    plain = _PLAIN.get(given) if isinstance(given, type) else None
    if plain is None:
        raise UsageError(
            f"fields: {name!r}: expected bool, int, float, str, bytes, dict, list, packer.Array or packer.Picture, "
            f"found {shorten(given)}"
        )
    return FieldType("class") if plain.kind == "text" and name == LABEL else plain
