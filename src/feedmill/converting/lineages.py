"""Write the lineage of the outputs of a conversion: from which row of which file of the source each sample came."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from feedmill.converting.job import VERB, Done
from feedmill.documents.lineage.sidecar import Origins
from feedmill.jobs.threads import ordered_map
from feedmill.storage import Store

if TYPE_CHECKING:
    from feedmill.converting.engine import Conversion

_AT_ONCE = 8


def write_lineages(conversion: Conversion, store: Store, target: Store, name: str, done: Sequence[Done]) -> list[str]:
    """Write the lineage of each output, and return their paths; none if the source's samples are rows of no file.

    Args:
        store: where the outputs are: the target, or the folder from which they are moved there.
        name: the destination in its store, if it is one file.
        done: all outputs, in order.
    """
    if conversion.is_file:
        return _write(conversion, store, target, name, done)
    filled = [each for each in done if each.path]
    written = ordered_map(
        lambda each: _write(conversion, store, target, each.path, [each]),
        filled,
        workers=0 if store.is_local else _AT_ONCE,  # in an object store each is a request
        in_flight=2 * _AT_ONCE,
    )
    return [path for paths in written for path in paths]


def _write(conversion: Conversion, store: Store, target: Store, path: str, done: Sequence[Done]) -> list[str]:
    origins, source = Origins(VERB), conversion.shared.source
    for each in done:
        if not source.add_origins(origins, conversion.units[each.number], each):
            return []
    sequences = conversion.target.sequences(source, done[0])
    place = conversion.target.lineage(path)
    store.write_bytes(place, origins.encoded(target.locate(path), store.stat(path).size, sequences))
    return [place]
