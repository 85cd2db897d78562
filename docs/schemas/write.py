"""Write the JSON schemas of recipes and filter configurations, for editors: ``python docs/schemas/write.py``."""

from __future__ import annotations

import json
from pathlib import Path

import feedmill as fm

HERE = Path(__file__).parent


def schemas() -> dict[Path, str]:
    """Return each schema's path and what it must contain."""
    found = {"recipe": fm.Recipe.json_schema(), "filter": fm.documents.FilterConfig.json_schema()}
    return {HERE / f"{name}.json": json.dumps(schema, indent=1) + "\n" for name, schema in found.items()}


if __name__ == "__main__":
    for path, text in schemas().items():
        path.write_text(text)
