"""Read rows as values: fixed fields are copied into the batch, and images decoded into their place in it."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np

from readers.decode.plans import DecodePlan, sides_of
from readers.decode.values import JOINED, BatchLayout, ValueLayout, layout_of_field
from readers.formats.pool import ShardPool
from readers.order.order import SampledRows
from readers.seeding import mix_words, sample_rngs
from shardspec.codecs import codec_for
from shardspec.codecs.base import Codec
from shardspec.columns import Columns, IntArray
from shardspec.errors import CodecError, UsageError
from shardspec.fields import PIXEL_AXES, is_mask_name
from shardspec.schema import Field, Schema
from shardspec.wording import shorten

_PLAN_TAG = 0x706C616E  # makes a plan's draws differ from the transform's
_NUMBERS = {"matrix": 3, **{name: len(axes) for name, axes in PIXEL_AXES.items()}}
"""Number of columns, k, of each field (n, k) in pixels of ``image``, and of the matrix from the frame to these pixels."""


class Decoding:
    """Reads the chosen fields of a pool's rows as values. Thread-safe, and can be pickled.

    Parameters
    ----------
    pool : ShardPool
    schema : Schema
        The fields to read.
    plans : dict of str to DecodePlan
        Plans of image fields. Masks without a plan get that of ``image``.

    Raises
    ------
    UsageError
        If a plan is invalid, is for a field that is not an image, or misaligns other fields (`check_alignment`).
    """

    def __init__(self, pool: ShardPool, schema: Schema, plans: Mapping[str, DecodePlan]) -> None:
        self.pool = pool
        self.schema = schema
        if not isinstance(plans, Mapping):
            raise UsageError(
                option="decode", expected="a dict such as {'image': CenterCrop(224)}", found=shorten(plans)
            )
        for name, plan in plans.items():
            if isinstance(plan, type) or not isinstance(plan, DecodePlan):
                raise UsageError(
                    option="decode", expected=f"a plan for {name!r}, such as CenterCrop(224)", found=shorten(plan)
                )
            if name in schema and schema[name].is_encoded_video and not getattr(plan, "of_videos", False):
                raise UsageError(
                    option="decode",
                    expected=f"a plan of videos for {name!r}, TemporalCrop or Frames",
                    found=shorten(plan),
                    hint="crop frames by a transform, in ds.clips(16, transform=…)",
                )
            if name not in schema or not (schema[name].is_image or schema[name].is_encoded_video):
                images = ", ".join(f.name for f in schema if f.is_image or f.is_encoded_video) or "none"
                raise UsageError(option="decode", expected=f"the names of image fields ({images})", found=f"{name!r}")
            plan.layout(schema[name])  # a plan may refuse the field
        self.plans = _with_masks(schema, plans)
        check_alignment(schema, self.plans)
        check_times(schema, self.plans)
        self._masks = _masks_with_plans(schema, self.plans)
        self._fixed = tuple(f for f in schema if f.is_fixed and f.name not in self.plans)
        self._encoded = tuple(f for f in schema if not f.is_fixed)
        self._planned_raw = tuple(f for f in schema if f.is_fixed and f.name in self.plans)
        self._codecs: dict[str, Codec] = {f.name: codec_for(f) for f in self._encoded}
        self.layout: BatchLayout = {f.name: self._layout_of(f) for f in schema}

    def _layout_of(self, field: Field) -> ValueLayout:
        plan = self.plans.get(field.name)
        return layout_of_field(field) if plan is None else plan.layout(field)

    def read_into(self, picks: SampledRows, out: Columns, at: IntArray) -> None:
        """Read and decode rows, row i into place ``at[i]`` of a batch.

        Raises
        ------
        CodecError
            If a value does not decode. The message gives its key, row and shard. Any other error about a single sample,
            for example from your own plan, has them as a note.
        """
        local = np.arange(len(picks))
        fixed: Columns = {f.name: out[f.name] for f in self._fixed}
        encoded: Columns = {f.name: [b""] * len(picks) for f in self._encoded}
        # One read if both groups go to the same places. Transforms take a few samples at a time, so a read counts.
        groups = [fixed | encoded] if np.array_equal(at, local) else [fixed, encoded]
        for group in groups:
            if group:
                self.pool.read(picks.rows, list(group), group, at if group is fixed else local)
        stored = dict(encoded)
        for field in self._planned_raw:
            stored[field.name] = column = np.empty((len(picks), *field.fixed_shape), field.numpy_dtype)
            self.pool.read(picks.rows, [field.name], {field.name: column}, local)
        for field in (*self._planned_raw, *self._encoded):
            images = stored["image"] if field.name in self._masks else None
            self._decode_column(field, stored[field.name], picks, out[field.name], at, images)

    def _decode_column(
        self, field: Field, column: Any, picks: SampledRows, out: Any, at: IntArray, images: Any = None
    ) -> None:
        """Decode a field of all rows. If the field is a mask, `images` are the images of its samples."""
        plan = self.plans.get(field.name)
        codec = self._codecs.get(field.name)
        stacked = isinstance(out, np.ndarray)
        i = 0
        try:
            if plan is not None:
                rngs = _plan_rngs(picks) if plan.random else [None] * len(picks)
                for i, (place, rng) in enumerate(zip(at.tolist(), rngs, strict=True)):
                    into = out[place] if stacked else None
                    if images is None:
                        image = plan.decode(column[i], field, codec, rng, into)
                    else:
                        sides, of_mask = sides_of(images[i], self._codecs.get("image")), cast("Any", plan)
                        image = of_mask.decode_mask(column[i], field, codec, rng, into, sides)
                    if not stacked:
                        out[place] = owned(image)
            elif codec is not None and stacked:
                decode = codec.decode
                for i, place in enumerate(at.tolist()):
                    decode(column[i], out[place])
            elif codec is not None:
                for i, place in enumerate(at.tolist()):
                    out[place] = owned(codec.decode(column[i]))
        except CodecError as error:
            # Part of the message, because logs and most code that forwards errors drop notes.
            raise CodecError(f"{error}; {self.describe(int(picks.rows[i]))}") from error
        except Exception as error:
            error.add_note(self.describe(int(picks.rows[i])))
            raise

    def describe(self, row: int) -> str:
        """Return the key and the place of a row, for messages."""
        place = self.pool.describe(row)
        if "key" not in self.pool.schema:
            return f"sample: {place}"
        key: Columns = {"key": [b""]}
        try:
            self.pool.read(np.array([row]), ["key"], key, np.zeros(1, np.int64))
        except Exception as error:  # must not hide the error that is described
            return f"sample: {place}; its key cannot be read: {error}"
        return f"sample: key {bytes(key['key'][0]).decode(errors='replace')!r}, {place}"


def _plan_rngs(picks: SampledRows) -> list[np.random.Generator]:
    keys = picks.rows if picks.keys is None else picks.keys
    seeds = picks.seeds.tolist()
    mixed = {seed: mix_words(seed, _PLAN_TAG) for seed in set(seeds)}  # usually one
    return sample_rngs(np.array([mixed[seed] for seed in seeds], np.uint64), picks.epoch, keys)


def owned(value: Any) -> Any:
    """Return a value that outlives the shard and may be changed. Views of a reader's memory are copied."""
    return value.copy() if isinstance(value, np.ndarray) and not value.flags.owndata else value


def check_alignment(schema: Schema, plans: Mapping[str, DecodePlan]) -> None:
    """Refuse fields that would not match ``image`` as it is decoded.

    Geometry (``landmarks``, ``hull``, ``regions``, ``matrix``, and fields with a point layout) refers to the stored image.
    Masks (``mask``, ``*_mask``, ``*_image``) match it pixel by pixel, and still do if their plan takes the same part,
    because random plans draw alike for all fields of a sample.

    Parameters
    ----------
    schema : Schema
        The fields that are read.
    plans : dict of str to DecodePlan

    Raises
    ------
    UsageError
        If there is such a field. The message names it and the alternatives.
    """
    if "image" not in schema:
        return
    plan = plans.get("image")
    geometry = [field.name for field in schema if _is_geometry(field)] if _moves(plan) else []
    masks = [name for name in _masks(schema) if not _alike(plan, plans.get(name))]
    if not geometry and not masks:
        return
    planned = ", ".join(f"{name!r}: {plans[name]}" for name in ("image", *masks) if name in plans)
    raise UsageError(
        option="decode",
        expected="no fields in pixels of the stored image together with a plan that crops, resizes or flips it",
        found=f"{', '.join([*geometry, *masks])} with {{{planned}}}",
        hint="leave them out by fields=, or leave out the plan and use a transform of readers.augment, such as CropJitter "
        "or HorizontalFlip, which moves them too"
        + (f"; or give the same plan to image and {', '.join(masks)}" if masks else ""),
    )


def check_times(schema: Schema, plans: Mapping[str, DecodePlan]) -> None:
    """Refuse fields with a value for each frame, together with a plan that leaves out frames of their video.

    Raises
    ------
    UsageError
        If there is such a field. The message names it and the alternative.
    """
    planned = {name: plan for name, plan in plans.items() if hasattr(plan, "numbers")}
    whole = [f.name for f in schema if f.in_time or f.name in JOINED]
    whole += [f.name for f in schema if f.is_encoded_video and f.name not in planned]
    if planned and whole:
        raise UsageError(
            option="decode",
            expected="no other fields with a value for each frame together with a plan that leaves out frames",
            found=f"{', '.join(whole)} with {{{', '.join(f'{name!r}: {plan}' for name, plan in planned.items())}}}",
            hint="leave them out by fields=, or take clips, which cut all fields: ds.clips(16)",
        )


def _with_masks(schema: Schema, plans: Mapping[str, DecodePlan]) -> dict[str, DecodePlan]:
    """Add the plan of ``image`` for masks without a plan, if it can be applied to masks (``of_mask``)."""
    found, plan = dict(plans), plans.get("image")
    of_mask = getattr(plan, "of_mask", None)
    if "image" in schema and _moves(plan) and of_mask is not None:
        found.update((name, of_mask()) for name in _masks(schema) if name not in plans)
    return found


def _masks_with_plans(schema: Schema, plans: Mapping[str, DecodePlan]) -> frozenset[str]:
    """Return the masks that are cropped like ``image``, by plans that allow masks of other sides (``decode_mask``)."""
    if "image" not in schema or not _moves(plans.get("image")):
        return frozenset()
    return frozenset(name for name in _masks(schema) if hasattr(plans.get(name), "decode_mask"))


def _masks(schema: Schema) -> Iterator[str]:
    """Yield masks and further images that may be as large as ``image``."""
    sides: tuple[Any, ...] = schema["image"].shape[:2]
    for field in schema:
        if is_mask_name(field.name) and len(field.shape) in (2, 3):
            known = zip(field.shape, sides, strict=False)
            if all(one is None or other is None or one == other for one, other in known):
                yield field.name


def _alike(plan: DecodePlan | None, other: DecodePlan | None) -> bool:
    """Return whether two plans keep the pixels of two images of one size aligned."""
    if plan == other or not (_moves(plan) or _moves(other)):
        return True
    takes_same_part = getattr(plan, "takes_same_part", None)
    return takes_same_part is not None and bool(takes_same_part(other))


def _moves(plan: DecodePlan | None) -> bool:
    return plan is not None and bool(getattr(plan, "moves", True))


def _is_geometry(field: Field) -> bool:
    if field.layout is not None:
        return True
    floating = np.issubdtype(field.numpy_dtype, np.floating)
    return floating and len(field.shape) == 2 and field.shape[1] == _NUMBERS.get(field.name)
