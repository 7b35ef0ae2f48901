"""Try a user's models in a separate process: ``python -m packer.builds.planning.model_trial RECIPE``.

The process loads a custom detector and a landmark model as a worker does, and runs the detector on a black frame. It
replies with the properties that the detector declares, or with the reason of a failure. A separate process is used,
because libraries and GPU contexts would otherwise stay in the process that plans the build.
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
    """Load the models of a recipe with these options."""
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
