"""Settings of object stores: options, the environment, and the configuration files of cloud tools."""

from __future__ import annotations

import os
from collections.abc import Callable
from configparser import ConfigParser, Error
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from feedmill.errors import ConfigError

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_CLIENT = {"connect_timeout": "10s", "read_timeout": "60s", "timeout": "6h"}
"""A request that is silent for a minute is given up, and tried again; a slow one that moves is not, for six hours."""

_READING = {"connect_timeout": "5s", "read_timeout": "10s", "timeout": "10m", "http1_only": True}
"""For ranges. A request in flight needs a connection of its own: HTTP/2 would share one, at half the rate."""

_PATIENCE = {"max_retries": 10_000, "retry_timeout": timedelta(minutes=3)}
"""The time decides, not the number: ten tries are over within ten seconds."""
_HASTE = {"max_retries": 10, "retry_timeout": timedelta(minutes=3)}
"""Until something answered: a wrong address or missing credentials should be reported soon."""


class Patience(NamedTuple):
    """How often and how long a failed request for a range is tried again.

    Attributes:
        tries: further tries.
        seconds: since the first one.
        first_pause, longest_pause: limits in seconds of the random pause before a try, which doubles.
    """

    tries: float
    seconds: float
    first_pause: float = 0.1
    longest_pause: float = 5.0


def patience_of(options: dict[str, Any], *, patient: bool) -> Patience:
    """Return the patience for a store's options, with the same defaults and names as `connect`."""
    given = {**(_PATIENCE if patient else _HASTE), **options.get("retry_config", {})}
    pauses = given.get("backoff", {})
    first, longest = pauses.get("init_backoff"), pauses.get("max_backoff")
    return Patience(
        given["max_retries"],
        given["retry_timeout"].total_seconds(),
        Patience._field_defaults["first_pause"] if first is None else first.total_seconds(),
        Patience._field_defaults["longest_pause"] if longest is None else longest.total_seconds(),
    )


def connect_for_ranges(url: str, options: dict[str, Any]) -> ObjectStore:
    """Return the `obstore` store that reads ranges and does not try again by itself. Raises as `connect`."""
    client = {**_READING, **options.get("client_options", {})}
    retries = {**options.get("retry_config", {}), "max_retries": 0}
    return connect(url, {**options, "client_options": client, "retry_config": retries}, patient=True)


def connect(url: str, options: dict[str, Any], *, patient: bool) -> ObjectStore:
    """Return the `obstore` store for a URL. No request is made. Raises `ConfigError`.

    Args:
        patient: retry failed requests for three minutes; else ten times.
    """
    import obstore.store
    from obstore.exceptions import BaseError

    from_url: Callable[..., ObjectStore] = obstore.store.from_url  # its overloads name every option of every cloud
    scheme = url.partition("://")[0]
    settings = dict(options)
    if scheme in ("s3", "s3a"):
        settings = {**_shared_aws_settings(settings), **settings}
    settings["retry_config"] = {**(_PATIENCE if patient else _HASTE), **settings.pop("retry_config", {})}
    client = {**_CLIENT, **settings.pop("client_options", {})}
    if _is_plain_http(url, settings):
        client.setdefault("allow_http", True)
    try:
        # Object keys are taken literally, as the clouds' own tools do: "%20" in a URL is three characters of a name.
        exact = url if scheme.startswith("http") else quote(url, safe=":/@!$&'()*+,;=~")
        return from_url(exact, client_options=client, **settings)
    except (BaseError, ValueError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"the storage cannot be set up ({reason})",
            file=url,
            fix="Use a path, s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or https://host/folder,"
            " and check the options and environment variables of the store.",
        ) from None


def _is_plain_http(url: str, settings: dict[str, Any]) -> bool:
    """Return whether an http:// address was given explicitly."""
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    endpoint = settings.get("endpoint") or next((os.environ[name] for name in names if name in os.environ), "")
    return url.startswith("http://") or str(endpoint).startswith("http://")


def _shared_aws_settings(given: dict[str, Any]) -> dict[str, str]:
    """Return keys, region and endpoint of the profile in ``~/.aws`` that neither `given` nor the environment sets.

    Only keys stored in the files are used; for single sign-on and roles, export them first with
    ``aws configure export-credentials --format env``.
    """
    environment = os.environ
    profile = environment.get("AWS_PROFILE", "default")
    home = Path(os.path.expanduser("~")) / ".aws"  # which gives "~" itself to a user without a home, as in containers
    section = profile if profile == "default" else f"profile {profile}"
    config = _section(environment.get("AWS_CONFIG_FILE", home / "config"), section)
    keys = {**config, **_section(environment.get("AWS_SHARED_CREDENTIALS_FILE", home / "credentials"), profile)}
    found: dict[str, str] = {}
    if not {"access_key_id", "skip_signature"} & set(given) and "AWS_ACCESS_KEY_ID" not in environment:
        names = ("access_key_id", "secret_access_key", "session_token")
        found = {name: keys[f"aws_{name}"] for name in names if f"aws_{name}" in keys}
    if "region" in config and not {"AWS_REGION", "AWS_DEFAULT_REGION"} & set(environment):
        found["region"] = config["region"]
    if "endpoint_url" in config and not {"AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_ENDPOINT_URL_S3"} & set(environment):
        found["endpoint"] = config["endpoint_url"]
    return found


def _section(path: str | Path, name: str) -> dict[str, str]:
    parser = ConfigParser(interpolation=None)
    try:
        parser.read(path)
        return dict(parser[name]) if parser.has_section(name) else {}
    except (OSError, Error, UnicodeDecodeError) as error:
        raise ConfigError(f"the file cannot be read ({error})", file=str(path), fix="Fix it or remove it.") from None
