"""Load datasets with Energon and print what it gives, as JSON: run by the interop test in Energon's environment.

    python energon_reader.py < requests.json

A request is an object with a `path` and either `load`, the arguments of `get_val_dataset` (with `raw`, whether parts
stay bytes), or `files`, names of parts to get by name, and `media`, whether to give their media metadata too. The
answer lists, for each request, the samples (key, source, subflavors, digests of the fields) or the parts.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys

from megatron.energon import Cooker, DefaultTaskEncoder, WorkerConfig, get_loader, get_val_dataset, stateless
from megatron.energon.cache.file_store import WebdatasetFileStore
from megatron.energon.epathlib import EPath

from helpers.digests import digest


class Decoded(DefaultTaskEncoder):
    """Typed samples as they are, and crude ones as dicts."""

    cookers = (Cooker(stateless(lambda sample: sample)),)


class Raw(Decoded):
    """The same, undecoded."""

    decoder = None


def load(path, options):
    options = dict(options)
    encoder = Raw() if options.pop("raw") else Decoded()
    workers = WorkerConfig(rank=0, world_size=1, num_workers=0)
    dataset = get_val_dataset(path, worker_config=workers, batch_size=None, task_encoder=encoder, **options)
    return [described(sample) for sample in get_loader(dataset)]


def described(sample):
    fields = (
        {field.name: getattr(sample, field.name) for field in dataclasses.fields(sample)}
        if dataclasses.is_dataclass(sample)
        else dict(sample)
    )
    (source,) = fields["__sources__"]
    return {
        "key": fields["__key__"],
        "source": [source.shard_name, source.index, list(source.file_names)],
        "subflavors": fields["__subflavors__"] or None,
        "fields": {name: digest(value) for name, value in fields.items() if not name.startswith("__")},
    }


def files(path, names, media):
    store = WebdatasetFileStore(EPath(path))
    found = {}
    for name in names:
        found[name] = {"data": digest(store[name][0])}
        if media:
            try:
                metadata = store.get_media_metadata(name)
                found[name]["media"] = [type(metadata).__name__, metadata.to_dict()]
            except KeyError:
                found[name]["media"] = None
    return found


def answer(request):
    if "load" in request:
        return load(request["path"], request["load"])
    return files(request["path"], request["files"], request["media"])


answers = [answer(request) for request in json.load(sys.stdin)]
print(json.dumps(answers))
sys.stdout.flush()
os._exit(0)  # without waiting for Energon's watchdog threads
