"""A checkpoint of Lightning keeps what the order "auto" became."""

import pytest
from support.lightning_ddp import (
    BATCH_SIZE,
    LIGHTNINGS_WARNINGS,
    PLENTY,
    TINY,
    Recorder,
    SaveInside,
    expected_keys,
    make_data,
    make_trainer,
)

from readers.order import shuffle_choice as stores

pytestmark = [pytest.mark.filterwarnings(text) for text in LIGHTNINGS_WARNINGS]


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
