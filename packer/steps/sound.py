"""``sound``: read the sound of an item, whole or in pieces."""

from collections.abc import Generator, Iterator
from contextlib import closing
from itertools import count

from packer.recipe import Recipe
from packer.sources.item import PACKED_ROW, Item
from packer.sources.member_bytes import opener
from packer.steps.chain import ITEM, REPORT, Sample, Step, StepResources
from packer.steps.report import ItemReport
from packer.vision.decode.limits import SoundError, VideoError
from packer.vision.decode.sampling import sample_at
from packer.vision.sound.reader import Piece, SoundReader, cut, join
from shardspec.errors import ItemError, system_reason


def make(recipe: Recipe, _resources: StepResources) -> Step:
    """Make the sound step of a recipe.

    The step adds ``audio``, (N,) int16, or (C, N) with ``channels="keep"``; ``audio_rate``, its samples per second;
    ``piece``, the number of the piece in its file; ``time``, when the piece begins, and ``seconds``, how long it is
    without padding.
    """

    def read(samples: Iterator[Sample]) -> Generator[Sample]:
        for sample in samples:
            if PACKED_ROW in sample[ITEM].columns:
                sample[REPORT].frames += 1
                yield sample
            else:
                yield from _read(recipe, sample, sample[ITEM], sample[REPORT])

    return read


def _read(recipe: Recipe, sample: Sample, item: Item, report: ItemReport) -> Iterator[Sample]:
    try:
        with closing(SoundReader(opener(item.file), recipe.audio, mono=recipe.channels == "mono")) as sound:
            for number, piece in enumerate(_pieces(recipe, sound)):
                report.count_frame()
                yield {
                    **sample,
                    "audio": piece.samples[0] if recipe.channels == "mono" else piece.samples,
                    "audio_rate": sound.rate,
                    "piece": number,
                    "time": piece.start / sound.rate,
                    "seconds": piece.valid / sound.rate,
                }
            if sound.damage is not None:
                report.add_damage(f"sound: {sound.damage}")
    except (SoundError, VideoError) as error:
        raise ItemError(str(error)) from error
    except OSError as error:
        raise ItemError(f"expected a readable file, found: {system_reason(error)}") from error


def _pieces(recipe: Recipe, sound: SoundReader) -> Iterator[Piece]:
    if recipe.seconds is None:
        whole = join(sound)
        if sound.length:
            yield Piece(0, sound.length, whole)
    else:
        hop, rate = recipe.hop or recipe.seconds, sound.rate
        length = max(1, sample_at(recipe.seconds, rate))
        starts = (sample_at(number * hop, rate) for number in count())
        yield from cut(sound, starts, length, pads=recipe.rest == "pad")
        if sound.length < length and recipe.rest != "pad":
            raise SoundError(
                expected=f"at least {recipe.seconds:g} s of sound, as long as a piece (--seconds)",
                found=f"{sound.length / rate:.3f} s",
                hint="--rest pad pads it with zeros",
            )
    if not sound.length:
        raise SoundError(expected="at least one sample", found="none")
