"""States that a signal handler saves. Python runs handlers between two lines, where a trace function stands for them."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from support.lightning_ddp import LIGHTNINGS_WARNINGS, Recorder, make_data, make_trainer

import readers
from readers import Loader, open_dataset

OURS = str(Path(readers.__file__).parent)


def places(act: Callable[[], Any], state_dict: Callable[[], dict[str, Any]]) -> list[tuple[int, int]]:
    """Return (epoch, consumed) of the states at all lines of `readers` that run during `act`, without repetitions."""
    states: list[dict[str, Any]] = []

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        sys.settrace(None)
        states.append(state_dict())
        sys.settrace(trace)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return list(dict.fromkeys((state["epoch"], state["consumed"]) for state in states if state))


@pytest.fixture(params=["loader", "sampler"])
def source(request, jpeg_path):
    dataset = open_dataset(jpeg_path, ["key"])
    return Loader(dataset, 20, seed=0, workers=1) if request.param == "loader" else dataset.sampler(seed=0)


def test_a_state_from_a_signal_handler_never_skips_or_repeats_an_epoch(source):
    found = places(lambda: [list(source) for _ in range(3)], source.state_dict)
    assert found == sorted(found)
    assert {epoch for epoch, _ in found} == {0, 1, 2}


def test_a_state_is_that_before_or_after_another_epoch_or_state_was_set(source):
    list(source)
    done, other = source.state_dict(), {**source.state_dict(), "epoch": 7, "consumed": 20}
    assert places(lambda: source.set_epoch(3), source.state_dict) == [(0, 60), (3, 0)]
    source.load_state_dict(done)
    assert places(lambda: source.load_state_dict(other), source.state_dict) == [(0, 60), (7, 20)]


@pytest.mark.parametrize("kind", ["threads", "processes"])
@pytest.mark.filterwarnings(*LIGHTNINGS_WARNINGS)
def test_a_checkpoint_that_lightning_saves_in_a_signal_handler_skips_no_epoch(jpeg_path, tmp_path, kind):
    def fit(state: dict[str, Any]) -> list[tuple[int, int]]:
        module = make_data(jpeg_path, kind, batch_size=20, workers=int(kind == "threads"))
        module.load_state_dict(state)
        trainer = make_trainer(tmp_path, limit_val_batches=0)
        found = places(lambda: trainer.fit(Recorder(), module), module.state_dict)
        return [*found, tuple(module.state_dict()[name] for name in ("epoch", "consumed"))]

    found = fit({})
    assert found == sorted(found)
    assert {(0, 0), (0, 40), (1, 0), (1, 40)} <= set(found)
    alone = make_data(jpeg_path, kind, batch_size=20, workers=0 if kind == "processes" else 1)
    state = {**alone.train_dataloader().consumed_state(), "epoch": 1, "consumed": 20}
    assert fit(state)[0] == (1, 20)
