"""Losses of a conversion: what the destination cannot store, and files in the source's folder that are not read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from feedmill.converting.facts import Facts, described, keeps_companions, keeps_media
from feedmill.converting.fates import KINDS, changes
from feedmill.converting.fields import wanted as is_wanted
from feedmill.converting.options import Convert
from feedmill.converting.preview import Loss, named
from feedmill.converting.survey import COUNTS, Columns, Survey, changes_in, columns_of, names, store_of
from feedmill.converting.targets.parquet import forms_of
from feedmill.converting.targets.shards import writer_of
from feedmill.errors import ConfigError, FeedmillError
from feedmill.formats.base import Dataset
from feedmill.formats.energon import ENERGON
from feedmill.formats.energon.prepared import read_info
from feedmill.formats.format import TargetFormat
from feedmill.formats.jsonl import LINE_SUFFIXES
from feedmill.formats.recorders.dataset import RecorderDataset
from feedmill.formats.registry import by_name, targets
from feedmill.formats.sniff import sniff
from feedmill.formats.tar.dataset import TarDataset
from feedmill.formats.tar.opening import CompressedTars
from feedmill.formats.tar.regrouped import RegroupedTars
from feedmill.formats.tar.scan import CONCATENATED
from feedmill.formats.unread_files import data_kind, leftovers, listed
from feedmill.formats.vla import COMPANIONS
from feedmill.formats.vla.dataset import ManifestDataset
from feedmill.jobs.policy import skips
from feedmill.storage import is_local_folder, open_store


def losses_of(to: str, facts: Facts, found: Survey, options: Convert) -> tuple[Columns, list[Loss]]:
    """Return the columns (without forms, for formats that have none), and the losses.

    Raises:
        ConfigError: the format cannot store the values of a column.
    """
    wanted = targets()[to]
    columns = Columns({}, {}, facts.typed)
    losses: list[Loss] = []
    if wanted.form in ("shards", "table"):
        known = writer_of(to).forms if wanted.form == "shards" else forms_of(typed=facts.typed)
        columns, losses = columns_of(known, found, to=to, typed=facts.typed, skip=skips(options.on_error))
        if wanted.form == "shards":
            columns = columns._replace(forms=dict(sorted(columns.forms.items())))
    elif found:
        store = "lines" if wanted.form == "lines" else "parts"
        changed, losses = changes_in(store, found)
        columns = columns._replace(changed=changed)
        if wanted.form == "lines":
            losses += _lines(found, columns)
        elif facts.kind != "jsonl":
            losses.append(Loss("the difference between missing fields and null"))
    return columns, [*losses, *classes_lost(facts.classes, options), *_about(wanted, facts, options)]


def classes_lost(classes: Sequence[str], options: Convert) -> list[Loss]:
    """Return the loss of what the features of `datasets` say of columns, see `feedmill.converting.facts.Facts`."""
    names = [name for name in classes if is_wanted(name, options.fields)]
    return [Loss(f"names of classes and shapes of arrays of {named(names)}")] if names else []


def value_table() -> str:
    """Return the table of what becomes of each kind of value in each format, for docs/internals/conversions.md."""
    details = {"array": "array:<f4:2", "media": "media:webp"}
    apart = ("null", "empty", "part", "text:part", "list", "png")
    rows = [(row.noun, kind) for kind, row in KINDS.items() if kind not in apart]
    lines = ["| values | `jsonl` | `mds` | `npz` | `parquet` | `webdataset` |", "|---" * 6 + "|"]
    for noun, kind in [*rows, ("lists of images", "list:jpeg"), ("lists of bytes", "list:bytes")]:
        have, typed = {details.get(kind, kind)}, not kind.startswith("text:")
        known = {to: writer_of(to).forms for to in ("mds", "npz")} | {"parquet": forms_of(typed=typed)}
        stores = ["lines", *(store_of(forms, have) for forms in known.values()), "parts"]
        cells = [next(iter(changes(store, have).values()), "kept") if store else "kept" for store in stores]
        lines.append(f"| {noun}{' (parts of tars)' * (not typed)} | {' | '.join(map(_cell, cells))} |")
    return "\n".join(lines) + "\n"


def _cell(becomes: str) -> str:
    lost = becomes.removeprefix("!")
    return becomes if lost == becomes else "**left out**" if lost == "nothing" else f"**{lost}**"


def is_keyed(found: Survey) -> bool:
    """Return whether JSON lines have keys: true unless ``json`` is the only part of all samples."""
    return set(names(found)) != {"json"}


def _about(wanted: TargetFormat, facts: Facts, options: Convert) -> list[Loss]:
    """Return the losses of metadata."""
    out = []
    several = len(facts.splits) > 1 or facts.loose
    if several and options.split is None and ("splits" not in wanted.keeps or not facts.parts):
        loose = f" ({facts.loose} samples are in none of them, or in several)" if facts.loose else ""
        out.append(Loss(f"the splits {named(facts.splits)}: all samples are combined{loose}; select one with --split"))
    if facts.excluded:
        out.append(Loss(f"{facts.excluded} samples that the split file excludes"))
    if facts.media and not keeps_media(wanted.keeps, facts, options):
        out.append(Loss("media metadata: collect it again with 'feedmill edit prepare-media'"))
    if facts.description is not None and set(facts.description) - {"__module__", "__class__"}:  # else it is crude
        if "description" not in wanted.keeps:
            out.append(Loss("the sample type, field map and subflavors of dataset.yaml"))
        elif options.fields:
            out.append(Loss("the sample type and field map: they may name parts that are excluded"))
        elif "sample_loader" in facts.description:
            out.append(Loss("the sample's own code (sample_loader.py): copy it into .nv-meta"))
    if facts.companions and not keeps_companions(wanted.keeps, facts, options):
        out.append(
            Loss(f"{', '.join(facts.companions)}: VLA Foundry's robotics training needs them beside the manifest")
        )
    if facts.depths and wanted.form != "episodes":
        out.append(Loss(f"types of {named(facts.depths)}: depth in floats becomes images of whole millimeters"))
    if wanted.form == "episodes":
        return out
    if facts.kind == "lerobot":
        out.append(
            Loss("the metadata in meta/: frames per second, the robot's type, names of joints, statistics, tasks")
        )
    elif facts.fps is not None:
        out.append(Loss(f"the rate of {facts.fps:g} steps a second"))
    if by_name()[facts.kind].family == "episodes" and "companions" in wanted.keeps:
        out.append(
            Loss("VLA Foundry's robotics: a sample is one frame (use 'feedmill compat vla windows' for lowdim.npz)")
        )
    return out


def _lines(found: Survey, columns: Columns) -> list[Loss]:
    if not dropped(columns):
        single = not is_keyed(found) and found[COUNTS]["keyed"]
        return [Loss("keys: samples with only a json part become plain lines, which are numbered")] if single else []
    if dropped(columns) == set(names(found)):
        raise all_bytes(names(found))
    return []


def all_bytes(names: Iterable[str]) -> ConfigError:
    """Return the error for samples of which lines could store nothing."""
    return ConfigError(
        f"all parts are bytes ({named(names)}), which JSON cannot store: nothing would be left",
        kind="no-parts",
        fix="Convert to another format, or choose other --fields.",
    )


def dropped(columns: Columns) -> frozenset[str]:
    """Return the columns that are left out of lines: those with bytes."""
    return frozenset(name for name, found in columns.changed.items() if "!nothing" in found.values())


def unread(source: str, kind: str, dataset: Dataset | None = None) -> list[Loss]:
    """Return the files in a source's folder that the conversion skips, and the notes of its reader.

    Two kinds of files count as content: data of another kind in a folder that is recognized by its data alone, and
    shards that no manifest or index lists. Everything else is only reported.

    Args:
        dataset: the source, if it is opened as samples.
    """
    remarks = [] if dataset is None else _remarks(dataset)
    if not _is_folder(source):
        return remarks
    dataset = dataset.pieces if isinstance(dataset, RegroupedTars) else dataset
    found = leftovers((entry.path for entry in open_store(source).files()), _reads(kind, dataset))
    losses = remarks if kind != ENERGON.name else [*remarks, *_excluded(source, dataset)]
    for noun, paths in found.data.items():
        shards = noun == "tars" and isinstance(dataset, TarDataset)
        what = "tars that are not part of the dataset" if shards else noun
        fix = "Name the files or folder to convert, or move the others elsewhere."
        losses.append(Loss(listed(paths, what), content=shards or by_name()[kind].scanned, fix=fix, unread=True))
    if found.others:
        losses.append(Loss(f"{listed(found.others)} beside the data", unread=True))
    return losses


def _remarks(dataset: Dataset) -> list[Loss]:
    """Return the notes of a source's reader. Samples after the end-of-archive marker of a tar count as content."""
    out = [Loss(str(each), unread=True) for each in described(dataset).get("remarks") or []]
    dataset = dataset.pieces if isinstance(dataset, RegroupedTars) else dataset
    trailing = [each.trailing for each in dataset.table.unread.values()] if isinstance(dataset, TarDataset) else []
    if any(trailing):
        what = f"{sum(trailing):,} bytes after the end-of-archive markers of {sum(map(bool, trailing)):,} tars"
        out.append(Loss(what, content=True, fix=CONCATENATED, unread=True))
    return out


def _excluded(source: str, dataset: Dataset | None) -> list[Loss]:
    """Return the indexed shards that no split contains; they are excluded on purpose."""
    assert isinstance(dataset, TarDataset)
    shards = set(dataset.table.shards)
    out = [path for path in read_info(open_store(source)) if path not in shards]
    return [Loss(f"{listed(out, 'tars')} that the split file excludes", unread=True)] if out else []


def _is_folder(source: str) -> bool:
    if is_local_folder(source):
        return True
    try:
        found = sniff(source)
    except FeedmillError:  # raised for token files and trees of lines
        return data_kind(source) is None
    return not found.names and not (found.name and source.endswith(found.name))


def _reads(kind: str, dataset: Dataset | None) -> Callable[[str], bool]:
    """Return a predicate: whether a path of the folder is read, or accompanies a file that is."""
    if isinstance(dataset, CompressedTars):
        return set(dataset.packed).__contains__
    if isinstance(dataset, TarDataset) and kind != "img2dataset":
        shards = set(dataset.table.shards)
        if kind == ENERGON.name:
            shards |= set(read_info(dataset.store))
        beside = {*COMPANIONS, dataset.manifest} if isinstance(dataset, ManifestDataset) else set()
        return lambda path: path in beside or path.removesuffix(".idx") in shards
    if isinstance(dataset, RecorderDataset):
        return dataset.reads
    if kind == "documents":
        return lambda path: path.removesuffix(".idx").endswith(LINE_SUFFIXES)
    groups, ends = by_name()[kind].data, by_name()[kind].beside
    return lambda path: data_kind(path) in groups or path.endswith(ends)
