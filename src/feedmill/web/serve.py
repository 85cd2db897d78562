"""The verb ``serve``: look at datasets, recipes and runs in a browser."""

from __future__ import annotations

import errno
import gc
import ipaddress
import logging
import os
import secrets
import socket

from feedmill.errors import ConfigError, MissingExtra, StorageError
from feedmill.jobs.options import verb
from feedmill.web.library import Library
from feedmill.web.options import Serve

PORT, _TRIED = 7788, 20


@verb(Serve)
def serve(options: Serve) -> None:
    """A visitor must know the random token of the address that is passed to `on_start`, unless `token` is false.

    Raises:
        ConfigError: nothing is given, or a server without a token would listen on other addresses than this machine's.
        MissingExtra: the packages of the extra ``web`` are missing.
        NotFound: there is nothing at a path.
        StorageError: the port is in use.
    """
    try:
        import uvicorn

        from feedmill.web.app import app_of
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("uvicorn", "starlette", "jinja2", "markupsafe"):
            raise
        raise MissingExtra(f"serve needs {error.name}", extra="web") from None
    host = options.host
    if not options.token and host not in ("127.0.0.1", "::1", "localhost"):
        raise ConfigError(f"without a token, {host} would let everybody on the network read", fix="Keep the token.")
    given = [options.paths] if isinstance(options.paths, str | os.PathLike) else list(options.paths)
    library = Library(given, loss=options.loss, tokenizer=options.tokenizer, trust=options.trust, edit=options.edit)
    gc.freeze()  # what is open stays: collections while pages are made need not look at it
    listening = _listen(host, options.port)
    number = listening.getsockname()[1]
    secret = secrets.token_urlsafe(18) if options.token else None
    shown = host if ":" not in host else f"[{host}]"
    if _is_everywhere(host):
        shown = "[::1]" if ":" in host else "127.0.0.1"
    known = {shown, "localhost", "127.0.0.1", "[::1]", *options.names}
    if _is_everywhere(host):
        known.add(socket.gethostname())
    app = app_of(library, token=secret, hosts=[f"{name}:{number}" for name in known], warm=True)
    config = uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="off", server_header=False, timeout_graceful_shutdown=1
    )
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    options.on_start(f"http://{shown}:{number}/" + ("" if secret is None else f"?token={secret}"))
    uvicorn.Server(config).run(sockets=[listening])


def _is_everywhere(host: str) -> bool:
    """Return whether an address stands for all addresses of this machine."""
    try:
        return not host or ipaddress.ip_address(host).is_unspecified
    except ValueError:  # a name
        return False


def _listen(host: str, port: int | None) -> socket.socket:
    """Return a listening socket. Raises `StorageError` if the port is in use."""
    wanted = range(PORT, PORT + _TRIED) if port is None else [port]
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for number in wanted:
        found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # else asyncio leaves its delays on
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind((host, number))
            found.listen(128)
            return found
        except OSError as error:
            found.close()
            if error.errno != errno.EADDRINUSE:
                raise StorageError(f"cannot listen on {host}:{number} ({error.strerror})", kind="no-port") from None
    raise StorageError(
        f"port {wanted[0]} is in use" if port is not None else f"the ports {PORT} to {PORT + _TRIED - 1} are in use",
        kind="no-port",
        fix="Give another with --port, or --port 0 for any.",
    )
