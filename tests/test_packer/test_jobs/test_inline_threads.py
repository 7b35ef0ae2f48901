"""The inline engine runs steps with one thread of each library from the first item on, in a process that has loaded none before."""

import subprocess
import sys
from pathlib import Path

from support.builds import write_images
from support.command import COMMAND_LIMIT_S, environment

SCRIPT = """
import sys
import packer

def note_threads(samples):
    import cv2
    for sample in samples:
        yield {**sample, "threads": cv2.getNumThreads()}

assert "cv2" not in sys.modules
packer.build(sys.argv[1], sys.argv[2], steps=["decode", note_threads], progress=False)

import cv2
import readers
found = readers.open_dataset(sys.argv[2])
print([int(found[row]["threads"]) for row in range(len(found))], cv2.getNumThreads() == int(sys.argv[3]))
"""


def test_one_thread_from_the_first_item_on(tmp_path: Path) -> None:
    source = write_images(tmp_path / "in", ["a.png", "b.png"])
    env = {name: value for name, value in environment().items() if name != "OMP_NUM_THREADS"}
    count = "import cv2; print(cv2.getNumThreads())"
    threads = subprocess.run([sys.executable, "-c", count], env=env, capture_output=True, text=True, check=True).stdout
    arguments = [sys.executable, "-c", SCRIPT, source, tmp_path / "out", threads.strip()]
    done = subprocess.run(arguments, env=env, capture_output=True, text=True, timeout=COMMAND_LIMIT_S, check=False)
    assert done.stdout == "[1, 1] True\n", done.stderr
