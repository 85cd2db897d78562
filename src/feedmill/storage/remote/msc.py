"""Profiles of NVIDIA's Multi-Storage Client: translate ``msc://profile/path`` to a URL and options of our own stores.

`resolve` is needed wherever a store is opened. It reads the client's own configuration file: the one in ``MSC_CONFIG``,
or the first that exists on the client's search path. A profile says where the data is and which credentials read it,
so a translated profile is read like any bucket. Settings of the client itself (cache, retries, threads) are ignored.
Classes that a configuration names are never imported: a configuration file must not be able to run code.

Profiles that this configuration lacks are looked up among the remotes of rclone, as the client does.
``dss://name@version/path`` is a file of a dataset that NVIDIA's dataset service stored in ``NVDATASET_CACHE_DIR``.

A remote of rclone is translated into a profile of the client: the same settings, under its names. Only remotes that are
stored in plain text in ``rclone.conf`` can be read.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Mapping
from configparser import ConfigParser, Error
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import yaml

from feedmill.errors import ConfigError
from feedmill.storage.limits import check_nesting

logger = logging.getLogger("feedmill")

SCHEME = "msc"
_SCHEMES = (SCHEME, "rclone")
"""``rclone://remote/path`` is an older name of ``msc://remote/path`` in metadatasets."""
DATASETS = "dss"
DATASETS_FOLDER = "NVDATASET_CACHE_DIR"
"""Environment variable with the folder or URL of the datasets of ``dss://`` URLs."""
POSIX = "__filesystem__"
"""The client's name for the profile of this machine's files."""
_VARIABLE = re.compile(r"\$(?:\{([^}]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
_CLASSES = ("metadata_provider", "provider_bundle", "storage_provider_profiles")
_announced: set[str] = set()
"""Keys of ``path_mapping`` whose use was logged."""
_loaded: dict[tuple[str, int, int], Config] = {}
"""Configurations by path, modification time and size, so that a changed file is read again."""
_UNSUPPORTED = (
    "Feedmill reads profiles of the types s3, s8k, gcs, gcs_s3, azure, huggingface and file. Give the data's own URL,"
    " or one of fsspec, instead."
)


class Location(NamedTuple):
    """A URL or a local path, and the options of its store.

    Attributes:
        url: URL that requests go to, or a local path.
        options: settings of the store; they may hold secrets.
    """

    url: str
    options: Mapping[str, Any] = {}


class Config(NamedTuple):
    """A configuration of the client.

    Attributes:
        file: path of the configuration file.
        profiles: profiles by name.
        mapping: URLs with a profile by the URL prefixes that they replace (``path_mapping``).
    """

    file: str
    profiles: Mapping[str, Any]
    mapping: Mapping[str, str]


def resolve(url: str) -> Location:
    """Return the location that a URL stands for: that of its profile, or the URL itself.

    A bucket URL that the configuration maps to a profile (``path_mapping``) has the location of that profile.

    Args:
        url: any URL or local path.

    Raises:
        ConfigError: the profile does not exist or is not supported, or the configuration cannot be read.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme in ("file", "http", "https"):
        return Location(url)
    if scheme == DATASETS:
        return resolve(_dataset_url(url, rest))
    if scheme not in _SCHEMES:
        return _mapped(url)
    name, _, path = rest.partition("/")
    if name == POSIX:
        return Location("/" + path.lstrip("/"))
    config = _config()
    if config is None or name not in config.profiles:
        file, profiles = rclone_profiles()
        if file is not None and (config is None or name in profiles):
            config = Config(file, profiles, {})
    if config is None:
        raise ConfigError(
            f"the profile {name!r} is unknown: there is no configuration of the Multi-Storage Client or rclone",
            file=url,
            kind="bad-profile",
            fix="Set MSC_CONFIG to the configuration file, or create ~/.msc_config.yaml.",
        )
    return _location(config, name, path)


def _dataset_url(url: str, rest: str) -> str:
    """Return the path or URL of ``dss://name@version/path``. Raises `ConfigError`."""
    dataset, _, path = rest.partition("/")
    name, _, version = dataset.rpartition("@")
    if not name or not version:
        raise ConfigError("the dataset has no version", file=url, fix="Write dss://NAME@VERSION/PATH.")
    folder = os.environ.get(DATASETS_FOLDER)
    if not folder:
        raise ConfigError(
            f"the folder of the datasets is unknown: {DATASETS_FOLDER} is not set",
            file=url,
            kind="bad-profile",
            fix=f"Set {DATASETS_FOLDER}.",
        )
    return "/".join(filter(None, (folder.rstrip("/"), name, version, path.strip("/"))))


def _mapped(url: str) -> Location:
    """Return the location of a URL without a profile, by ``path_mapping``. The longest prefix takes precedence."""
    config = _config()
    if config is None:
        return Location(url)
    prefixes = [prefix for prefix in config.mapping if f"{url}/".startswith(prefix)]
    if not prefixes:
        return Location(url)
    prefix = max(prefixes, key=len)
    if prefix not in _announced:
        _announced.add(prefix)
        logger.info("%s: URLs that begin with %s are mapped to %s", config.file, prefix, config.mapping[prefix])
    name, _, path = config.mapping[prefix].removeprefix(f"{SCHEME}://").partition("/")
    return _location(config, name, path + f"{url}/"[len(prefix) :].rstrip("/"))


def _location(config: Config, name: str, path: str) -> Location:
    """Return the location of a path of a profile."""
    settings = config.profiles.get(name)
    if not isinstance(settings, Mapping):
        known = ", ".join(sorted(map(str, config.profiles))) or "none"
        raise ConfigError(
            f"there is no profile {name!r}: the profiles are {known}",
            file=config.file,
            kind="bad-profile",
            fix="Check the URL.",
        )
    profile = _Profile(config.file, name)
    for option in _CLASSES:
        if option in settings:
            raise profile.unsupported(f"{option!r}")
    provider = profile.section(settings, "storage_provider")
    kind, options = provider.get("type"), profile.section(provider, "options")
    translate = _PROVIDERS.get(str(kind))
    if translate is None:
        raise profile.unsupported(f"the storage provider {kind!r}")
    base, options = str(profile.expanded(options.get("base_path", ""))), profile.expanded(options)
    credentials: dict[str, Any] = {}
    if settings.get("credentials_provider") is not None:
        credentials = profile.credentials(profile.section(settings, "credentials_provider"))
    return translate(profile, "/".join(filter(None, (base.rstrip("/"), path.strip("/")))), options, credentials)


class _Profile:
    """One profile: reads its settings. Its errors include the file and the profile."""

    def __init__(self, file: str, name: str) -> None:
        self.file, self.name = file, name

    def error(self, what: str, fix: str, kind: str = "bad-profile") -> ConfigError:
        """Return an error about this profile."""
        return ConfigError(f"profile {self.name!r}: {what}", file=self.file, kind=kind, fix=fix)

    def unsupported(self, what: str) -> ConfigError:
        """Return the error for a setting that Feedmill does not support; of kind ``unsupported``."""
        return self.error(f"{what} is not supported", _UNSUPPORTED, "unsupported")

    def section(self, parent: Mapping[str, Any], key: str) -> Mapping[str, Any]:
        """Return a mapping below another one; an empty one if it is absent. Raises `ConfigError`."""
        section = parent.get(key) or {}
        if not isinstance(section, Mapping):
            raise self.error(f"{key!r}: expected a mapping, found {type(section).__name__}", "Fix the file.")
        return section

    def expanded(self, value: Any) -> Any:
        """Return a value with environment variables expanded. Raises `ConfigError` if one is not set."""
        if isinstance(value, Mapping):
            return {key: self.expanded(child) for key, child in value.items()}
        if isinstance(value, list):
            return [self.expanded(child) for child in value]
        return _VARIABLE.sub(self._variable, value) if isinstance(value, str) else value

    def _variable(self, match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name not in os.environ:
            raise self.error(f"the environment variable {name} is not set", f"Set {name}.", "bad-profile")
        return os.environ[name]

    def text(self, options: Mapping[str, Any], name: str) -> str:
        """Return a required option. Raises `ConfigError` if it is missing or empty."""
        if not isinstance(options.get(name), str) or not options[name]:
            raise self.error(f"{name!r} is missing", "Add it to the profile.")
        return str(options[name])

    def credentials(self, provider: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of our stores for a credentials provider."""
        kind, options = str(provider.get("type")), self.expanded(self.section(provider, "options"))
        if kind == "S3Credentials":
            return self._s3_credentials(options, "access_key", "secret_key", "session_token")
        if kind == "FileBasedCredentials":
            saved = self._json(self.text(options, "credential_file_path"))
            return self._s3_credentials(saved, "AccessKeyId", "SecretAccessKey", "SessionToken")
        if kind == "AzureCredentials":
            return _azure_credentials(self.text(options, "connection"))
        if kind == "DefaultAzureCredentials":
            return {}  # obstore reads the environment by itself
        if kind == "GoogleServiceAccountCredentialsProvider":
            if options.get("info"):
                return {"service_account_key": json.dumps(options["info"])}
            return {"service_account": self.text(options, "file")}
        if kind == "HuggingFaceCredentials":
            return {"token": self.text(options, "access_token")}
        raise self.unsupported(f"the credentials provider {kind!r}")

    def _s3_credentials(self, options: Mapping[str, Any], key: str, secret: str, token: str) -> dict[str, Any]:
        keys = {"access_key_id": self.text(options, key), "secret_access_key": self.text(options, secret)}
        return {**keys, **({"session_token": options[token]} if options.get(token) else {})}

    def _json(self, path: str) -> Mapping[str, Any]:
        try:
            content = json.loads(Path(path).read_bytes())
        except (OSError, ValueError) as error:
            raise self.error(f"the credentials in {path} cannot be read ({error})", "Write the file again.") from None
        return content if isinstance(content, Mapping) else {}


def _azure_credentials(connection: str) -> dict[str, Any]:
    """Return the options for a connection string of Azure."""
    settings = dict(setting.partition("=")[::2] for setting in connection.split(";") if "=" in setting)
    names = {"AccountName": "account_name", "AccountKey": "account_key", "BlobEndpoint": "endpoint"}
    options = {ours: settings[theirs] for theirs, ours in names.items() if settings.get(theirs)}
    if settings.get("SharedAccessSignature"):
        options["sas_token"] = settings["SharedAccessSignature"]
    return options


def _s3(profile: _Profile, path: str, options: Mapping[str, Any], credentials: dict[str, Any]) -> Location:
    settings = dict(credentials)
    for theirs, ours in (("region_name", "region"), ("endpoint_url", "endpoint")):
        if options.get(theirs):
            settings[ours] = options[theirs]
    if options.get("profile_name") and not credentials:
        settings["profile"] = options["profile_name"]
    if options.get("signature_version") == "UNSIGNED":
        settings["skip_signature"] = True
    if profile.section(options, "s3").get("addressing_style") == "virtual":
        settings["virtual_hosted_style_request"] = True
    client: dict[str, Any] = {
        name: f"{options[name]}s" for name in ("connect_timeout", "read_timeout") if options.get(name)
    }
    if options.get("verify") is False:
        client["allow_invalid_certificates"] = True
    return _bucket(profile, "s3", path, {**settings, **({"client_options": client} if client else {})})


def _gcs(profile: _Profile, path: str, options: Mapping[str, Any], credentials: dict[str, Any]) -> Location:
    settings = dict(credentials)
    if options.get("endpoint_url"):
        settings["base_url"] = options["endpoint_url"]
    if options.get("skip_signature"):
        settings["skip_signature"] = True
    return _bucket(profile, "gs", path, settings)


def _azure(profile: _Profile, path: str, options: Mapping[str, Any], credentials: dict[str, Any]) -> Location:
    endpoint = profile.text(options, "endpoint_url").rstrip("/")
    host, account_path = urlsplit(endpoint).hostname or "", urlsplit(endpoint).path.strip("/")
    # A server for tests has the account in the path instead of in the host.
    name = host.partition(".")[0] if host.endswith(".windows.net") else account_path
    account = {"account_name": name} if name else {}
    return _bucket(profile, "az", path, {**account, "endpoint": endpoint, **credentials})


def _huggingface(profile: _Profile, path: str, options: Mapping[str, Any], credentials: dict[str, Any]) -> Location:
    kind = str(options.get("repo_type", "model"))
    prefix = {"dataset": "datasets/", "space": "spaces/", "model": ""}.get(kind)
    if prefix is None:
        raise profile.error(f"'repo_type' is {kind!r}: expected dataset, model or space", "Fix the profile.")
    revision = str(options.get("repo_revision") or "main").replace("/", "%2F")
    return Location(f"hf://{prefix}{profile.text(options, 'repository_id')}@{revision}/{path}".rstrip("/"), credentials)


def _file(profile: _Profile, path: str, options: Mapping[str, Any], credentials: dict[str, Any]) -> Location:  # noqa: ARG001
    return Location("/" + path.lstrip("/"))


def _bucket(profile: _Profile, scheme: str, path: str, options: Mapping[str, Any]) -> Location:
    bucket = path.lstrip("/")
    if not bucket:
        what, fix = "the URL has no bucket, and 'base_path' is empty", "Write msc://PROFILE/BUCKET/PATH."
        raise profile.error(what, fix, "no-bucket")
    return Location(f"{scheme}://{bucket}", options)


_PROVIDERS: dict[str, Callable[[_Profile, str, Mapping[str, Any], dict[str, Any]], Location]] = {
    "s3": _s3,
    "s8k": _s3,
    "gcs_s3": _s3,
    "gcs": _gcs,
    "azure": _azure,
    "huggingface": _huggingface,
    "file": _file,
}


def _search_path() -> list[str]:
    """Return the paths at which the client looks for its configuration, in its order."""
    environment = os.environ
    folders = [environment["XDG_CONFIG_HOME"] + "/msc/config"] if environment.get("XDG_CONFIG_HOME") else []
    if environment.get("HOME"):
        folders += [environment["HOME"] + "/.msc_config", environment["HOME"] + "/.config/msc/config"]
    shared = environment.get("XDG_CONFIG_DIRS") or "/etc/xdg"
    folders += [f"{folder.strip()}/msc/config" for folder in shared.split(":") if folder.strip()]
    return [f"{path}.{end}" for path in (*folders, "/etc/msc_config") for end in ("yaml", "json")]


def _config() -> Config | None:
    """Return the configuration; None if there is none. Raises `ConfigError` if it cannot be read."""
    given = os.environ.get("MSC_CONFIG")
    path = given or next((path for path in _search_path() if os.path.exists(path)), None)
    if path is None:
        return None
    path = os.path.abspath(path)
    try:
        status = os.stat(path)
    except OSError as error:
        raise ConfigError(
            f"the file in MSC_CONFIG cannot be read ({error.strerror})", file=path, fix="Check the variable."
        ) from None
    version = (path, status.st_mtime_ns, status.st_size)
    if version not in _loaded:
        _loaded[version] = _load(path)
    return _loaded[version]


def _load(path: str) -> Config:
    """Read a configuration and the files that it includes."""
    content = _parse(path)
    profiles, mapping = dict(_section(path, content, "profiles")), dict(_section(path, content, "path_mapping"))
    for name in content.get("include") or ():
        other = os.path.join(os.path.dirname(path), str(name))
        included = _parse(other)
        if "include" in included:
            raise ConfigError("an included file includes another one", file=other, fix="Include both in the main file.")
        for merged, name_of_section in ((profiles, "profiles"), (mapping, "path_mapping")):
            for key, value in _section(other, included, name_of_section).items():
                if merged.setdefault(key, value) != value:
                    raise ConfigError(
                        f"{key!r} differs from its definition in {path}",
                        file=other,
                        kind="bad-profile",
                        fix="Remove one of them.",
                    )
    prefixes = {str(prefix): str(url) for prefix, url in mapping.items() if "://" in str(prefix)}
    return Config(path, profiles, prefixes)


def _parse(path: str) -> Mapping[str, Any]:
    try:
        text = Path(path).read_text()
        content = json.loads(text) if path.endswith(".json") else yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        reason = " ".join(str(error).split())
        if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
            # The full text quotes lines of the file, which may have secrets.
            reason = f"line {error.problem_mark.line + 1}: {error.problem}"
        raise ConfigError(f"the configuration cannot be read ({reason})", file=path, fix="Fix the file.") from None
    check_nesting(content, path)
    if not isinstance(content or {}, Mapping):
        raise ConfigError("the configuration is invalid: expected a mapping", file=path, fix="Fix the file.")
    return content or {}


def _section(path: str, content: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    section = content.get(key) or {}
    if not isinstance(section, Mapping):
        what = f"{key!r}: expected a mapping, found {type(section).__name__}"
        raise ConfigError(what, file=path, kind="bad-profile", fix="Fix the file.")
    return section


_KINDS = {
    "s3": "s3",
    "s8k": "s8k",
    "azure": "azure",
    "azureblob": "azure",
    "gcs": "gcs",
    "google cloud storage": "gcs",
    "file": "file",
    "local": "file",
}
"""Type of a remote -> type of the client's storage provider."""
_OPTIONS = {"region": "region_name", "endpoint": "endpoint_url", "base_path": "base_path"}
_S3_KEYS = {"access_key_id": "access_key", "secret_access_key": "secret_key", "session_token": "session_token"}
_remotes: dict[tuple[str, int, int], dict[str, Any]] = {}
"""Profiles by path, modification time and size of the file."""


def config_file() -> str | None:
    """Return the path of the ``rclone.conf`` that the client would read; None if there is none."""
    program, home, environment = shutil.which("rclone"), os.path.expanduser("~"), os.environ
    folders = [os.path.dirname(os.path.realpath(program))] if program else []
    if environment.get("XDG_CONFIG_HOME"):
        folders.append(environment["XDG_CONFIG_HOME"] + "/rclone")
    paths = [f"{folder}/rclone.conf" for folder in (*folders, "/etc", f"{home}/.config/rclone")]
    return next(filter(os.path.isfile, [*paths, f"{home}/.rclone.conf"]), None)


def rclone_profiles() -> tuple[str | None, Mapping[str, Any]]:
    """Return the path of the configuration and its remotes as profiles of the client, by name.

    Remotes of types that the client does not know are returned with their type, so that an error can name it.

    Raises:
        ConfigError: the file cannot be read.
    """
    path = config_file()
    if path is None:
        return None, {}
    parser = ConfigParser(interpolation=None)
    try:
        status = os.stat(path)
        version = (path, status.st_mtime_ns, status.st_size)
        if version not in _remotes:
            parser.read(path)
            _remotes[version] = {name: _profile(dict(parser[name])) for name in parser.sections()}
    except (OSError, Error, UnicodeDecodeError) as error:
        # The text of a parser's error quotes lines of the file, which may have secrets.
        reason = error.strerror if isinstance(error, OSError) else "it is encrypted or no INI file"
        raise ConfigError(f"the configuration cannot be read ({reason})", file=path, fix="Fix the file.") from None
    return path, _remotes[version]


def _profile(remote: Mapping[str, str]) -> dict[str, Any]:
    kind = remote.get("type", "").lower()
    options = {ours: remote[name] for name, ours in _OPTIONS.items() if remote.get(name)}
    profile: dict[str, Any] = {"storage_provider": {"type": _KINDS.get(kind, kind), "options": options}}
    if kind in ("s3", "s8k") and remote.get("access_key_id"):
        keys = {ours: remote[name] for name, ours in _S3_KEYS.items() if remote.get(name)}
        profile["credentials_provider"] = {"type": "S3Credentials", "options": keys}
    elif _KINDS.get(kind) == "azure" and remote.get("connection"):
        options_of_account = {"connection": remote["connection"]}
        profile["credentials_provider"] = {"type": "AzureCredentials", "options": options_of_account}
    return profile
