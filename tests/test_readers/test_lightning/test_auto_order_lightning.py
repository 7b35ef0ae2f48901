"""The order "auto" under Lightning: rank 0 decides for all, and a checkpoint keeps it."""

import json
from pathlib import Path

import pytest
from support.batches import woven
from support.lightning_ddp import (
    BATCH_SIZE,
    LIGHTNINGS_WARNINGS,
    Recorder,
    SaveInside,
    expected_keys,
    make_data,
    make_trainer,
)
from support.ranks import run_script

from readers.order import auto as stores

pytestmark = [pytest.mark.filterwarnings(text) for text in LIGHTNINGS_WARNINGS]

TINY, PLENTY = 10_000, 10**12

_SCRIPT = """
import json, os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from readers.order import auto as stores
from support.lightning_ddp import Recorder, make_data, make_trainer

rank = int(os.environ.get("LOCAL_RANK", 0))
stores.usable_memory = lambda: (10_000, 10**12)[rank]
seen = {}
for kind in ("threads", "processes"):
    model, data = Recorder(), make_data(Path(sys.argv[1]), kind)
    trainer = make_trainer(Path(sys.argv[2]), strategy="ddp", devices=2, max_epochs=1)
    trainer.fit(model, datamodule=data)
    seen[kind] = [key for batch in model.seen["train 0"] for key in batch]
    trainer.strategy.barrier()
Path(sys.argv[2], f"{rank}.json").write_text(json.dumps(seen))
"""


def test_two_ranks_take_the_order_of_rank_0(raw_path, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    run_script(script, raw_path, tmp_path, Path(__file__).parents[2])
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    expected = expected_keys(raw_path, 0, "blocks")
    for kind in ("threads", "processes"):
        assert woven(one[kind] for one in found) == [*expected, expected[0]]


@pytest.mark.parametrize(("before", "after", "order"), [(TINY, PLENTY, "blocks"), (PLENTY, TINY, "full")])
def test_a_checkpoint_keeps_the_order(raw_path, tmp_path, monkeypatch, before, after, order):
    checkpoint = tmp_path / "inside.ckpt"
    monkeypatch.setattr(stores, "usable_memory", lambda: before)
    first = Recorder()
    trainer = make_trainer(tmp_path, callbacks=[SaveInside(checkpoint, 0)], max_epochs=1)
    trainer.fit(first, datamodule=make_data(raw_path))
    whole = [key for batch in first.seen["train 0"] for key in batch]
    assert whole == expected_keys(raw_path, 0, order)
    monkeypatch.setattr(stores, "usable_memory", lambda: after)
    for kind in ("threads", "processes"):
        resumed = Recorder()
        make_trainer(tmp_path, max_epochs=1).fit(resumed, datamodule=make_data(raw_path, kind), ckpt_path=checkpoint)
        rest = [key for batch in resumed.seen["train 0"] for key in batch]
        assert rest == whole[3 * BATCH_SIZE :]
