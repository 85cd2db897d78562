"""Names of the files in ``.nv-meta``, as Energon calls them."""

from __future__ import annotations

from feedmill.formats.energon.database import INDEX, META
from feedmill.formats.energon.prepared import INFO, INFO_YAML, UUID

MAIN_FOLDER_NAME = META
INDEX_SQLITE_FILENAME, INDEX_UUID_FILENAME, INFO_JSON_FILENAME, INFO_YAML_FILENAME = (
    path.removeprefix(f"{META}/") for path in (INDEX, UUID, INFO, INFO_YAML)
)
SPLIT_YAML_FILENAME = "split.yaml"
