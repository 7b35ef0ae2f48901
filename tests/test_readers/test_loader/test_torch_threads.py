"""Operations of torch in the Loader's threads start no threads of their own."""

import json
from pathlib import Path

import pytest
from support.ranks import run_script

# About the product of matrices, see "MKL" in docs/howto/training.md.
SCRIPT = """
import json, os, sys, threading
import torch

from readers import Loader, open_dataset

torch.set_num_threads(8)
seen = []


def count():
    return len(os.listdir("/proc/self/task"))


def transform(sample):
    image = torch.from_numpy(sample["image"]).float().repeat(8, 8, 1)
    for _ in range(3):
        image = torch.sigmoid(image) * 2
    square = image[..., 0] @ image[..., 0].T
    seen.append(count())
    return {"mean": float(image.mean() + square.mean())}


dataset = open_dataset(sys.argv[1], fields=["image"], transform=transform)
loader = Loader(dataset, 10, workers=4, read_ahead=0)
dataset.layout, loader.dataset.layout  # tried in this thread, which may use all
before = count()
seen.clear()
batches = list(loader)
new = []
thread = threading.Thread(target=lambda: new.append(torch.get_num_threads()))
thread.start()
thread.join()
main = torch.get_num_threads()
print(json.dumps({"before": before, "most": max(seen), "batches": len(batches), "main": main, "new": new}))
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts threads in /proc")
def test_each_thread_of_the_loader_computes_alone(raw_path, tmp_path):
    script = tmp_path / "count.py"
    script.write_text(SCRIPT)
    found = json.loads(run_script(script, raw_path).stdout.splitlines()[-1])
    assert found["batches"] == 6
    # Beside the Loader's four, for a moment two for each that read and restore the setting; torch's own would be 28.
    assert found["most"] <= found["before"] + 4 + 2 * 4
    assert found["main"] == 8
    assert found["new"] == [8]
