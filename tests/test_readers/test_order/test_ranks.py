"""The wait for ranks that do not begin an epoch."""

import json
import logging
from types import SimpleNamespace

import pytest
import torch
from support.ranks import run_ranks

from readers.order import shuffle_choice
from shardspec.errors import DatasetError


class Clock:
    """A clock that only `sleep` moves on. At some times another rank calls, too."""

    def __init__(self, monkeypatch, calls):
        self.now, self._calls = 0.0, list(calls)
        self._add = torch.distributed.HashStore().add
        monkeypatch.setattr(shuffle_choice, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep))

    def sleep(self, seconds):
        self.now += seconds
        while self._calls and self._calls[0][0] <= self.now:
            _, rank = self._calls.pop(0)
            shuffle_choice.await_ranks(self._add, rank, 1, 300.0)

    def await_ranks(self, timeout_s=300.0):
        shuffle_choice.await_ranks(self._add, 0, 3, timeout_s)


def test_after_ten_seconds_the_missing_ranks_are_named_once(caplog, monkeypatch):
    caplog.set_level(logging.WARNING, "readers")
    clock = Clock(monkeypatch, [(2, 2), (50, 1)])
    clock.await_ranks()
    assert clock.now >= 50
    (record,) = caplog.records
    assert "Rank 0 has waited 10 s for rank 1 to begin" in record.getMessage()
    assert "rank=0, world_size=1" in record.getMessage()


def test_after_the_time_limit_the_missing_ranks_are_an_error(monkeypatch):
    clock = Clock(monkeypatch, [(2, 2)])
    with pytest.raises(DatasetError, match=r"Rank 0 has waited 40 s for rank 1 to .* increase timeout_s \(40 s\)"):
        clock.await_ranks(timeout_s=40)
    assert 40 <= clock.now < 41


_RANK = """
import json, sys
import torch
import torch.distributed as dist
from readers import Loader, open_dataset
from shardspec.errors import DatasetError

torch.set_num_threads(1)
path, out, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
dist.init_process_group("gloo", init_method=f"file://{out}/store", rank=rank, world_size=2)
dataset, found = open_dataset(path, fields=["key"]), []
for reading in range(2):
    if rank == reading:
        for shuffle in ("auto", "full"):
            try:
                next(iter(Loader(dataset, 4, shuffle=shuffle, workers=1, timeout_s=1e-3)))
            except DatasetError as error:
                found.append(str(error))
        found.append(len(list(Loader(dataset, 4, workers=1, rank=0, world_size=1))))
    dist.barrier()
found.append(len(list(Loader(dataset, 4, workers=1))))
print(json.dumps(found))
dist.destroy_process_group()
"""


def test_a_loader_that_one_rank_reads_alone(jpeg_path, tmp_path):
    for rank, (output, _) in enumerate(run_ranks(_RANK, jpeg_path, tmp_path)):
        *refused, alone, together = json.loads(output)
        assert [text.partition(" to begin")[0] for text in refused] == [
            f"Rank {rank} has waited 0 s for rank {1 - rank}"
        ] * 2
        assert (alone, together) == (15, 8)
