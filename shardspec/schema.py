"""Fields and schema: the names, kinds, dtypes, shapes and codecs of a dataset's samples."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, cast
from unicodedata import normalize

import numpy as np

from shardspec.codecs import CODECS, CodecEntry, codecs_of
from shardspec.errors import Problems, SchemaError
from shardspec.wording import did_you_mean, quote_some, shorten

Kind = Literal["fixed", "ragged", "bytes", "text"]

KINDS: tuple[Kind, ...] = ("fixed", "ragged", "bytes", "text")
DTYPES = ("|b1", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8")
"""Every dtype of a field, in NumPy's notation; multi-byte ones are little-endian."""

NO_CLASS = -1
"""Value of a field with class names if the class is unknown."""
AXES_MAX = 32
FIELDS_MAX = 10_000
IMAGE_PIXELS_MAX = 178_956_970
"""Largest number of pixels of an image (537 MB as RGB); Pillow has the same limit."""
VALUE_BYTES_MAX = 2**63 - 1
"""Largest size of a value, so that offsets fit into int64."""

NAME = re.compile(r"[a-z][a-z0-9_]{0,62}\Z")


def class_name(text: str) -> str:
    """Return the name of a class in NFC, the Unicode form in which names are compared and stored.

    ``é`` may be two characters on macOS and one elsewhere; in NFC it is one.
    """
    return text if text.isascii() else normalize("NFC", text)


def describe_spellings(names: Iterable[str]) -> list[str]:
    """Describe each group of names that differ only in their Unicode form."""
    spellings: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        spellings.setdefault(class_name(name), []).append(ascii(name))
    return [
        f"{' and '.join(given)} are one class, {shorten(name)}: they differ only in their Unicode normalisation"
        for name, given in spellings.items()
        if len(given) > 1
    ]


def describe_similar_classes(names: Iterable[str]) -> list[str]:
    """Describe each group of class names that differ only in case or blanks, and so may be one class by intention."""
    similar: dict[str, list[str]] = {}
    for name in names:
        similar.setdefault("".join(name.split()).casefold(), []).append(name)
    return [
        f"the classes {quote_some(group)} differ only in case or blanks: if they are one class, spell them alike"
        for group in similar.values()
        if len(group) > 1
    ]


def is_utf8(text: str) -> bool:
    """Return whether a text can be encoded as UTF-8. Some file names have unpaired surrogates."""
    return text == text.encode("utf-8", "replace").decode()


def describe_wrong_classes(names: Sequence[object]) -> str | None:
    """Describe the problem with a list of classes, or return None if it is valid."""
    strange = [name for name in names if not isinstance(name, str) or not name or not is_utf8(name)]
    if strange or not names:
        return f"expected names of classes, found {shorten(strange[0]) if strange else 'none'}"
    twice = [name for name, count in Counter(class_name(str(name)) for name in names).items() if count > 1]
    return f"expected every class once, found {shorten(twice[0])} twice" if twice else None


@dataclass(frozen=True)
class NamedConfig:
    """A codec in a schema: its name and configuration.

    Attributes
    ----------
    name : str
    configuration : dict
        JSON values only.
    """

    name: str
    configuration: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object ``{"name": ..., "configuration": ...}``."""
        return {"name": self.name, "configuration": dict(self.configuration)}


@dataclass(frozen=True)
class Field:
    """One field of every sample.

    Attributes
    ----------
    name : str
        Lower-case letters, digits and underscores, a letter first, 63 characters at most.
    kind : {"fixed", "ragged", "bytes", "text"}
        *fixed*: the same shape in every sample, including scalars. *ragged*: the first axis varies. *bytes*: encoded
        images, arrays of any shape, blobs. *text*: a string or JSON document.
    dtype : str
        Dtype of the decoded value, one of `DTYPES`. ``"|u1"`` for text and blobs.
    shape : tuple of (int or None)
        Shape of the decoded value; None for an axis that varies.
    codec : NamedConfig
        Codec of one value.
    classes : tuple of str or None
        Class names, if the value is a class index or `NO_CLASS`.
    layout : str or None
        Name of the point layout (`shardspec.points`), if the value is landmarks.
    """

    name: str
    kind: Kind
    dtype: str
    shape: tuple[int | None, ...]
    codec: NamedConfig = NamedConfig("raw")
    classes: tuple[str, ...] | None = None
    layout: str | None = None

    def __post_init__(self) -> None:
        problems = Problems()
        self.check(problems)
        problems.raise_as(SchemaError, f"field {self.name!r}")

    def check(self, problems: Problems) -> None:
        """Add every rule that the field breaks to `problems`."""
        if not NAME.match(self.name):
            problems.add("name", expected="[a-z][a-z0-9_]*, at most 63 characters", found=f"{self.name!r}")
        if self.kind not in KINDS:
            problems.add("kind", expected=f"one of {', '.join(KINDS)}", found=f"{self.kind!r}")
            return
        if self.dtype not in DTYPES:
            problems.add("dtype", expected=f"one of {', '.join(DTYPES)}", found=f"{self.dtype!r}")
        if self.codec_entry is None or self.kind not in self.codec_entry.kinds:
            expected = f"one of {', '.join(codecs_of(self.kind))} for kind {self.kind}"
            problems.add("codec", expected=expected, found=f"{self.codec.name!r}")
        varying = [axis is None for axis in self.shape]
        if any(axis is not None and axis < 0 for axis in self.shape):
            problems.add("shape", expected="sizes of 0 and more", found=self.shape)
        if self.kind == "fixed" and any(varying):
            problems.add("shape", expected="no varying axis for kind fixed", found=self.shape)
        if self.kind == "ragged" and (not varying or not varying[0] or any(varying[1:])):
            problems.add("shape", expected="the first axis, and only it, to vary for kind ragged", found=self.shape)
        if self.kind == "text" and self.shape != (None,):
            problems.add("shape", expected="[null] for kind text", found=self.shape)
        known = [axis for axis in self.shape if axis is not None]
        if len(self.shape) > AXES_MAX:
            problems.add("shape", expected=f"at most {AXES_MAX} axes", found=len(self.shape))
        elif self.dtype in DTYPES and math.prod(known) * np.dtype(self.dtype).itemsize > VALUE_BYTES_MAX:
            problems.add("shape", expected=f"a value of at most {VALUE_BYTES_MAX} bytes", found=self.shape)
        if self.is_encoded_image and not self.is_image:
            problems.add(
                "codec",
                expected=f"dtype |u1 and shape (H, W, 3) for codec {self.codec.name}",
                found=f"{self.dtype} {self.shape}",
            )
        if self.is_encoded_video and not self.is_video:
            problems.add(
                "codec",
                expected=f"dtype |u1 and shape (T, H, W, 3) for codec {self.codec.name}",
                found=f"{self.dtype} {self.shape}",
            )
        if self.is_encoded_image and self.is_image and math.prod(known) > 3 * IMAGE_PIXELS_MAX:
            problems.add("shape", expected=f"an image of at most {IMAGE_PIXELS_MAX} pixels", found=self.shape)
        if self.classes is not None and (self.kind != "fixed" or self.shape != () or self.dtype[1:2] not in ("i", "u")):
            problems.add("classes", expected="class names only for a 0-d integer field")
        strange = [name for name in self.classes or () if not is_utf8(name)]
        if strange:
            problems.add("classes", expected="names that can be encoded as UTF-8", found=shorten(strange[0]))

    @cached_property
    def codec_entry(self) -> CodecEntry | None:
        """The codec's entry in the table of codecs, looked up once; None if the table has none."""
        return CODECS.get(self.codec.name)

    @property
    def is_fixed(self) -> bool:
        """True if every value has the same size, so that a batch is one array."""
        return self.kind == "fixed"

    @property
    def is_scalar(self) -> bool:
        """True if every value is a single number or boolean."""
        return self.is_fixed and not self.shape

    @property
    def is_small(self) -> bool:
        """True if every value is a single number, boolean or string."""
        return self.is_scalar or (self.kind == "text" and self.codec.name == "utf8")

    @property
    def is_image(self) -> bool:
        """True if the decoded value is an image, (H, W, 3) uint8 RGB."""
        return self.dtype == "|u1" and len(self.shape) == 3 and self.shape[2] == 3

    @property
    def is_encoded_image(self) -> bool:
        """True if the codec encodes images only, so that the stored bytes are those of an image file."""
        return self.codec_entry is not None and self.codec_entry.image is not None

    @property
    def is_video(self) -> bool:
        """True if the decoded value is a video, (T, H, W, 3) uint8 RGB."""
        return self.dtype == "|u1" and len(self.shape) == 4 and self.shape[3] == 3

    @property
    def is_encoded_video(self) -> bool:
        """True if the codec encodes videos only, so that the stored bytes are those of a video file."""
        return self.codec_entry is not None and self.codec_entry.video is not None

    @property
    def in_time(self) -> bool:
        """True if every value has one entry for each frame of the sample's videos, and is no video."""
        return bool(self.codec.configuration.get("time"))

    @property
    def sentinel(self) -> int:
        """Number stored for a missing value of a fixed field: `NO_CLASS` for a label or class, otherwise 0."""
        is_class = self.classes is not None or (self.name == "label" and self.is_scalar and self.dtype[1] == "i")
        return NO_CLASS if is_class else 0

    @cached_property
    def numpy_dtype(self) -> np.dtype[Any]:
        """Dtype of the decoded value."""
        return np.dtype(self.dtype)

    @cached_property
    def fixed_shape(self) -> tuple[int, ...]:
        """Shape of a fixed field, or the shape after the first axis of a ragged field."""
        axes = self.shape[1:] if self.kind == "ragged" else self.shape
        if any(axis is None for axis in axes) or self.kind not in ("fixed", "ragged"):
            raise SchemaError(f"kind {self.kind} has no fixed shape, found {self.shape}", place=f"field {self.name!r}")
        return cast("tuple[int, ...]", axes)

    @cached_property
    def row_bytes(self) -> int:
        """Size of one value of a fixed field, or of one row of a ragged value, in bytes."""
        return math.prod(self.fixed_shape) * self.numpy_dtype.itemsize

    @cached_property
    def least_bits(self) -> int:
        """Smallest size of a value in any format, in bits."""
        sizes = [axis for axis in self.shape if axis is not None]
        bits = math.prod(sizes) * (1 if self.dtype == "|b1" else 8 * self.numpy_dtype.itemsize)
        if self.is_fixed:
            return bits
        if self.kind == "ragged":
            return 0
        return 32 + (bits if self.codec.name == "raw" and len(sizes) == len(self.shape) else 0)

    def to_json(self) -> dict[str, Any]:
        """Return the field as a JSON object, with `classes` and `layout` only if they are set."""
        out: dict[str, Any] = {
            "name": self.name,
            "kind": self.kind,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "codec": self.codec.to_json(),
        }
        if self.classes is not None:
            out["classes"] = list(self.classes)
        if self.layout is not None:
            out["layout"] = self.layout
        return out

    @classmethod
    def from_json(cls, document: Any, problems: Problems) -> "Field | None":
        """Read a field, or add its problems to `problems` and return None."""
        expected = {"name": str, "kind": str, "dtype": str, "shape": list, "codec": dict}
        if not problems.check_keys(document, expected, optional={"classes": list, "layout": str}):
            return None
        codec = document["codec"]
        with problems.at("codec"):
            if not problems.check_keys(codec, {"name": str, "configuration": dict}):
                return None
        if not all(axis is None or (type(axis) is int) for axis in document["shape"]):
            problems.add("shape", expected="integers or null", found=document["shape"])
            return None
        classes = document.get("classes")
        if classes is not None and not all(isinstance(name, str) for name in classes):
            problems.add("classes", expected="strings")
            return None
        try:
            return cls(
                name=document["name"],
                kind=document["kind"],
                dtype=document["dtype"],
                shape=tuple(document["shape"]),
                codec=NamedConfig(codec["name"], codec["configuration"]),
                classes=None if classes is None else tuple(classes),
                layout=document.get("layout"),
            )
        except SchemaError as error:
            problems.add("", str(error))
            return None


@dataclass(frozen=True)
class Schema:
    """All fields of a dataset, in order. Iteration yields the fields; ``schema["image"]`` returns one.

    Attributes
    ----------
    fields : tuple of Field
        At least one; names are unique.
    """

    fields: tuple[Field, ...]

    def __post_init__(self) -> None:
        if len(self.fields) > FIELDS_MAX:
            raise SchemaError(expected=f"at most {FIELDS_MAX} fields", found=len(self.fields))
        counts = Counter(f.name for f in self.fields)
        doubled = sorted(name for name, count in counts.items() if count > 1)
        if doubled:
            raise SchemaError(expected="every field name once", found="more than once", hint=", ".join(doubled))

    @cached_property
    def by_name(self) -> Mapping[str, Field]:
        """Fields by name."""
        return {f.name: f for f in self.fields}

    @property
    def names(self) -> tuple[str, ...]:
        """Field names, in order."""
        return tuple(f.name for f in self.fields)

    def __iter__(self) -> Iterator[Field]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def __contains__(self, name: object) -> bool:
        return name in self.by_name

    def __getitem__(self, name: str) -> Field:
        try:
            return self.by_name[name]
        except KeyError:
            like = did_you_mean(name, self.names)
            raise SchemaError(
                f"the dataset has {', '.join(self.names)}{like}", place=f"there is no field {shorten(name)}"
            ) from None

    @property
    def holds_tracks(self) -> bool:
        """True if every sample has the frames of a track or video, and not a single one."""
        return "frame" in self and any(field.in_time for field in self)

    def validity(self, name: str) -> str | None:
        """Return the field ``<name>_valid``, which is false for missing values; None if values are never missing."""
        found = self.by_name.get(f"{name}_valid")
        return found.name if found is not None and found.is_scalar and found.dtype == "|b1" else None

    def select(self, names: tuple[str, ...] | list[str] | None) -> "Schema":
        """Return the schema of the named fields, in the order of `names`; of all fields for None."""
        return self if names is None else Schema(tuple(self[name] for name in names))

    def to_json(self) -> dict[str, Any]:
        """Return the schema as a JSON object."""
        return {"fields": [f.to_json() for f in self.fields]}

    @classmethod
    def from_json(cls, document: Any, problems: Problems) -> "Schema | None":
        """Read a schema, or add its problems to `problems` and return None."""
        if not problems.check_keys(document, {"fields": list}):
            return None
        if not document["fields"]:
            problems.add("fields", expected="at least one field", found="none")
        fields = []
        if len(document["fields"]) > FIELDS_MAX:
            problems.add("fields", expected=f"at most {FIELDS_MAX} fields", found=len(document["fields"]))
            return None
        for position, entry in enumerate(document["fields"]):
            with problems.at(f"fields[{position}]"):
                fields.append(Field.from_json(entry, problems))
        if problems or any(f is None for f in fields):
            return None
        try:
            return cls(tuple(f for f in fields if f is not None))
        except SchemaError as error:
            problems.add("fields", str(error))
            return None
