"""The verb ``serve``: look at datasets, recipes and runs in a browser."""

from __future__ import annotations

import errno
import gc
import ipaddress
import logging
import os
import secrets
import socket
from collections.abc import Callable, Sequence

from feedmill.errors import ConfigError, MissingExtra, StorageError
from feedmill.web.library import Library

PORT, _TRIED = 7788, 20


def serve(
    paths: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    token: bool = True,
    loss: str | None = None,
    tokenizer: str | Sequence[str] | None = None,
    trust: bool = False,
    edit: bool = False,
    names: Sequence[str] = (),
    on_start: Callable[[str], None] = print,
) -> None:
    """Show datasets, recipes, pipelines and telemetry until interrupted. Nothing is written except with `edit`.

    Args:
        paths: datasets of any format, recipes, pipelines or their manifests, telemetry of loaders.
        host: address to listen on; by default only this machine.
        port: port to listen on, 0 for any free one; by default 7788, or the next free one.
        token: whether a visitor must know the random token of the address that is passed to `on_start`.
        loss: loss log of the recipes' run: CSV, JSON lines or TensorBoard.
        tokenizer: tokenizer of token files whose manifest names none, and of documents whose lengths are shown.
        trust: allow code that the data names to run.
        edit: allow pages to write copies of recipes with other weights, beside the recipe; nothing is overwritten.
        names: further names of this machine that browsers may use in the address.
        on_start: called with the address when pages can be opened.

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
    if not token and host not in ("127.0.0.1", "::1", "localhost"):
        raise ConfigError(f"without a token, {host} would let everybody on the network read", fix="Keep the token.")
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    library = Library(given, loss=loss, tokenizer=tokenizer, trust=trust, edit=edit)
    gc.freeze()  # what is open stays: collections while pages are made need not look at it
    listening = _listen(host, port)
    number = listening.getsockname()[1]
    secret = secrets.token_urlsafe(18) if token else None
    shown = host if ":" not in host else f"[{host}]"
    if _is_everywhere(host):
        shown = "[::1]" if ":" in host else "127.0.0.1"
    known = {shown, "localhost", "127.0.0.1", "[::1]", *names}
    if _is_everywhere(host):
        known.add(socket.gethostname())
    app = app_of(library, token=secret, hosts=[f"{name}:{number}" for name in known])
    config = uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="off", server_header=False, timeout_graceful_shutdown=1
    )
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    on_start(f"http://{shown}:{number}/" + ("" if secret is None else f"?token={secret}"))
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
