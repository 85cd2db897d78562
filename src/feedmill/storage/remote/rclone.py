"""Remotes of rclone as profiles of the Multi-Storage Client, which finds profiles in ``rclone.conf``, too.

A remote is translated into a profile as `msc.py` reads it from the client's own configuration: the same settings, under
the names of the client. Only remotes that are stored in plain text can be read.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from configparser import ConfigParser, Error
from typing import Any

from feedmill.errors import ConfigError

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
_loaded: dict[tuple[str, int, int], dict[str, Any]] = {}
"""Profiles by path, modification time and size of the file."""


def config_file() -> str | None:
    """Return the path of the ``rclone.conf`` that the client would read; None if there is none."""
    program, home, environment = shutil.which("rclone"), os.path.expanduser("~"), os.environ
    folders = [os.path.dirname(os.path.realpath(program))] if program else []
    if environment.get("XDG_CONFIG_HOME"):
        folders.append(environment["XDG_CONFIG_HOME"] + "/rclone")
    paths = [f"{folder}/rclone.conf" for folder in (*folders, "/etc", f"{home}/.config/rclone")]
    return next(filter(os.path.isfile, [*paths, f"{home}/.rclone.conf"]), None)


def profiles() -> tuple[str | None, Mapping[str, Any]]:
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
        if version not in _loaded:
            parser.read(path)
            _loaded[version] = {name: _profile(dict(parser[name])) for name in parser.sections()}
    except (OSError, Error, UnicodeDecodeError) as error:
        # The text of a parser's error quotes lines of the file, which may have secrets.
        reason = error.strerror if isinstance(error, OSError) else "it is encrypted or no INI file"
        raise ConfigError(f"the configuration cannot be read ({reason})", file=path, fix="Fix the file.") from None
    return path, _loaded[version]


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
