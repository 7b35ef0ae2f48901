"""The errors that libav's decoders log, for those that return a damaged frame as if it were whole."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import av.logging

_LOG = threading.Lock()  # libav has one log for the whole process


@contextmanager
def decoder_errors() -> Iterator[list[Any]]:
    """Yield the list of errors that libav logs in this thread in the meantime. Logs of other threads are dropped."""
    with _LOG:
        level, skips = av.logging.get_level(), av.logging.get_skip_repeated()
        av.logging.set_level(av.logging.ERROR)
        av.logging.set_skip_repeated(False)
        try:
            with av.logging.Capture(local=False), av.logging.Capture() as errors:
                yield errors
        finally:
            av.logging.set_skip_repeated(skips)
            av.logging.set_level(level)
