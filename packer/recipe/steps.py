"""Steps of a recipe."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardspec.errors import UsageError
from shardspec.wording import shorten


@dataclass(frozen=True)
class StepSpec:
    """A step and its options.

    Attributes
    ----------
    use : str
        A built-in step, or ``"module:function"``: a generator function from samples to samples.
    options : dict
        Keyword arguments of the function. Built-in steps use the options of the recipe.
    """

    use: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> Any:
        """Return the step as in a recipe file."""
        return {"use": self.use, **self.options} if self.options else self.use

    @classmethod
    def parse(cls, value: Any) -> "StepSpec":
        """Read a step from a recipe: a name, or a table with ``use`` and the options."""
        if isinstance(value, StepSpec):
            return value
        if isinstance(value, str):
            return cls(value)
        if isinstance(value, Mapping) and isinstance(value.get("use"), str):
            return cls(value["use"], {key: option for key, option in value.items() if key != "use"})
        raise UsageError(option="steps", expected="a name, or a table with 'use'", found=shorten(value))

    @classmethod
    def parse_all(cls, value: Any) -> "tuple[StepSpec, ...]":
        """Read the steps of a recipe: a list, or names in one text with commas."""
        if isinstance(value, str):
            value = [name.strip() for name in value.split(",")]
        if not isinstance(value, Sequence):
            raise UsageError(option="steps", expected="a list of names", found=shorten(value))
        steps = tuple(cls.parse(step) for step in value)
        try:
            json.dumps([step.to_json() for step in steps], allow_nan=False)
        except (TypeError, ValueError) as error:
            raise UsageError(f"expected options that can be written as JSON, {error}", option="steps") from error
        return steps
