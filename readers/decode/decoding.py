"""From encoded columns to values: fixed fields are read in place, images decoded into their row of the batch."""

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from readers.decode.plans import DecodePlan, check_alignment, masks_with_plans, sides_of, with_masks
from readers.decode.values import BatchLayout, ValueLayout, layout_of_field
from readers.formats.pool import ShardPool
from readers.order.order import Picks
from readers.order.permutation import mix_words
from readers.seeding import sample_rngs
from shardspec.codecs import codec_for
from shardspec.codecs.base import Codec
from shardspec.columns import Columns, IntArray
from shardspec.errors import CodecError, UsageError
from shardspec.schema import Field, Schema
from shardspec.wording import shorten

_PLAN_TAG = 0x706C616E  # makes a plan's draws differ from the transform's


class Decoding:
    """Reads the chosen fields of a pool's rows as values. Safe between threads, and to pickle.

    Parameters
    ----------
    pool : ShardPool
    schema : Schema
        The fields to read.
    plans : dict of str to DecodePlan
        For image fields: which part of them is decoded, and at which size. Masks without a plan have that of
        ``image``.

    Raises
    ------
    UsageError
        If a plan is invalid, is for a field that is not an image, or moves pixels away from under fields that lie on
        them (`readers.decode.plans`).
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
            if name not in schema or not schema[name].is_image:
                images = ", ".join(f.name for f in schema if f.is_image) or "none"
                raise UsageError(option="decode", expected=f"the names of image fields ({images})", found=f"{name!r}")
            plan.layout(schema[name])  # a plan may refuse the field
        self.plans = with_masks(schema, plans)
        check_alignment(schema, self.plans)
        self._masks = masks_with_plans(schema, self.plans)
        self._fixed = tuple(f for f in schema if f.is_fixed and f.name not in self.plans)
        self._encoded = tuple(f for f in schema if not f.is_fixed)
        self._planned_raw = tuple(f for f in schema if f.is_fixed and f.name in self.plans)
        self._codecs: dict[str, Codec] = {f.name: codec_for(f) for f in self._encoded}
        self._layout: BatchLayout = {f.name: self._layout_of(f) for f in schema}

    @property
    def layout(self) -> BatchLayout:
        """How the values of each field are laid out in a batch."""
        return self._layout

    def _layout_of(self, field: Field) -> ValueLayout:
        plan = self.plans.get(field.name)
        return layout_of_field(field) if plan is None else plan.layout(field)

    def read_into(self, picks: Picks, out: Columns, at: IntArray) -> None:
        """Read and decode rows, row i into place ``at[i]`` of a batch.

        Raises
        ------
        CodecError
            If a value does not decode; the message gives its key, row and shard. Any other error about one sample (from
            a caller's own plan) carries them as a note.
        """
        local = np.arange(len(picks))
        fixed: Columns = {f.name: out[f.name] for f in self._fixed}
        encoded: Columns = {f.name: [b""] * len(picks) for f in self._encoded}
        # At once if they go to the same places: for samples that a transform takes a few at a time, a read counts.
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
        self, field: Field, column: Any, picks: Picks, out: Any, at: IntArray, images: Any = None
    ) -> None:
        """Decode one field's values of all rows; of masks, `images` are what they lie on."""
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
                        sides, beside = sides_of(images[i], self._codecs.get("image")), cast("Any", plan)
                        image = beside.decode_mask(column[i], field, codec, rng, into, sides)
                    if not stacked:
                        out[place] = own(image)
            elif codec is not None and stacked:
                decode = codec.decode
                for i, place in enumerate(at.tolist()):
                    decode(column[i], out[place])
            elif codec is not None:
                for i, place in enumerate(at.tolist()):
                    out[place] = own(codec.decode(column[i]))
        except CodecError as error:
            # In the message itself, since logs and most code that passes errors on drop notes.
            raise CodecError(f"{error}; {self.describe(int(picks.rows[i]))}") from error
        except Exception as error:
            error.add_note(self.describe(int(picks.rows[i])))
            raise

    def describe(self, row: int) -> str:
        """Key and place of a row, for messages."""
        place = self.pool.describe(row)
        if "key" not in self.pool.schema:
            return f"sample: {place}"
        key: Columns = {"key": [b""]}
        try:
            self.pool.read(np.array([row]), ["key"], key, np.zeros(1, np.int64))
        except Exception as error:  # the note must not hide the error that it belongs to
            return f"sample: {place}; its key cannot be read: {error}"
        return f"sample: key {bytes(key['key'][0]).decode(errors='replace')!r}, {place}"


def _plan_rngs(picks: Picks) -> list[np.random.Generator]:
    keys = picks.rows if picks.keys is None else picks.keys
    seeds = picks.seeds.tolist()
    mixed = {seed: mix_words(seed, _PLAN_TAG) for seed in set(seeds)}  # usually one
    return sample_rngs(np.array([mixed[seed] for seed in seeds], np.uint64), picks.epoch, keys)


def own(value: Any) -> Any:
    """A value that may be changed and that outlives the open shard: views of a reader's memory are copied."""
    return value.copy() if isinstance(value, np.ndarray) and not value.flags.owndata else value
