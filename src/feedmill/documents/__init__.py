"""Documents: find their files, read them, and select their fields.

A path or pattern becomes files, a file units, a unit batches of texts with their rows: `find.py` -> `read.py`, or
`lines.py` where a verb of curation needs whole rows.

- `find.py`: files for the inputs of a verb: paths, URLs and patterns.
- `file.py`: one file, its kind and dataset, and where its attributes and Feedmill's own files beside it lie.
- `seeking.py`: rows of a file of lines at random.
- `read.py`: files in pieces for processes, and one of them in batches (`batch.py`); `columns.py` does so for
  Parquet and Arrow, `lines.py` as JSON lines with ids.
- `rows.py`: parse rows of JSON; `textpath.py`: a text by a field, a path or an expression; `typed.py`: text and id of
  declared types.
- `expressions/`: jq and JSONPath. `warc/`: web archives. `lineage/`: which row of which file a row was made from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from feedmill.provided import lazily

HOMES = {
    "FilterConfig": "curation.mix.config",
    "decontaminate": "curation.decontaminate.job",
    "embed": "curation.embed",
    "extract": "curation.extract.extract",
    "forget": "tracing.forget",
    "stat": "curation.stat",
}
__all__ = [
    "FilterConfig",
    "decontaminate",
    "embed",
    "extract",
    "forget",
    "stat",
]

if TYPE_CHECKING:
    from feedmill.curation.decontaminate.job import decontaminate
    from feedmill.curation.embed import embed
    from feedmill.curation.extract.extract import extract
    from feedmill.curation.mix.config import FilterConfig
    from feedmill.curation.stat import stat
    from feedmill.tracing.forget import forget
else:
    __getattr__, __dir__ = lazily("documents", HOMES)
