"""The order "auto" under Lightning: rank 0 decides for all, and a checkpoint keeps it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.command import COMMAND_LIMIT_S, environment
from test_readers.lightning_ddp import BATCH_SIZE, SAMPLES, Recorder, SaveInside, make_data, make_trainer

from readers import open_dataset, stores

pytestmark = [
    # Lightning's own (test_lightning.py).
    pytest.mark.filterwarnings("ignore:`isinstance:FutureWarning"),
    pytest.mark.filterwarnings("ignore:`isinstance:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*configuration validation"),
]

TINY, PLENTY = 10_000, 10**12

_SCRIPT = """
import json, os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from readers import stores
from test_readers.lightning_ddp import Recorder, make_data, make_trainer

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


def expected_keys(path: Path, order: str) -> list[str]:
    dataset = open_dataset(path, fields=["key"]).subset(range(SAMPLES))
    return [dataset[i]["key"] for i in dataset.sampler(seed=5, shuffle=order)]


def test_two_ranks_take_the_order_of_rank_0(raw_path, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    done = subprocess.run(
        [sys.executable, script, raw_path, tmp_path, Path(__file__).parents[1]],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=COMMAND_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    expected = expected_keys(raw_path, "blocks")
    for kind in ("threads", "processes"):
        woven = [key for step in zip(*(one[kind] for one in found), strict=True) for key in step]
        assert woven == [*expected, expected[0]]


@pytest.mark.parametrize(("before", "after", "order"), [(TINY, PLENTY, "blocks"), (PLENTY, TINY, "full")])
def test_a_checkpoint_keeps_the_order(raw_path, tmp_path, monkeypatch, before, after, order):
    checkpoint = tmp_path / "inside.ckpt"
    monkeypatch.setattr(stores, "usable_memory", lambda: before)
    first = Recorder()
    trainer = make_trainer(tmp_path, callbacks=[SaveInside(checkpoint, 0)], max_epochs=1)
    trainer.fit(first, datamodule=make_data(raw_path))
    whole = [key for batch in first.seen["train 0"] for key in batch]
    assert whole == expected_keys(raw_path, order)
    monkeypatch.setattr(stores, "usable_memory", lambda: after)
    for kind in ("threads", "processes"):
        resumed = Recorder()
        make_trainer(tmp_path, max_epochs=1).fit(resumed, datamodule=make_data(raw_path, kind), ckpt_path=checkpoint)
        rest = [key for batch in resumed.seen["train 0"] for key in batch]
        assert rest == whole[3 * BATCH_SIZE :]
