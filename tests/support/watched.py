"""Runs training scripts, and writes down every image that their networks train on: ``python watched.py MODULE…``.

The modules are imported once; each script then runs in forks of this process, one for each rank, which see what
torchrun sets. Every line of standard input is JSON: ``words`` (the script and its arguments), ``folder`` to run in,
``ranks``, and ``killed``, the forward pass, counted from 0, before which each rank ends as if it were killed (negative:
none). The answer is JSON too: ``status`` (the first exit status that is not 0), ``seen`` (for each rank the digests of each batch's images)
and ``output``.
"""

import importlib
import json
import os
import runpy
import signal
import socket
import sys
import tempfile
import traceback
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch

KILLED = 137


def digests(images: torch.Tensor) -> list[str]:
    """A digest of each image of a batch."""
    return [blake2b(picture.contiguous().numpy().tobytes(), digest_size=8).hexdigest() for picture in images]


def main() -> None:
    """Answer requests until the end of standard input."""
    torch.set_num_threads(1)
    for module in sys.argv[1:]:
        importlib.import_module(module)
    for line in sys.stdin:
        request = json.loads(line)
        with tempfile.TemporaryDirectory() as kept:
            status = run_ranks(request, Path(kept))
            ranks = range(request["ranks"])
            seen = [[json.loads(line) for line in (Path(kept) / f"{r}.seen").read_text().splitlines()] for r in ranks]
            output = "".join((Path(kept) / f"{rank}.output").read_text("utf-8", "replace") for rank in ranks)
        print(json.dumps({"status": status, "seen": seen, "output": output}), flush=True)


def run_ranks(request: dict[str, Any], kept: Path) -> int:
    """Fork the ranks and wait for them; when one fails, the others are ended."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    running = set()
    for rank in range(request["ranks"]):
        pid = os.fork()
        if not pid:
            run_rank(request, kept, rank, port)
        running.add(pid)
    failed = 0
    while running:
        pid, status = os.wait()
        running.discard(pid)
        if status and not failed:
            failed = os.waitstatus_to_exitcode(status)
            for other in running:
                os.kill(other, signal.SIGKILL)
    return failed


def run_rank(request: dict[str, Any], kept: Path, rank: int, port: int) -> None:
    """Run the script in this process, and end it."""
    output = os.open(kept / f"{rank}.output", os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(output, stream)
    count = request["ranks"]
    variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "GROUP_RANK": 0}
    variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "none"}
    variables |= {"LT_CLI_USED": 1, "LT_DEVICES": count, "LT_ACCELERATOR": "cpu"}  # as ``fabric run`` does
    os.environ |= {name: str(value) for name, value in variables.items()}
    os.chdir(request["folder"])
    sys.path.insert(0, request["folder"])
    sys.argv = request["words"]
    watch((kept / f"{rank}.seen").open("w", encoding="ascii"), request["killed"])
    status = 0
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def watch(file: Any, killed: int) -> None:
    """Write down what the first convolution of a network in training gets."""
    passes = 0

    def hook(module: torch.nn.Module, inputs: Any) -> None:
        nonlocal passes
        if isinstance(module, torch.nn.Conv2d) and module.in_channels == 3 and module.training:
            if passes == killed:
                os._exit(KILLED)
            file.write(json.dumps(digests(inputs[0].detach())) + "\n")
            file.flush()
            passes += 1

    torch.nn.modules.module.register_module_forward_pre_hook(hook)


if __name__ == "__main__":
    main()
