"""``feedmill filter``: keep or drop documents by attributes, or by length and index."""

from __future__ import annotations

from shlex import quote
from typing import Any

from feedmill.cli.command import command
from feedmill.cli.output import emit, emit_report, show_documents, show_written
from feedmill.filtering import Filter
from feedmill.jobs.options import call


@command(Filter, engines=True)
def filter(options: Filter, json: bool) -> str:
    from feedmill.filtering import filter as run

    paths: Any = options.inputs
    *inputs, output = paths
    if not inputs or options.preset:
        given = {"inputs": inputs, "output": output} if inputs else {"inputs": output}
        documents: Any = call(run, options, **given)
        emit(documents.as_dict(), json, lambda: show_documents(documents))
        kept = next((path.rpartition("/")[0] for one in documents.streams for path in one.outputs), "")
        return f"tokenize {quote(kept)} -o tokens -t tokenizer.json" if kept else ""
    report: Any = call(run, options, inputs=inputs, output=output)
    emit_report(report, json, lambda: show_written(report))
    return f"show {quote(output)}"
