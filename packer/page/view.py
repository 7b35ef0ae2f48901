"""``packer view``: a server on this machine whose pages show packed datasets, and a build while it runs."""

import errno
import os
import secrets
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import uvicorn

from packer.page.dataset import ShownDataset
from packer.page.looking import Looking
from packer.page.server import Guard, Pages
from shardspec.errors import UsageError

LOOPBACK = "127.0.0.1"
DEFAULT_PORT = 8017
_TOKEN_BYTES = 16
_GRACE_S = 1


def view(
    datasets: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    source: str | os.PathLike[str] | None = None,
    table: str | os.PathLike[str] | None = None,
    host: str = LOOPBACK,
    port: int | None = None,
) -> None:
    """Serve pages that show packed datasets until Ctrl-C. The address is printed on standard error.

    Parameters
    ----------
    datasets : path or sequence of path
        Packed datasets.
    source : path, optional
        The folder that the dataset was packed from: frames are drawn with the boxes that were cut from them, and
        rejected items are shown.
    table : path, optional
        CSV, TSV, JSON lines or Parquet with a column ``key``: its other columns are shown as further fields. With a
        column ``loss``, or ``prediction`` (a class, compared with ``label``), the worst samples come first.
    host : str
        The address to listen on. Any other than this machine's own lets others in who know the address.
    port : int, optional
        By default 8017, or another if that is taken.

    Raises
    ------
    UsageError
        If an argument is invalid, or the port is taken.
    DatasetError
        If a dataset cannot be read.
    """
    paths = [Path(path) for path in ([datasets] if isinstance(datasets, str | os.PathLike) else datasets)]
    if not paths:
        raise UsageError("expected a packed dataset or several, found none")
    folder, joined = (None if path is None else Path(path) for path in (source, table))
    shown = [Looking(ShownDataset(path, joined), folder) for path in paths]
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    with _listen(host, port) as listener:
        for line in describe_address(listener.getsockname()[:2], token, os.environ.get("SSH_CONNECTION", "")):
            print(line, file=sys.stderr, flush=True)
        guard = Guard(Pages(shown, token).app(), token, host)
        settings = uvicorn.Config(
            guard,
            log_level="error",
            access_log=False,
            server_header=False,
            lifespan="off",
            timeout_graceful_shutdown=_GRACE_S,
        )
        uvicorn.Server(settings).run(sockets=[listener])


def describe_address(address: tuple[str, int], token: str, ssh: str = "") -> list[str]:
    """The lines that say where the pages are, over SSH with the tunnel's command.

    Parameters
    ----------
    address : (str, int)
        Host and port of the listening socket.
    token : str
    ssh : str
        ``SSH_CONNECTION``: the addresses and ports of the client and of this machine.
    """
    host, port = address
    bracketed = f"[{host}]" if ":" in host else host
    lines = [f"packer view: http://{bracketed}:{port}/{token}/ (Ctrl-C ends it)"]
    parts = ssh.split()
    if len(parts) == 4 and host in (LOOPBACK, "::1"):
        server = parts[2]
        lines.append(f"from your own machine: ssh -L {port}:{bracketed}:{port} {server}, then open the address there")
    return lines


def _listen(host: str, port: int | None) -> socket.socket:
    """A listening socket; without a port that was asked for, any that is free."""
    if port is not None and not 0 <= port < 1 << 16:
        raise UsageError(f"port: expected 0 to 65535, found {port}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, DEFAULT_PORT if port is None else port), family=family)
    except OSError as error:
        if port is None and error.errno == errno.EADDRINUSE:
            return _listen(host, 0)
        reason = os.strerror(error.errno) if error.errno is not None else str(error)
        asked = DEFAULT_PORT if port is None else port
        raise UsageError(f"host {host}, port {asked}: cannot listen: {reason}") from error
