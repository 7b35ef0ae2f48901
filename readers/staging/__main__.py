"""``python -m readers.staging FOLDER``: the stager of a cache folder. Clients start it (`readers.staging.client`)."""

import sys
from pathlib import Path

from readers.staging.server import serve

if __name__ == "__main__":
    serve(Path(sys.argv[1]))
