"""Enumerations and fuzz loops: ``make test`` runs a seeded third of them, ``make test-slow`` all.

``TEST_SEED`` chooses the third. It is the number of the day by default, so that three days in a row run everything; the
header of a run shows it.
"""

import datetime
import os
from collections.abc import Sequence
from typing import Any

import hypothesis
import pytest

SEED = int(os.environ.setdefault("TEST_SEED", str(datetime.datetime.now(datetime.UTC).toordinal())))
"""Other processes of the same run inherit it."""
SHARES = {"short": 1 / 3, "whole": 1, "long": 50}
"""By Hypothesis profile (``HYPOTHESIS_PROFILE``): the share of examples that are run."""


def thirds(cases: Sequence[Any]) -> list[Any]:
    """Cases as parameters of a test; all but every third one are marked slow."""

    def marks(place: int) -> Any:
        return () if place % 3 == SEED % 3 else pytest.mark.slow

    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=marks(place))
        for place, case in enumerate(cases)
    ]


def examples(number: int) -> hypothesis.settings:
    """Settings of a Hypothesis test with a given number of examples in a whole run."""
    share = SHARES[os.environ.get("HYPOTHESIS_PROFILE", "short")]
    health = [hypothesis.HealthCheck.function_scoped_fixture]
    return hypothesis.settings(max_examples=max(1, round(share * number)), deadline=None, suppress_health_check=health)
