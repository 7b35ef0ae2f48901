"""A module run as a command, with what it took.

    python -m benchmarks.timed REPORT MODULE [ARGUMENT...]

REPORT receives, as JSON, the CPU seconds and the peak memory (MB) of the process itself and of the processes that it
has started and waited for; the peak of those is that of the largest. Memory counts mapped files, too.
"""

import json
import resource
import runpy
import sys
from pathlib import Path


def usage(whose: int) -> dict[str, float]:
    """CPU seconds and peak memory of this process or its children."""
    found = resource.getrusage(whose)
    return {"cpu_s": found.ru_utime + found.ru_stime, "peak_mb": found.ru_maxrss / 1e3}


def main() -> None:
    """Run the module, and write the report even if it fails."""
    report, module = Path(sys.argv[1]), sys.argv[2]
    sys.argv = [module, *sys.argv[3:]]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        found = {"own": usage(resource.RUSAGE_SELF), "workers": usage(resource.RUSAGE_CHILDREN)}
        report.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
