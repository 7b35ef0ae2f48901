"""Slurm's commands as scripts that run everything on this host: an allocation of two nodes, without any daemon."""

import os
from pathlib import Path

NODES = ("n1", "n2")

_SCRIPTS = {
    "srun": """\
echo "$@" >> "$FAKE_SLURM/srun.log"
while [ "${1#-}" != "$1" ]; do case "$1" in --nodelist=*) node=${1#*=};; esac; shift; done
if [ -e "$FAKE_SLURM/down-$node" ]; then echo "srun: error: Node failure on $node" >&2; exit 1; fi
SLURM_STEP_ID=$$ SLURMD_NODENAME=$node exec "$@"
""",
    "scontrol": """\
case "$2" in
hostnames) echo "$3" | tr , '\\n';;
node) for node in n1 n2; do echo "NodeName=$node State=ALLOCATED+CLOUD RealMemory=4000 AllocMem=0"; done;;
esac
""",
    "squeue": "",
    "scancel": """echo "$@" >> "$FAKE_SLURM/scancel.log" """,
}


def fake_slurm(folder: Path) -> dict[str, str]:
    """Write the scripts, and return the environment of the allocation. A file ``down-NODE`` there loses a node."""
    for name, script in _SCRIPTS.items():
        path = folder / "bin" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    return {
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "FAKE_SLURM": str(folder),
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": ",".join(NODES),
        "SLURM_JOB_CPUS_PER_NODE": "2(x2)",
        "SLURM_CPUS_PER_TASK": "2",
    }
