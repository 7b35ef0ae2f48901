"""Declaration of the fields of samples made by Python code."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import numpy as np

from packer.recipe.parsing import ENCODINGS, codec_of_encoding, encodings_with
from packer.recipe.recipe import DEFAULT_QUALITY, DEFAULT_SUBSAMPLING
from shardspec.errors import UsageError
from shardspec.schema import AXES_MAX, DTYPES, NAME, NO_CLASS, NamedConfig, class_name, describe_wrong_classes
from shardspec.typing.field_types import LABEL, FieldType
from shardspec.wording import did_you_mean, list_some, shorten


@dataclass(frozen=True)
class Image:
    """A field of images: arrays (H, W, 3) uint8 RGB, or the bytes of encoded images.

    Attributes
    ----------
    encode : {'jpeg', 'png', 'webp', 'webp-lossless', 'raw'}
        Encoding of arrays. Bytes of a JPEG in a field of JPEGs are kept if a build would keep them; other bytes are
        decoded and encoded again.
    quality : int, optional
        Quality of JPEG and WebP, 1 to 100 (default: 95).
    subsampling : {'420', '422', '444'}, optional
        Chroma subsampling of JPEG (default: 420).

    Raises
    ------
    UsageError
        If a value is invalid, or does not apply to the encoding.
    """

    encode: str = "jpeg"
    quality: int | None = None
    subsampling: str | None = None

    def __post_init__(self) -> None:
        if self.encode not in ENCODINGS:
            like = did_you_mean(str(self.encode), ENCODINGS)
            raise UsageError(
                place="Image", expected=f"one of {', '.join(ENCODINGS)}", found=f"{shorten(self.encode)}{like}"
            )
        if self.quality is not None:
            self._check_reads("quality")
            if type(self.quality) is not int or not 1 <= self.quality <= 100:
                raise UsageError(place="Image", expected="a quality of 1 to 100", found=shorten(self.quality))
        if self.subsampling is not None:
            self._check_reads("subsampling")
            object.__setattr__(self, "subsampling", str(self.subsampling))
            if self.subsampling not in ("420", "422", "444"):
                raise UsageError(place="Image", expected="subsampling 420, 422 or 444", found=shorten(self.subsampling))

    @property
    def codec(self) -> NamedConfig:
        """Codec of the field."""
        quality = DEFAULT_QUALITY if self.quality is None else self.quality
        return codec_of_encoding(self.encode, quality=quality, subsampling=self.subsampling or DEFAULT_SUBSAMPLING)

    def _check_reads(self, option: str) -> None:
        readers = encodings_with(option)
        if self.encode not in readers:
            raise UsageError(f"{option} is read only with {' and '.join(readers)}, found {self.encode}", place="Image")


@dataclass(frozen=True)
class Array:
    """A field of arrays of one dtype.

    Attributes
    ----------
    dtype : str or dtype
        Booleans, integers of 8 to 64 bits, or floats of 16 to 64 bits: ``"f4"``, ``"uint8"``, ``numpy.float32``.
    shape : tuple of (int or None)
        Size of each axis; None if it varies. ``()``, the default, is a single number.

    Raises
    ------
    UsageError
        If the dtype or shape is not supported.
    """

    dtype: Any
    shape: tuple[int | None, ...] = ()

    def __post_init__(self) -> None:
        try:
            dtype = np.dtype(self.dtype).newbyteorder("<").str
        except TypeError:
            dtype = ""
        if dtype not in DTYPES:
            raise UsageError(place="Array", expected=f"a dtype, one of {', '.join(DTYPES)}", found=shorten(self.dtype))
        shape = (self.shape,) if isinstance(self.shape, int) else self.shape
        if (
            not isinstance(shape, Sequence)
            or len(shape) > AXES_MAX
            or not all(axis is None or (type(axis) is int and axis >= 0) for axis in shape)
        ):
            raise UsageError(
                place="Array",
                expected=f"a shape of at most {AXES_MAX} sizes of 0 or more, None where a size varies",
                found=shorten(self.shape),
            )
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "shape", tuple(shape))


@dataclass(frozen=True)
class Declaration:
    """Declared fields of samples.

    Attributes
    ----------
    fields : dict of str to FieldType or None
        All fields except the key; None to infer them from the values.
    classes : tuple of str or None
        Class names of the field ``label``; None to infer them from its texts.
    image : NamedConfig
        Codec of images in undeclared fields.
    """

    fields: Mapping[str, FieldType] | None = None
    classes: tuple[str, ...] | None = None
    image: NamedConfig = field(default_factory=lambda: Image().codec)

    def to_json(self) -> dict[str, Any]:
        """Return the declaration as JSON."""
        fields = None if self.fields is None else {name: kind.to_json() for name, kind in self.fields.items()}
        classes = None if self.classes is None else list(self.classes)
        return {"fields": fields, "classes": classes, "image": self.image.to_json()}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Declaration":
        """Read the JSON of `to_json`."""
        fields, classes = document["fields"], document["classes"]
        return cls(
            None if fields is None else {name: FieldType.from_json(kind) for name, kind in fields.items()},
            None if classes is None else tuple(classes),
            NamedConfig(**document["image"]),
        )


def declare(fields: Mapping[str, Any] | None, classes: Sequence[str] | None, image: NamedConfig) -> Declaration:
    """Check a user's declaration.

    Parameters
    ----------
    fields : mapping of str to type, optional
        ``bool``, ``int``, ``float``, ``str``, ``bytes``, ``dict``, ``list``, a NumPy scalar type, `Image`, `Array`;
        ``int | None`` if a value may be missing.

    Raises
    ------
    UsageError
        If a name or type is invalid, or a class is repeated.
    """
    names = None if classes is None else _check_classes(classes)
    if fields is None:
        return Declaration(None, names, image)
    if not isinstance(fields, Mapping) or not fields:
        raise UsageError(option="fields", expected="a dict of names and types", found=shorten(fields))
    types: dict[str, FieldType] = {}
    for name, given in fields.items():
        check_name(name, "fields")
        types[name] = _declared_type(name, given)
    for name in [name for name, kind in types.items() if kind.optional]:
        if f"{name}_valid" in types:
            raise UsageError(
                f"{name!r} may be missing, so that there is a field '{name}_valid'",
                option="fields",
                hint="rename yours",
            )
    if LABEL in types:
        check_label(types[LABEL])
    if names is not None and LABEL not in types:
        raise UsageError(option="classes", expected=f"a field {LABEL!r}", found=list_some(list(types)))
    if names is not None and types[LABEL].kind != "class" and types[LABEL].dtype[1] not in "iu":
        raise UsageError(option="classes", expected=f"a field {LABEL!r} of int or str", found=types[LABEL].describe())
    return Declaration(types, names, image)


def check_label(kind: FieldType) -> None:
    """Raise `UsageError` if labels may be missing but are unsigned integers, which cannot be -1."""
    if kind.optional and kind.kind == "array" and not kind.shape and kind.dtype[1] == "u":
        raise UsageError(
            f"{LABEL!r} has unsigned integers ({kind.dtype}), but {NO_CLASS} means a missing label",
            hint="use signed ones",
        )


def check_name(name: Any, where: str) -> None:
    """Raise `UsageError` if the name of a field is invalid."""
    if not isinstance(name, str) or not NAME.match(name):
        raise UsageError(
            place=where,
            expected="names of lower-case letters, digits and underscores, a letter first",
            found=shorten(name),
        )
    if name == "key":
        raise UsageError(place=where, expected="other fields than the key, which every sample has")


def _check_classes(classes: Any) -> tuple[str, ...]:
    if isinstance(classes, str) or not isinstance(classes, Sequence) or not classes:
        raise UsageError(option="classes", expected="a list of names", found=shorten(classes))
    wrong = describe_wrong_classes(classes)
    if wrong is not None:
        raise UsageError(wrong, option="classes")
    return tuple(map(class_name, classes))


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
    if get_origin(given) in (UnionType, Union):
        kinds = [kind for kind in get_args(given) if kind is not NoneType]
        if len(kinds) == 1:
            found = _declared_type(name, kinds[0])
            if found.kind in ("image", "class"):
                raise UsageError(
                    "images and class names cannot be missing", option="fields", place=f"{name!r} must have a value"
                )
            return replace(found, optional=True)
    if given is Image:
        given = Image()
    if isinstance(given, Image):
        return FieldType("image", codec=given.codec)
    if isinstance(given, type) and issubclass(given, np.generic) and np.dtype(given).str in DTYPES:
        given = Array(given)
    if isinstance(given, np.dtype):
        given = Array(given)
    if isinstance(given, Array):
        return FieldType("array", given.dtype, given.shape, settled=True)
    plain = _PLAIN.get(given) if isinstance(given, type) else None
    if plain is None:
        raise UsageError(
            option="fields",
            place=f"{name!r}",
            expected="bool, int, float, str, bytes, dict, list, packer.Array or packer.Image",
            found=shorten(given),
        )
    return FieldType("class") if plain.kind == "text" and name == LABEL else plain
