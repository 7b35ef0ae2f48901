"""The options of a split, checked."""

import math
from collections.abc import Mapping, Sequence

from packer.packed.export.names import safe_name
from packer.recipe.checks import plain_value
from shardspec.errors import UsageError
from shardspec.schema import NAME
from shardspec.splits.assignment import SPLIT_NAMES
from shardspec.wording import list_some, shorten

RATIOS: Mapping[str, float] = {"train": 0.8, "val": 0.1, "test": 0.1}
"""Default shares."""

MAX_PARTS = 100
"""Most datasets that one call makes from a field's values. A field with more values probably names groups."""

_TOLERANCE = 1e-6


def check_options(
    fields: Sequence[str], ratios: object, folds: object, stratify: object, seed: int, into: object
) -> None:
    """Check that the options choose exactly one way to split."""
    given = {"ratios": ratios, "folds": folds, "stratify": stratify, "seed": seed or None}
    besides = [name for name, value in given.items() if value is not None]
    if into is not None and fields:
        raise UsageError("read only without `by`, which keeps groups whole in shares, found both", option="into")
    if into is not None and besides:
        raise UsageError(f"read only without `into`, found {shorten(into)}", option=besides[0])
    if folds is not None and ratios is not None:
        raise UsageError("read only without `ratios`, since the shares of folds are equal, found both", option="folds")
    if not fields and all(option is None for option in (into, folds, stratify)):
        raise UsageError(
            expected="`by` (what stays together), `into` (a dataset for each value), `folds` or `stratify`",
            found="none of them",
        )


def parse_ratios(text: str) -> dict[str, float]:
    """Parse ratios such as ``"train=0.8,val=0.1,test=0.1"``. Numbers that add up to 100 are percentages.

    Raises
    ------
    UsageError
    """
    ratios: dict[str, float] = {}
    for part in text.split(","):
        name, _, number = part.partition("=")
        try:
            value = float(number)
        except ValueError:
            raise UsageError(
                option="ratios", expected="train=0.8,val=0.1,test=0.1", found=f"{shorten(part)} in {shorten(text)}"
            ) from None
        if name.strip() in ratios:
            raise UsageError(option="ratios", expected="every split once", found=f"{shorten(name.strip())} twice")
        ratios[name.strip()] = value
    return check_ratios(ratios)


def check_ratios(ratios: Mapping[str, float]) -> dict[str, float]:
    """Check the ratios and scale them to add up to 1.

    Raises
    ------
    UsageError
        If they have no names, a name is not a plain word, a ratio is not a number above 0, or they add up to neither 1
        nor 100.
    """
    if not isinstance(ratios, Mapping):
        raise UsageError(
            option="ratios",
            expected=(
                "a name for each share, since each split has a folder of that name, as in {'train': 0.8, "
                "'val': 0.2} or 'train=0.8,val=0.2'"
            ),
            found=shorten(ratios),
        )
    wrong = [name for name in ratios if not (isinstance(name, str) and NAME.match(name))]
    if wrong or len(ratios) < 2:
        found = list_some(list(map(shorten, wrong or ratios)))
        raise UsageError(
            option="ratios", expected="two splits or more, named in lower-case letters", found=found or "none"
        )
    ratios = {name: plain_value(ratio) for name, ratio in ratios.items()}
    if not all(type(ratio) in (int, float) and math.isfinite(ratio) and ratio > 0 for ratio in ratios.values()):
        raise UsageError(option="ratios", expected="numbers above 0", found=shorten(ratios))
    total = sum(ratios.values())
    for whole in (1, 100):
        if abs(total - whole) <= whole * _TOLERANCE:
            return {name: ratio / whole for name, ratio in ratios.items()}
    raise UsageError(option="ratios", expected="numbers that add up to 1 (or to 100)", found=f"{total:g}")


def refuse_splits(values: Sequence[str], by: str, shares: Mapping[str, float]) -> None:
    """Refuse a field that names the split of each sample, because whole splits would move into other ones."""
    names = SPLIT_NAMES | set(shares)
    found = [value for value in values if value.lower() in names]
    if len(found) > 1:
        raise UsageError(
            option="by",
            expected=f"groups, such as videos or persons, in the field {by!r}",
            found=f"splits ({list_some([*map(repr, found)])}), which would be put into others",
            hint=f"to make a dataset of each, give into={by!r} (--into {by})",
        )


def folders_of(values: Sequence[str], into: str) -> list[str]:
    """Return the folder of each value's dataset."""
    if len(values) > MAX_PARTS:
        raise UsageError(
            option="into",
            expected=f"a field of at most {MAX_PARTS} values, each of which becomes a dataset",
            found=f"{len(values)} in {into!r}",
            hint=f"for shares of whole groups give by={into!r} (--by {into})",
        )
    folders: dict[str, str] = {}
    for value in values:
        folder = safe_name(value)
        # Many file systems treat names that differ only in case as the same.
        twin = next((other for other, taken in folders.items() if taken.casefold() == folder.casefold()), None)
        if twin is not None:
            raise UsageError(
                option="into",
                expected=f"values that name different folders in {into!r}",
                found=f"{shorten(twin)} and {shorten(value)}",
                hint="rename one in the table, and build again",
            )
        folders[value] = folder
    return [folders[value] for value in values]
