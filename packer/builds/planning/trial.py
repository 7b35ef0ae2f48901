"""A trial of models that a user brings: ``python -m packer.builds.planning.trial RECIPE``.

Makes a custom detector and a model for landmarks as a worker does, runs the detector on a black frame, and answers what
the detector declares of itself, or why one of them fails. A process of its own does this, since a library or a context
on a GPU would stay in the process that plans a build.
"""

import json
import sys
from typing import Any

import numpy as np

from packer.jobs.process import entry_point, send
from packer.recipe import Recipe
from packer.steps.faces.search import make_detector
from packer.vision.landmarks import make_provider
from shardspec.errors import ShardspecError

_SHAPE = (480, 640, 3)


def main(options: dict[str, Any]) -> None:
    """Make the models of a recipe with these options."""
    with entry_point() as (_, answers):
        declared: dict[str, str] = {}
        recipe = Recipe.from_options(options)
        try:
            if recipe.has_custom_detector:
                detector = make_detector(recipe)
                detector.detect([np.zeros(_SHAPE, np.uint8)])
                declared = detector.declared
            if recipe.landmark_model is not None:
                make_provider(recipe.landmarks, recipe.landmark_model)
        except ShardspecError as error:
            send(answers, event="failed", message=str(error))
        else:
            send(answers, event="done", declared=declared)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
