"""`make demo`: make a small dataset, pack its faces, train on raw and packed data, and print both speeds."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
FOLDER = HERE.parent / "demo-data"
EVERY = 5


def run(*command: object) -> str:
    """Run a command in a process, show it and its output, and return the last line."""
    words = [str(word) for word in command]
    print("\n$", " ".join(word.replace(sys.executable, "python") for word in words), flush=True)
    lines = []
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            lines.append(line.rstrip())
            if not line.startswith("[{"):
                print(line, end="", flush=True)
    if process.returncode:
        raise SystemExit(process.returncode)
    return lines[-1] if lines else ""


def main() -> None:
    """Run the demo. Its files stay in `demo-data/`."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    raw, packed = FOLDER / "raw", FOLDER / "faces"
    run(sys.executable, HERE / "make_data.py", raw)
    started_s = time.perf_counter()
    options = (
        "--preset",
        "faces",
        "--format",
        "lmdb",
        "--every",
        EVERY,
        "--label-from",
        "folder",
        "--choose",
        "largest",
    )
    run(sys.executable, "-m", "packer", "build", raw, packed, *options)
    pack_s = time.perf_counter() - started_s
    run(sys.executable, "-m", "packer", "verify", packed)
    run(sys.executable, "-m", "packer", "preview", packed, "-o", FOLDER / "sheet.png")
    slow = json.loads(run(sys.executable, HERE / "train_plain.py", raw, "--raw", "--every", EVERY))
    fast = json.loads(run(sys.executable, HERE / "train_plain.py", packed))
    print(f"\n{'':24}{'epoch 1':>14}{'epoch 2':>14}   samples/s, 2 workers")
    print(f"{'MTCNN in __getitem__':24}" + "".join(f"{epoch['samples_per_s']:14.1f}" for epoch in slow))
    print(f"{'packed':24}" + "".join(f"{epoch['samples_per_s']:14.1f}" for epoch in fast))
    ratio = fast[-1]["samples_per_s"] / slow[-1]["samples_per_s"]
    print(
        f"\nSecond epoch {ratio:.0f} times faster. Packing took {pack_s:.1f} s, once. Look at {FOLDER.name}/sheet.png."
    )


if __name__ == "__main__":
    main()
