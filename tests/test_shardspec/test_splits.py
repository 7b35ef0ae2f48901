"""The one rule of splits and folds: every row in one part, no group in two, and shares as even as can be shown."""

import tracemalloc
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec.errors import UsageError
from shardspec.splits.assignment import assign_groups, assign_rows, fold_ratios
from shardspec.splits.groups import NO_GROUP, Groups, join_groups


def groups_of(values: Any) -> Groups:
    """Groups by values, in the order of their first row."""
    names = list(dict.fromkeys(map(str, values)))
    return Groups(names, np.array([names.index(str(value)) for value in values], np.int64))


@given(
    labels=st.lists(st.sampled_from("abc"), min_size=2, max_size=200),
    folds=st.integers(2, 7),
    seed=st.integers(0, 3),
)
def test_folds_of_single_samples_are_even_in_size_and_in_every_class(labels: list[str], folds: int, seed: int) -> None:
    strata = groups_of(labels)
    least = min(Counter(labels).values())
    if least < folds:
        with pytest.raises(UsageError, match=rf"stratify: expected {folds} samples .* found \d+ with '[abc]'"):
            assign_rows(len(labels), fold_ratios(folds), seed, strata=strata)
        return
    fold_of = assign_rows(len(labels), fold_ratios(folds), seed, strata=strata)
    for rows in (np.ones(len(labels), bool), *(strata.of_row == number for number in range(len(strata.names)))):
        counts = np.bincount(fold_of[rows], minlength=folds)
        assert counts.max() - counts.min() <= 1
    # Names decide, not the order in which they are met.
    names = sorted(strata.names, reverse=True)
    other = Groups(names, np.array([names.index(label) for label in labels], np.int64))
    assert np.array_equal(assign_rows(len(labels), fold_ratios(folds), seed, strata=other), fold_of)


@given(
    counts=st.lists(st.integers(4, 60), min_size=1, max_size=40),
    shares=st.lists(st.integers(1, 9), min_size=2, max_size=4),
    seed=st.integers(0, 3),
)
def test_every_class_and_the_whole_are_split_within_two_samples(
    counts: list[int], shares: list[int], seed: int
) -> None:
    """Rounding class by class would add up to parts of the wrong size."""
    rows = sum(counts)
    of_row = np.repeat(np.arange(len(counts)), counts)
    strata = Groups([f"{number:03d}" for number in range(len(counts))], of_row)
    ratios = {str(number): share / sum(shares) for number, share in enumerate(shares)}
    places = assign_rows(rows, ratios, seed, strata=strata)
    for place, ratio in enumerate(ratios.values()):
        assert abs(np.count_nonzero(places == place) - rows * ratio) < 1 + 1e-6
        for number, count in enumerate(counts):
            assert abs(np.count_nonzero(places[of_row == number] == place) - count * ratio) < 2 + 1e-6


@given(data=st.data(), folds=st.integers(2, 5), seed=st.integers(0, 3))
def test_stratified_groups_are_no_less_even_than_groups_at_random(data: st.DataObject, folds: int, seed: int) -> None:
    """The bound is the mean, over all assignments of groups to folds at random, of the squared distances."""
    has = data.draw(
        st.lists(
            st.dictionaries(st.integers(0, 3), st.integers(1, 40), min_size=1, max_size=3), min_size=folds, max_size=40
        )
    )
    sizes = [sum(of.values()) for of in has]
    names = [f"group {number}" for number in range(len(has))]
    ratios = fold_ratios(folds)
    chosen = assign_groups(names, sizes, ratios, seed, strata=has)
    assert set(chosen) == set(ratios)
    totals = sum((Counter(of) for of in has), Counter())
    totals["all"] = sum(sizes)
    distance, bound = 0.0, 0.0
    every = [{**of, "all": size} for of, size in zip(has, sizes, strict=True)]
    for stratum, total in totals.items():
        in_fold = dict.fromkeys(ratios, 0)
        for of, name in zip(every, chosen, strict=True):
            in_fold[name] += of.get(stratum, 0)
            bound += of.get(stratum, 0) ** 2 / total * (1 - 1 / folds)
        distance += sum((count - total / folds) ** 2 for count in in_fold.values()) / total
    assert distance <= bound + 1e-6


@given(data=st.data(), folds=st.integers(2, 4), seed=st.integers(0, 3), stratify=st.booleans())
def test_no_group_is_in_two_folds(data: st.DataObject, folds: int, seed: int, stratify: bool) -> None:
    people = data.draw(st.lists(st.integers(0, 11), min_size=1, max_size=120))
    labels = [person % 2 for person in people]
    groups, strata = groups_of(people), groups_of(labels) if stratify else None
    numbers = np.array(labels, np.int64)
    few = len(groups.names) < folds
    if stratify:
        few = min(Counter(person % 2 for person in set(people)).values()) < folds
    if few:
        with pytest.raises(UsageError, match="expected"):
            assign_rows(len(people), fold_ratios(folds), seed, groups=groups, strata=strata, labels=numbers)
        return
    fold_of = assign_rows(len(people), fold_ratios(folds), seed, groups=groups, strata=strata, labels=numbers)
    assert set(fold_of.tolist()) == set(range(folds))
    for person in set(people):
        assert len(set(fold_of[np.array(people) == person].tolist())) == 1
    if stratify:
        for fold in range(folds):
            assert set(numbers[fold_of == fold].tolist()) == set(labels)


@given(
    rows=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=30),
    seed=st.integers(0, 5),
)
def test_joined_groups_share_no_value_of_any_field(rows: list[tuple[int, int, int]], seed: int) -> None:
    columns = [groups_of([f"{place}/{row[place]}" for row in rows]) for place in range(3)]
    joined = join_groups(columns)
    # The reference: join rows that share a value until nothing changes.
    of = list(range(len(rows)))
    while True:
        before = list(of)
        for i, one in enumerate(rows):
            for j, other in enumerate(rows):
                if any(a == b for a, b in zip(one, other, strict=True)):
                    of[i] = of[j] = min(of[i], of[j])
        if of == before:
            break
    same = np.array(of)[:, None] == np.array(of)[None]
    assert np.array_equal(joined.of_row[:, None] == joined.of_row[None], same)
    assert len(set(joined.names)) == len(joined.names) == joined.of_row.max() + 1
    mixed = np.random.default_rng(seed).permutation(len(rows))
    again = join_groups([groups_of([f"{place}/{rows[row][place]}" for row in mixed]) for place in range(3)])
    assert [again.names[number] for number in again.of_row] == [joined.names[joined.of_row[row]] for row in mixed]


def test_one_field_alone_is_joined_to_itself() -> None:
    groups = groups_of("abca")
    assert list(join_groups([groups]).names) == list(groups.names)
    assert join_groups([groups]).of_row.tolist() == [0, 1, 2, 0]


def test_samples_without_a_value_form_a_separate_stratum() -> None:
    strata = Groups(["swap"], np.array([0] * 8 + [NO_GROUP] * 4, np.int64))
    fold_of = assign_rows(12, fold_ratios(2), 0, strata=strata)
    assert np.bincount(fold_of[8:]).tolist() == [2, 2]
    with pytest.raises(
        UsageError, match=r"expected 5 samples or more with each value.* found 4 with no value: take fewer"
    ):
        assign_rows(12, fold_ratios(5), 0, strata=strata)


def test_impossible_splits_are_reported_in_one_line() -> None:
    people = groups_of("aabbccdd")
    for options, folds, message in (
        ({"groups": people}, 5, "found 4 groups for 5 splits"),
        ({}, 9, "found 8 for 9"),
        ({"groups": people, "strata": groups_of("00000111")}, 3, "expected 3 groups .* found 2 with '1'"),
        ({"strata": groups_of("01234567")}, 2, r"found 1 with '0' \(and too few of 7 more\)"),
    ):
        with pytest.raises(UsageError, match=message) as raised:
            assign_rows(8, fold_ratios(folds), 0, **options)
        assert "\n" not in str(raised.value)
    for folds in (1, 0, -2, 101, 2.5, True, "five"):
        with pytest.raises(UsageError, match="folds: expected an integer of 2 to 100"):
            fold_ratios(folds)


def test_the_assignment_of_a_seed_never_changes() -> None:
    """Folds are the same on every machine and in every version."""
    rows = assign_rows(12, fold_ratios(3), 7, strata=groups_of("aaaaaabbbbbb"))
    groups = assign_rows(12, fold_ratios(3), 7, groups=groups_of("abcdefghijkl"), strata=groups_of("000000111111"))
    parts = assign_rows(12, {"train": 0.5, "val": 0.25, "rest": 0.25}, 7, strata=groups_of("aaaaaabbbbbb"))
    assert rows.tolist() == [0, 1, 1, 0, 2, 2, 0, 0, 2, 2, 1, 1]
    assert groups.tolist() == [1, 2, 0, 2, 0, 1, 2, 1, 1, 2, 0, 0]
    assert parts.tolist() == [0, 1, 0, 2, 1, 0, 1, 0, 0, 2, 2, 0]


@pytest.mark.parametrize("stratify", [True, False])
def test_memory_grows_with_the_classes_of_groups_not_with_their_square(stratify: bool) -> None:
    groups, classes = 4, 3000
    labels = np.tile(np.arange(classes), groups)
    of_row = Groups(tuple("abcd"), np.repeat(np.arange(groups), classes))
    strata = Groups(tuple(map(str, range(classes))), labels)
    tracemalloc.start()
    try:
        places = assign_rows(
            len(labels),
            fold_ratios(2),
            0,
            groups=of_row,
            strata=strata if stratify else None,
            labels=None if stratify else labels,
        )
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert np.bincount(places).tolist() == [2 * classes, 2 * classes]
    assert peak < 20 * 2**20


@pytest.mark.parametrize("dtype", ["u1", "i1", "i4", "u8"])
def test_labels_of_any_integer_type_are_classes(dtype: str) -> None:
    """Each part gets a group with class 1, whatever the type of the labels."""
    of_row = Groups(tuple("abcdef"), np.repeat(np.arange(6), 4))
    labels = np.zeros(24, dtype)
    labels[[1, 9, 17]] = 1
    places = assign_rows(24, fold_ratios(3), 1, groups=of_row, labels=labels)
    assert np.array_equal(places, assign_rows(24, fold_ratios(3), 1, groups=of_row, labels=labels.astype(np.int64)))
    assert sorted(places[[1, 9, 17]]) == [0, 1, 2]
