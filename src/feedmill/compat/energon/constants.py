"""Names of the files that `prepare` writes, with Energon's names."""

from __future__ import annotations

from feedmill.formats.energon import prepared

__all__ = [
    "INDEX_SQLITE_FILENAME",
    "INDEX_UUID_FILENAME",
    "INFO_JSON_FILENAME",
    "INFO_YAML_FILENAME",
    "MAIN_FOLDER_NAME",
    "SPLIT_YAML_FILENAME",
]

MAIN_FOLDER_NAME = ".nv-meta"
INDEX_SQLITE_FILENAME = "index.sqlite"
INDEX_UUID_FILENAME = "index.uuid"
INFO_JSON_FILENAME = prepared.INFO.rpartition("/")[2]
INFO_YAML_FILENAME = prepared.INFO_YAML.rpartition("/")[2]
SPLIT_YAML_FILENAME = "split.yaml"
