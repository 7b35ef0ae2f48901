"""``packer card``: a dataset card in Markdown, with the lines that the Hugging Face Hub reads at its head."""

import html
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packer.jobs.result import Result
from packer.packed.publish.card_fields import MEANINGS, Facts, describe_shape, public_options
from packer.workspace.card import is_generated, sign
from packer.workspace.output import check_output, write_output
from shardspec.errors import UsageError
from shardspec.formats import get_format
from shardspec.layout import Layout, given_path
from shardspec.manifest import Manifest
from shardspec.points import LAYOUTS
from shardspec.wording import PROGRAM, counted, one_line

HUB_LICENSES = frozenset(
    ["afl-3.0", "agpl-3.0", "apache-2.0", "bsd-2-clause", "bsd-3-clause", "bsl-1.0", "cc0-1.0", "cc-by-2.0", "cc-by-3.0", "cc-by-4.0", "cc-by-nc-2.0", "cc-by-nc-3.0", "cc-by-nc-4.0", "cc-by-nc-nd-3.0", "cc-by-nc-nd-4.0", "cc-by-nc-sa-2.0", "cc-by-nc-sa-3.0", "cc-by-nc-sa-4.0", "cc-by-nd-4.0", "cc-by-sa-3.0", "cc-by-sa-4.0", "cdla-permissive-1.0", "cdla-permissive-2.0", "cdla-sharing-1.0", "ecl-2.0", "epl-1.0", "epl-2.0", "eupl-1.1", "gfdl", "gpl-2.0", "gpl-3.0", "isc", "lgpl-2.1", "lgpl-3.0", "mit", "mpl-2.0", "odbl", "odc-by", "pddl", "unlicense", "wtfpl", "zlib"]
)  # fmt: skip
"""Licences that the Hub knows (https://huggingface.co/docs/hub/repositories-licenses). It refuses a head with another."""

_SIZES = ("1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T")
_REJECTS = 20
_NAMED = 5
"""Most points whose names are listed."""

_MARKUP = re.compile(r"[\\`*_\[\]~|]")
"""Characters with a meaning in Markdown that appear in names."""

_USE = (
    "## Use",
    "",
    "```python",
    "from readers import Loader, open_dataset",
    "",
    'for batch in Loader(open_dataset("PATH"), batch_size=64, seed=0):',
    "    ...",
    "```",
    "",
    f"`{PROGRAM} verify PATH --deep` compares every byte with the manifest, and `{PROGRAM} inspect PATH` prints",
    "the digest above, which names exactly these samples.",
    "",
)


@dataclass(frozen=True, repr=False)
class Card(Result):
    """A dataset card.

    Attributes
    ----------
    path : Path or None
        The file that was written.
    text : str
    """

    path: Path | None
    text: str

    def describe(self) -> str:
        """Return the text, or the name of the file it was written to."""
        return self.text.removesuffix("\n") if self.path is None else f"{self.path}: card written"

    def to_json(self) -> dict[str, Any]:
        """Return the same as JSON."""
        return {"out": None if self.path is None else str(self.path), "text": self.text}


def card(dataset: str | os.PathLike[str], *, out: str | os.PathLike[str] | None = None) -> Card:
    """Describe a packed dataset for people: counts, classes, fields, origin, rejects, recipe, licence and citation.

    The head is YAML as the Hugging Face Hub reads it. Parquet and WebDataset datasets hold the same text as
    ``README.md``, without the counts of splits.

    Parameters
    ----------
    dataset : path
        A packed dataset.
    out : path, optional
        A ``.md`` file outside the dataset. A file with another text than a card of this function is never replaced.

    Returns
    -------
    Card

    Raises
    ------
    UsageError
        If `out` is inside the dataset, cannot be written, or holds a text that a person has edited.
    DatasetError
        If the dataset cannot be read.
    """
    layout = Layout(given_path("dataset", dataset))
    facts = Facts(layout, layout.load())
    text = _text(facts, facts.count_splits())
    if out is None:
        return Card(None, text.decode())
    path = given_path("out", out)
    check_output(path, ".md", datasets=[layout.root])
    if path.exists() and not is_generated(path.read_bytes()):
        raise edited(path)
    write_output(path, text)
    return Card(path, text.decode())


def edited(path: Path) -> UsageError:
    """Return the error about a file with a text of a person."""
    return UsageError(
        place=path,
        expected="a new file, or one that this command wrote",
        found="a file that was edited or written by another program",
        hint="choose another name, or delete it",
    )


def make_card(layout: Layout, manifest: Manifest) -> bytes:
    """Return the text of ``README.md``, which depends on the manifest, the index and the rejects alone."""
    return _text(Facts(layout, manifest), {})


def _text(facts: Facts, splits: Mapping[str, int]) -> bytes:
    about = facts.manifest.about
    parts = [
        "---",
        *_head(facts),
        "---",
        "",
        f"# {_plain(about.title) or 'Packed dataset'}",
        "",
        *([about.description.strip(), ""] if about.description else []),
        *([f"Homepage: <{about.homepage}>", ""] if about.homepage else []),
        *_contents(facts, splits),
        *_fields(facts),
        *_geometry(facts),
        *_origin(facts),
        *_USE,
        *_terms(facts),
    ]
    return sign("\n".join(parts))


def _head(facts: Facts) -> Iterator[str]:
    """Yield YAML lines: https://huggingface.co/docs/hub/datasets-cards. JSON strings are YAML, too."""
    about, manifest = facts.manifest.about, facts.manifest
    known = [text.lower() for text in about.license if text.lower() in HUB_LICENSES]
    if about.license and len(known) == len(about.license):
        yield from (f"license: {known[0]}",) if len(known) == 1 else ("license:", *(f"- {one}" for one in known))
    elif about.license:
        yield "license: other"
        yield f"license_name: {json.dumps(' and '.join(about.license), ensure_ascii=False)}"
        links = [text for text in about.license if "://" in text]
        yield from (f"license_link: {json.dumps(link)}" for link in links[:1])
    if about.title:
        yield f"pretty_name: {json.dumps(one_line(about.title), ensure_ascii=False)}"
    yield from ("size_categories:", f"- {_size(manifest.samples)}")
    if get_format(manifest.format).card:
        pattern = f"shard-*{get_format(manifest.format).suffix}"
        yield from ("configs:", "- config_name: default", "  data_files:", "  - split: train", f"    path: {pattern}")


def _size(samples: int) -> str:
    for number, name in enumerate(_SIZES):
        if samples < 1000 * 10**number:
            return f"n<{name}" if number == 0 else f"{_SIZES[number - 1]}<n<{name}"
    return "n>1T"


def _contents(facts: Facts, splits: Mapping[str, int]) -> Iterator[str]:
    manifest, counts = facts.manifest, facts.counts
    yield from ("## Contents", "")
    yield from _table(
        ("", ""),
        [
            ("samples", manifest.samples),
            (
                "format",
                f"{manifest.format}, {counted(len(manifest.shards), 'shard')}, {manifest.stored_bytes / 1e6:.1f} MB",
            ),
            ("items", f"{counts.packed_items} packed, {counts.rejected_items} rejected"),
            ("frames without a sample", counts.frames_without_sample),
            ("digest", f"`{manifest.digest}`"),
        ],
    )
    if facts.classes:
        yield from _table(("class", "samples"), [(_plain(name), count) for name, count in facts.classes.items()])
    if splits:
        yield from _table(("split", "samples"), [(_plain(name), count) for name, count in splits.items()])


def _fields(facts: Facts) -> Iterator[str]:
    yield from ("## Fields", "")
    yield from _table(
        ("field", "shape", "dtype", "stored as", "meaning"),
        [
            (
                f"`{field.name}`",
                "" if field.kind == "text" else describe_shape(field),
                "text" if field.kind == "text" else field.numpy_dtype.name,
                field.codec.name,
                MEANINGS.get(field.name, ""),
            )
            for field in facts.manifest.schema
        ],
    )


def _geometry(facts: Facts) -> Iterator[str]:
    schema, layouts = facts.manifest.schema, []
    for field in schema:
        if field.layout:
            names = LAYOUTS[field.layout].names
            listed = f": {', '.join(names)}" if len(names) <= _NAMED else f" in the layout {field.layout}"
            layouts.append(f"`{field.name}` are {len(names)} points{listed}.")
    if layouts or "box" in schema:
        yield from ("## Geometry", "")
        yield "Pixel (0, 0) covers [0, 1) x [0, 1). Left and right are those of the person. " + " ".join(layouts)
        yield ""


def _origin(facts: Facts) -> Iterator[str]:
    yield from ("## How it was made", "")
    for generation in facts.manifest.generations:
        counts, runtime = generation.counts, dict(generation.runtime)
        version = runtime.pop("facepack", "unknown")
        yield f"`{generation.kind}` by facepack {version} from {counted(counts.items, 'item')}, with this recipe:"
        options = public_options(generation)
        yield from ("", "```toml", *(f"{name} = {_toml(value)}" for name, value in options.items()), "```", "")
        versions = ", ".join(f"{name} {value}" for name, value in runtime.items())
        yield from ((f"Libraries and models: {_plain(versions)}.", "") if versions else ())
    if facts.rejects:
        yield from ("Rejected items:", "")
        shown = [(_plain(step), _plain(reason), count) for step, reason, count in facts.rejects[:_REJECTS]]
        yield from _table(("step", "reason", "items"), shown)
        left = sum(count for _, _, count in facts.rejects[_REJECTS:])
        yield from ((f"and {left} for other reasons.", "") if left else ())


def _toml(value: Any) -> str:
    """Return a value as TOML, which is JSON for texts, numbers and lists."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(str(name))} = {_toml(one)}" for name, one in value.items()) + " }"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False)


def _terms(facts: Facts) -> Iterator[str]:
    about = facts.manifest.about
    if about.license:
        yield from ("## License", "", *(f"* {text}" for text in about.license), "")
    if about.citation:
        yield from ("## Citation", "")
        for text in about.citation:
            yield from (
                "```bibtex" if text.lstrip().startswith("@") else "```",
                text.strip().replace("```", "'''"),
                "```",
                "",
            )


def _plain(text: str) -> str:
    """Return a name or a message so that Markdown shows it as it is, whatever characters it has."""
    return html.escape(_MARKUP.sub(r"\\\g<0>", one_line(text)), quote=False)


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Yield a table in Markdown, whose cells are Markdown too, and an empty line."""
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(map(str, row))} |"
    yield ""
