"""Settings of object stores: options, the environment, and the configuration files of cloud tools.

`connect` makes the clients of `RemoteStore` from them; `storage_options` passes the options of a recipe to the stores
that are opened in a block. `obstore` reads most environment variables itself, but not ``~/.aws``.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from configparser import ConfigParser, Error
from contextvars import ContextVar
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from feedmill.errors import ConfigError, MissingExtra
from feedmill.storage.remote.errors import cloud_of

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_CLIENT = {"connect_timeout": "10s", "read_timeout": "60s", "timeout": "6h"}
"""A request that receives nothing for a minute is retried. A slow one that makes progress may take six hours."""

_READING = {"connect_timeout": "5s", "read_timeout": "10s", "timeout": "10m", "http1_only": True}
"""Settings for ranges. Each request in flight needs its own connection: HTTP/2 would share one, at half the rate."""

BRISK = 15.0
"""Time limit in seconds for large ranges, used if they usually take less than a quarter of it."""

_TIMES = ("connect_timeout", "read_timeout", "timeout")

_PATIENCE = {"max_retries": 10_000, "retry_timeout": timedelta(minutes=3)}
"""The time is the limit, not the number: ten tries end within ten seconds."""
_HASTE = {"max_retries": 10, "retry_timeout": timedelta(minutes=3)}
"""Used until the server has answered: a wrong address or missing credentials must be reported soon."""

_SECRET = re.compile(r"key|secret|token|password|credential|sas|signature_|authorization", re.IGNORECASE)
_current: ContextVar[Mapping[str, Mapping[str, Any]]] = ContextVar("storage options", default=MappingProxyType({}))
"""Options by URL prefix, set by `storage_options`."""


def is_secret(name: str) -> bool:
    """Return whether an option of this name may hold a secret."""
    return _SECRET.search(name) is not None


@contextlib.contextmanager
def storage_options(options: Mapping[str, Mapping[str, Any]]) -> Iterator[None]:
    """Open stores with options in a block; see `options_for`. They extend and override those of an outer block.

    Args:
        options: options of stores by URL prefix.
    """
    token = _current.set({**_current.get(), **options})
    try:
        yield
    finally:
        _current.reset(token)


def options_for(url: str) -> dict[str, Any]:
    """Return the options that `storage_options` sets for the longest prefix of a URL; none outside of such a block."""
    options = _current.get()
    prefixes = [prefix for prefix in options if _covers(prefix.rstrip("/"), url)]
    return dict(options[max(prefixes, key=len)]) if prefixes else {}


def _covers(prefix: str, url: str) -> bool:
    """Return whether a URL is `prefix` or below it. A repository of the Hub includes its revisions (``name@rev``)."""
    ends = ("", "/", "@") if prefix.startswith("hf://") else ("", "/")
    return url.startswith(prefix) and url[len(prefix) : len(prefix) + 1] in ends


def options_of(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of `connect` for the storage section of a recipe, whose times are in seconds."""
    options = dict(section)
    client = {name: f"{options.pop(name):.3f}s" for name in _TIMES if name in options}
    if "retry_timeout" in options:
        options["retry_config"] = {"retry_timeout": timedelta(seconds=options.pop("retry_timeout"))}
    return {**options, **({"client_options": client} if client else {})}


class Patience(NamedTuple):
    """How often and how long a failed request for a range is retried.

    Attributes:
        tries: maximum number of retries.
        seconds: maximum time since the first try.
        first_pause, longest_pause: limits on the random pause before a retry, in seconds. Its maximum begins with the
            first one and doubles with each try, up to the longest.
    """

    tries: float
    seconds: float
    first_pause: float = 0.1
    longest_pause: float = 5.0


def patience_of(options: dict[str, Any], *, patient: bool) -> Patience:
    """Return the patience for a store's options, with the same defaults and names as `connect`.

    Args:
        patient: whether the server has answered before; it is retried for longer then.
    """
    settings = {**(_PATIENCE if patient else _HASTE), **options.get("retry_config", {})}
    pauses = settings.get("backoff", {})
    first, longest = pauses.get("init_backoff"), pauses.get("max_backoff")
    return Patience(
        settings["max_retries"],
        settings["retry_timeout"].total_seconds(),
        Patience._field_defaults["first_pause"] if first is None else first.total_seconds(),
        Patience._field_defaults["longest_pause"] if longest is None else longest.total_seconds(),
    )


def connect_for_ranges(url: str, options: dict[str, Any], *, brisk: bool = False) -> ObjectStore:
    """Return the `obstore` store that reads ranges and does not retry. Raises as `connect`.

    Args:
        brisk: end a request after `BRISK` seconds, unless the options have a `timeout`.
    """
    limit = {"timeout": f"{BRISK:.0f}s"} if brisk else {}
    client = {**_READING, **limit, **options.get("client_options", {})}
    retries = {**options.get("retry_config", {}), "max_retries": 0}
    return connect(url, {**options, "client_options": client, "retry_config": retries}, patient=True)


def connect(url: str, options: dict[str, Any], *, patient: bool) -> ObjectStore:
    """Return the `obstore` store for a URL. No request is made.

    Args:
        patient: retry failed requests for three minutes; else at most ten times.

    Raises:
        ConfigError: the URL or an option is invalid.
    """
    import obstore.store
    from obstore.exceptions import BaseError

    from_url: Callable[..., ObjectStore] = obstore.store.from_url  # its overloads list every option of every cloud
    cloud = cloud_of(url)
    settings = dict(options)
    profile = settings.pop("profile", None)
    if cloud == "s3":
        # Files are deleted one by one, and not all servers with S3's interface know requests for several of them.
        settings = {"disable_bulk_delete": True, **_shared_aws_settings(settings, profile), **settings}
    if cloud == "gs" and "endpoint" in settings:
        settings["base_url"] = settings.pop("endpoint")
    settings["retry_config"] = {**(_PATIENCE if patient else _HASTE), **settings.pop("retry_config", {})}
    client = {**_CLIENT, **settings.pop("client_options", {})}
    if _is_plain_http(url, settings):
        client.setdefault("allow_http", True)
    try:
        # Object keys are literal, as in the clouds' own tools: "%20" in a URL is three characters of a name.
        exact = url if cloud.startswith("http") else quote(url, safe=":/@!$&'()*+,;=~")
        return from_url(exact, client_options=client, **settings)
    except (BaseError, ValueError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"the URL or an option of the store is invalid ({reason})",
            file=url,
            fix="Use a path, s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or https://host/folder,"
            " and check the options and environment variables of the store.",
        ) from None


_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
"""Environment variables with the address of a server, by scheme; the first one that is set is used."""


def _is_plain_http(url: str, settings: dict[str, Any]) -> bool:
    """Return whether an http:// address was given explicitly."""
    names = _ENDPOINTS.get(cloud_of(url), ())
    endpoint = (
        settings.get("endpoint")
        or settings.get("base_url")
        or next((os.environ[name] for name in names if name in os.environ), "")
    )
    return url.startswith("http://") or str(endpoint).startswith("http://")


def _shared_aws_settings(given: dict[str, Any], profile: str | None) -> dict[str, Any]:
    """Return credentials, region and endpoint of a profile in ``~/.aws`` that neither `given` nor the environment sets.

    For a profile with single sign-on, a role or a program, boto3 provides the credentials and renews them.

    Args:
        given: options that override the profile.
        profile: its name, which overrides credentials in the environment; None for that of ``AWS_PROFILE``.
    """
    environment = os.environ
    is_explicit, profile = profile is not None, profile or environment.get("AWS_PROFILE", "default")
    home = Path(os.path.expanduser("~")) / ".aws"  # not `Path.home`, which raises an error if the user has no home
    section = profile if profile == "default" else f"profile {profile}"
    config = _section(environment.get("AWS_CONFIG_FILE", home / "config"), section)
    options = {**config, **_section(environment.get("AWS_SHARED_CREDENTIALS_FILE", home / "credentials"), profile)}
    if is_explicit and not options:
        raise ConfigError(f"there is no profile {profile!r} in ~/.aws", kind="bad-profile", fix="Check its name.")
    settings: dict[str, Any] = {}
    if not {"access_key_id", "skip_signature"} & set(given) and (is_explicit or "AWS_ACCESS_KEY_ID" not in environment):
        names = ("access_key_id", "secret_access_key", "session_token")
        settings = {name: options[f"aws_{name}"] for name in names if f"aws_{name}" in options}
        if "access_key_id" not in settings and _PROVIDERS & options.keys():
            settings = {"credential_provider": _provider(profile)}
    if "region" in config and (is_explicit or not {"AWS_REGION", "AWS_DEFAULT_REGION"} & set(environment)):
        settings["region"] = config["region"]
    endpoints = {"AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_ENDPOINT_URL_S3"}
    if "endpoint_url" in config and (is_explicit or not endpoints & set(environment)):
        settings["endpoint"] = config["endpoint_url"]
    return settings


_PROVIDERS = {"sso_session", "sso_start_url", "role_arn", "credential_process", "web_identity_token_file"}
"""Options of AWS profiles whose credentials are not in a file."""
_LIFE = timedelta(minutes=10)
"""Time after which boto3 is called again; it renews credentials that expire within that time."""


def _provider(profile: str) -> Any:
    """Return the credential provider of a profile. Raises `MissingExtra` if boto3 is not installed."""
    try:
        import boto3
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        raise MissingExtra(
            f"the profile {profile!r} uses single sign-on, a role or a program, which needs boto3",
            "s3",
            fix="Install it with: pip install 'feedmill[s3]', or export credentials: aws configure export-credentials"
            " --format env",
        ) from None
    return Boto3CredentialProvider(boto3.Session(profile_name=profile), ttl=_LIFE)


def _section(path: str | Path, name: str) -> dict[str, str]:
    """Return a section of an INI file; empty if the file or the section is absent. Raises `ConfigError`."""
    parser = ConfigParser(interpolation=None)
    try:
        parser.read(path)
        return dict(parser[name]) if parser.has_section(name) else {}
    except (OSError, Error, UnicodeDecodeError) as error:
        raise ConfigError(f"the file cannot be read ({error})", file=str(path), fix="Fix it or remove it.") from None
