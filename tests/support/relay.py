"""A relay before a store, in a process of its own. A file says what is wrong with the store."""

import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

AWAY, SLOW, REFUSING = "away", "slow", "503"
"""No byte passes; every part of a request or answer takes long; every request is refused."""

_SLOW_S = 0.5
_LOOK_S = 0.1
_REFUSAL = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


def _read(file: Path) -> str:
    with suppress(FileNotFoundError):
        return file.read_text()
    return ""


def _serve(client: socket.socket, port: int, file: Path) -> None:
    def pass_on(source: socket.socket, target: socket.socket, refuse: Callable[[], None] | None = None) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                while (fault := _read(file)) == AWAY:
                    time.sleep(_LOOK_S)
                if fault == SLOW:
                    time.sleep(_SLOW_S)
                if fault == REFUSING and refuse is not None:
                    return refuse()
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def refuse() -> None:
        client.sendall(_REFUSAL)
        store.shutdown(socket.SHUT_RDWR)
        while client.recv(1 << 16):  # a client that is still sending would lose the answer
            pass

    with client, socket.create_connection(("127.0.0.1", port)) as store:
        requests = threading.Thread(target=pass_on, args=(client, store, refuse), daemon=True)
        requests.start()
        pass_on(store, client)
        requests.join()


def _relay(port: int, store_port: int, file: Path) -> None:
    with socket.create_server(("127.0.0.1", port)) as listener:
        while True:
            threading.Thread(target=_serve, args=(listener.accept()[0], store_port, file), daemon=True).start()


if __name__ == "__main__":
    _relay(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
