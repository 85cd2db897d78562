"""datatrove's side: its reader of web archives, its Trafilatura and its writer, as a script of its users."""

from __future__ import annotations

import os
import sys


def main(source: str, output: str, tasks: str) -> None:
    """Write the documents of the archives in a folder, with as many tasks and workers."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.extractors import Trafilatura
    from datatrove.pipeline.readers import WarcReader
    from datatrove.pipeline.writers import JsonlWriter

    LocalPipelineExecutor(
        pipeline=[
            WarcReader(source, glob_pattern="*.warc.gz"),
            # Trafilatura's own defaults, as on Feedmill's side; a page must not fail because the machine is busy.
            Trafilatura(favour_precision=False, deduplicate=False, timeout=60),
            JsonlWriter(output),
        ],
        tasks=int(tasks),
        workers=int(tasks),
        logging_dir=os.path.join(output, "logs"),
    ).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
