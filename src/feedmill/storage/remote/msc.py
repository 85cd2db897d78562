"""Profiles of NVIDIA's Multi-Storage Client: ``msc://profile/path`` as a URL of a store with its options.

The client's own configuration file is read: that of ``MSC_CONFIG``, else the first of the places where the client
looks for it. A profile is data: where its bytes lie, and with what keys they are read. It is translated to a URL and
options of our own stores, so it is read as any bucket is. What it says about the client itself (its cache, its retries,
how many threads it has) is ignored. Classes that a configuration may name are never imported.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import yaml

from feedmill.errors import ConfigError
from feedmill.storage.limits import check_nesting

logger = logging.getLogger("feedmill")

SCHEME = "msc"
POSIX = "__filesystem__"
"""The client's name for the profile of this machine's files."""
_VARIABLE = re.compile(r"\$(?:\{([^}]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
_CLASSES = ("metadata_provider", "provider_bundle", "storage_provider_profiles")
_announced: set[str] = set()
_read: dict[tuple[str, int, int], Config] = {}
_UNSUPPORTED = (
    "Feedmill reads profiles of the types s3, s8k, gcs, gcs_s3, azure, huggingface and file. Give the data's own URL,"
    " or one of fsspec, instead."
)


class Place(NamedTuple):
    """A URL, or a path of this machine, and the options of its store, which may hold secrets."""

    url: str
    options: Mapping[str, Any] = {}


class Config(NamedTuple):
    """A configuration of the client: its file, its profiles by name, and profiles by the beginnings of other URLs."""

    file: str
    profiles: Mapping[str, Any]
    mapping: Mapping[str, str]


def resolve(url: str) -> Place:
    """Return where the bytes of a URL lie: that of its profile, or the URL itself.

    A URL of a bucket that the configuration maps to a profile (``path_mapping``) has the place of the profile, too.

    Raises:
        ConfigError: there is no such profile, or it cannot be used; the error has the file and what to do.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme in ("file", "http", "https"):
        return Place(url)
    if scheme != SCHEME:
        return _mapped(url)
    name, _, path = rest.partition("/")
    if name == POSIX:
        return Place("/" + path.lstrip("/"))
    config = _config()
    if config is None:
        raise ConfigError(
            f"the profile {name!r} is not known: there is no configuration of the Multi-Storage Client",
            file=url,
            kind="no-profile",
            fix="Set MSC_CONFIG to its file, or write it to ~/.msc_config.yaml.",
        )
    return _place(config, name, path)


def _mapped(url: str) -> Place:
    config = _config()
    if config is None:
        return Place(url)
    found = [begin for begin in config.mapping if f"{url}/".startswith(begin)]
    if not found:
        return Place(url)
    begin = max(found, key=len)
    if begin not in _announced:
        _announced.add(begin)
        logger.info("%s: URLs with %s are those of %s", config.file, begin, config.mapping[begin])
    name, _, path = config.mapping[begin].removeprefix(f"{SCHEME}://").partition("/")
    return _place(config, name, path + f"{url}/"[len(begin) :].rstrip("/"))


def _place(config: Config, name: str, path: str) -> Place:
    """Return the place of a path of a profile."""
    profile = config.profiles.get(name)
    if not isinstance(profile, Mapping):
        known = ", ".join(sorted(map(str, config.profiles))) or "none"
        raise ConfigError(
            f"there is no profile {name!r}: the profiles are {known}",
            file=config.file,
            kind="no-profile",
            fix="Check the URL. Profiles in files of rclone are not read.",
        )
    said = _Profile(config.file, name)
    for word in _CLASSES:
        if word in profile:
            raise said.unsupported(f"{word!r}")
    provider = said.part(profile, "storage_provider")
    kind, options = provider.get("type"), said.part(provider, "options")
    make = _PROVIDERS.get(str(kind))
    if make is None:
        raise said.unsupported(f"the storage provider {kind!r}")
    base, given = str(said.filled(options.get("base_path", ""))), said.filled(options)
    credentials = profile.get("credentials_provider")
    keys = {} if credentials is None else said.keys(said.part(profile, "credentials_provider"))
    return make(said, "/".join(filter(None, (base.rstrip("/"), path.strip("/")))), given, keys)


class _Profile:
    """What one profile says; its errors name file and profile."""

    def __init__(self, file: str, name: str) -> None:
        self.file, self.name = file, name

    def error(self, what: str, fix: str, kind: str = "bad-profile") -> ConfigError:
        return ConfigError(f"profile {self.name!r}: {what}", file=self.file, kind=kind, fix=fix)

    def unsupported(self, what: str) -> ConfigError:
        return self.error(f"{what} is not supported", _UNSUPPORTED, "not-supported")

    def part(self, above: Mapping[str, Any], key: str) -> Mapping[str, Any]:
        found = above.get(key) or {}
        if not isinstance(found, Mapping):
            raise self.error(f"{key!r}: expected a mapping, found {type(found).__name__}", "Fix the file.")
        return found

    def filled(self, value: Any) -> Any:
        """Return a value with the variables of the environment filled in."""
        if isinstance(value, Mapping):
            return {key: self.filled(each) for key, each in value.items()}
        if isinstance(value, list):
            return [self.filled(each) for each in value]
        return _VARIABLE.sub(self._variable, value) if isinstance(value, str) else value

    def _variable(self, match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name not in os.environ:
            raise self.error(f"the variable {name} of the environment is not set", f"Set {name}.", "no-variable")
        return os.environ[name]

    def text(self, options: Mapping[str, Any], name: str) -> str:
        if not isinstance(options.get(name), str) or not options[name]:
            raise self.error(f"{name!r} is missing", "Add it to the profile.")
        return str(options[name])

    def keys(self, provider: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of our stores for a credentials provider."""
        kind, options = str(provider.get("type")), self.filled(self.part(provider, "options"))
        if kind == "S3Credentials":
            return self._s3_keys(options, "access_key", "secret_key", "session_token")
        if kind == "FileBasedCredentials":
            return self._s3_keys(
                self._json(self.text(options, "credential_file_path")), "AccessKeyId", "SecretAccessKey", "SessionToken"
            )
        if kind == "AzureCredentials":
            return _azure_keys(self.text(options, "connection"))
        if kind == "DefaultAzureCredentials":
            return {}  # those of the environment
        if kind == "GoogleServiceAccountCredentialsProvider":
            if options.get("info"):
                return {"service_account_key": json.dumps(options["info"])}
            return {"service_account": self.text(options, "file")}
        if kind == "HuggingFaceCredentials":
            return {"token": self.text(options, "access_token")}
        raise self.unsupported(f"the credentials provider {kind!r}")

    def _s3_keys(self, options: Mapping[str, Any], key: str, secret: str, token: str) -> dict[str, Any]:
        found = {"access_key_id": self.text(options, key), "secret_access_key": self.text(options, secret)}
        return {**found, **({"session_token": options[token]} if options.get(token) else {})}

    def _json(self, path: str) -> Mapping[str, Any]:
        try:
            found = json.loads(Path(path).read_bytes())
        except (OSError, ValueError) as error:
            raise self.error(f"the credentials in {path} cannot be read ({error})", "Write the file again.") from None
        return found if isinstance(found, Mapping) else {}


def _azure_keys(connection: str) -> dict[str, Any]:
    """Return the options for a connection string of Azure."""
    words = dict(word.partition("=")[::2] for word in connection.split(";") if "=" in word)
    names = {"AccountName": "account_name", "AccountKey": "account_key", "BlobEndpoint": "endpoint"}
    found = {ours: words[theirs] for theirs, ours in names.items() if words.get(theirs)}
    if words.get("SharedAccessSignature"):
        found["sas_token"] = words["SharedAccessSignature"]
    return found


def _s3(said: _Profile, path: str, options: Mapping[str, Any], keys: dict[str, Any]) -> Place:
    found = dict(keys)
    for theirs, ours in (("region_name", "region"), ("endpoint_url", "endpoint")):
        if options.get(theirs):
            found[ours] = options[theirs]
    if options.get("profile_name") and not keys:
        found["profile"] = options["profile_name"]
    if options.get("signature_version") == "UNSIGNED":
        found["skip_signature"] = True
    if said.part(options, "s3").get("addressing_style") == "virtual":
        found["virtual_hosted_style_request"] = True
    client: dict[str, Any] = {
        name: f"{options[name]}s" for name in ("connect_timeout", "read_timeout") if options.get(name)
    }
    if options.get("verify") is False:
        client["allow_invalid_certificates"] = True
    return _bucket(said, "s3", path, {**found, **({"client_options": client} if client else {})})


def _gcs(said: _Profile, path: str, options: Mapping[str, Any], keys: dict[str, Any]) -> Place:
    found = dict(keys)
    if options.get("endpoint_url"):
        found["base_url"] = options["endpoint_url"]
    if options.get("skip_signature"):
        found["skip_signature"] = True
    return _bucket(said, "gs", path, found)


def _azure(said: _Profile, path: str, options: Mapping[str, Any], keys: dict[str, Any]) -> Place:
    endpoint = said.text(options, "endpoint_url").rstrip("/")
    host, inside = urlsplit(endpoint).hostname or "", urlsplit(endpoint).path.strip("/")
    name = host.partition(".")[0] if host.endswith(".windows.net") else inside  # as of a server for tests
    account = {"account_name": name} if name else {}
    return _bucket(said, "az", path, {**account, "endpoint": endpoint, **keys})


def _huggingface(said: _Profile, path: str, options: Mapping[str, Any], keys: dict[str, Any]) -> Place:
    kind = str(options.get("repo_type", "model"))
    prefix = {"dataset": "datasets/", "space": "spaces/", "model": ""}.get(kind)
    if prefix is None:
        raise said.error(f"'repo_type' is {kind!r}", "Write dataset, model or space.")
    revision = str(options.get("repo_revision") or "main").replace("/", "%2F")
    return Place(f"hf://{prefix}{said.text(options, 'repository_id')}@{revision}/{path}".rstrip("/"), keys)


def _file(said: _Profile, path: str, options: Mapping[str, Any], keys: dict[str, Any]) -> Place:  # noqa: ARG001
    return Place("/" + path.lstrip("/"))


def _bucket(said: _Profile, scheme: str, path: str, options: Mapping[str, Any]) -> Place:
    bucket = path.lstrip("/")
    if not bucket:
        raise said.error("the URL names no bucket, and 'base_path' is empty", "Write msc://PROFILE/BUCKET/PATH.")
    return Place(f"{scheme}://{bucket}", options)


_PROVIDERS: dict[str, Callable[[_Profile, str, Mapping[str, Any], dict[str, Any]], Place]] = {
    "s3": _s3,
    "s8k": _s3,
    "gcs_s3": _s3,
    "gcs": _gcs,
    "azure": _azure,
    "huggingface": _huggingface,
    "file": _file,
}


def _places() -> list[str]:
    """Return the paths where the client looks for its configuration, in its order."""
    environment = os.environ
    folders = [environment["XDG_CONFIG_HOME"] + "/msc/config"] if environment.get("XDG_CONFIG_HOME") else []
    if environment.get("HOME"):
        folders += [environment["HOME"] + "/.msc_config", environment["HOME"] + "/.config/msc/config"]
    shared = environment.get("XDG_CONFIG_DIRS") or "/etc/xdg"
    folders += [f"{folder.strip()}/msc/config" for folder in shared.split(":") if folder.strip()]
    return [f"{path}.{end}" for path in (*folders, "/etc/msc_config") for end in ("yaml", "json")]


def _config() -> Config | None:
    """Return the configuration, or None if there is none. Raises `ConfigError` if it cannot be read."""
    given = os.environ.get("MSC_CONFIG")
    path = given or next((path for path in _places() if os.path.exists(path)), None)
    if path is None:
        return None
    path = os.path.abspath(path)
    try:
        status = os.stat(path)
    except OSError as error:
        raise ConfigError(
            f"the file of MSC_CONFIG cannot be read ({error.strerror})", file=path, fix="Check the variable."
        ) from None
    version = (path, status.st_mtime_ns, status.st_size)
    if version not in _read:
        _read[version] = _load(path)
    return _read[version]


def _load(path: str) -> Config:
    found = _parse(path)
    profiles, mapping = dict(_section(path, found, "profiles")), dict(_section(path, found, "path_mapping"))
    for name in found.get("include") or ():
        other = os.path.join(os.path.dirname(path), str(name))
        included = _parse(other)
        if "include" in included:
            raise ConfigError("an included file includes another one", file=other, fix="Include it in the first file.")
        for mine, word in ((profiles, "profiles"), (mapping, "path_mapping")):
            for key, value in _section(other, included, word).items():
                if mine.setdefault(key, value) != value:
                    raise ConfigError(
                        f"{key!r} is not the same as in {path}",
                        file=other,
                        kind="bad-profile",
                        fix="Remove one of them.",
                    )
    ours = {str(begin): str(url) for begin, url in mapping.items() if "://" in str(begin)}
    return Config(path, profiles, ours)


def _parse(path: str) -> Mapping[str, Any]:
    try:
        text = Path(path).read_text()
        found = json.loads(text) if path.endswith(".json") else yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        reason = " ".join(str(error).split())
        if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
            reason = f"line {error.problem_mark.line + 1}: {error.problem}"  # its text shows lines, with their keys
        raise ConfigError(f"the configuration cannot be read ({reason})", file=path, fix="Fix the file.") from None
    check_nesting(found, path)
    if not isinstance(found or {}, Mapping):
        raise ConfigError("this is not a configuration: expected a mapping", file=path, fix="Fix the file.")
    return found or {}


def _section(path: str, found: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    section = found.get(key) or {}
    if not isinstance(section, Mapping):
        raise ConfigError(f"{key!r}: expected a mapping", file=path, kind="bad-profile", fix="Fix the file.")
    return section
