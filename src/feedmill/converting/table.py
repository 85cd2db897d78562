"""Which format can be converted to which: the one place that says it, for the code, the help and the documentation."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Final, NamedTuple

from feedmill.errors import ConfigError

SAMPLES, TOKENS, ROWS = "samples", "tokens", "rows"


class Target(NamedTuple):
    """A format that can be written: what appears at the destination, and what it has no place for."""

    writes: str
    lacks: str


TARGETS: Final[dict[str, Target]] = {
    "webdataset": Target(
        "a prepared folder: tars and `.nv-meta`, of crude samples where the source has no sample type",
        "media metadata, where not all is taken",
    ),
    "wds": Target("a folder of tars; with `--wids` an index of them", "splits, sample types, subflavors"),
    "vla": Target("a folder of tars and `manifest.jsonl`", "splits, sample types, subflavors"),
    "jsonl": Target("a `.jsonl` file and its `.idx`", "bytes, sample types, subflavors"),
    "jsonl.gz": Target("lines of JSON, compressed with gzip", "bytes, splits"),
    "jsonl.zst": Target("lines of JSON, compressed with zstd", "bytes, splits"),
    "mds": Target("MosaicML's shards and `index.json`", "splits, sample types, missing bytes"),
    "parquet": Target("a folder of `.parquet` files, or one file", "splits, sample types"),
    "pbin": Target("a `.pbin` for each file of tokens", "loss masks"),
    "ds": Target("a `.ds` with index and metadata for each file", ""),
    "megatron": Target("`.bin` and `.idx` for each file", "loss masks"),
    "dolma": Target("`.npy` and `.csv.gz` for each file", "loss masks"),
    "vla-text": Target("tars of sequences and `manifest.jsonl`", "loss masks, ends of documents, the last tokens"),
}

_SAMPLES = ("webdataset", "wds", "vla", "jsonl", "mds", "parquet")
_LINES = ("jsonl", "jsonl.gz", "jsonl.zst", "parquet")
_ROWS = ("webdataset", "wds", "vla", "mds", *_LINES)
TOKEN_TARGETS = ("pbin", "ds", "megatron", "dolma", "vla-text")


class Source(NamedTuple):
    """A format that can be read: a name for people, and the formats that it can be converted to."""

    name: str
    targets: tuple[str, ...]


SOURCES: Final[dict[str, Source]] = {
    "energon": Source("prepared WebDataset", _SAMPLES),
    "webdataset": Source("folder of tars", _SAMPLES),
    "tar": Source("a tar", _SAMPLES),
    "wids": Source("wids index", _SAMPLES),
    "vla": Source("VLA Foundry's manifest", _SAMPLES),
    "img2dataset": Source("img2dataset folder", _SAMPLES),
    "lerobot": Source("LeRobot dataset", _SAMPLES),
    "mds": Source("MosaicML's MDS", _SAMPLES),
    "jsonl": Source("JSONL file", _ROWS),
    "documents": Source("tree of JSON lines (Dolma's documents)", _LINES),
    "parquet": Source("Parquet", _ROWS),
    "arrow": Source("Arrow file", _ROWS),
    "huggingface": Source("Hugging Face dataset on disk", _ROWS),
    "pbin": Source("packed tokens (Modalities)", TOKEN_TARGETS),
    "ds": Source("`.ds` tokens (Nanotron)", TOKEN_TARGETS),
    "megatron": Source("Megatron-LM's tokens", TOKEN_TARGETS),
    "dolma": Source("Dolma's tokens", TOKEN_TARGETS),
    "vla-text": Source("VLA Foundry's tokenized text", TOKEN_TARGETS[:-1]),
}
"""Kinds as `feedmill.formats.sniff` has them; ``documents`` are lines that are no single file."""

TOKEN_SOURCES = ("pbin", "ds", "megatron", "dolma")
ROW_SOURCES = ("jsonl", "parquet", "arrow", "huggingface")


def is_one_file(destination: str, to: str) -> bool:
    """Whether a destination is one file: lines and tables are, where its name ends so; all else is a folder."""
    return to in _LINES and destination.endswith(f".{to}")


def check_target(to: str) -> None:
    """Raises `ConfigError` where a format can't be written, with what may have been meant."""
    if to in TARGETS:
        return
    near = get_close_matches(to, TARGETS, 1, 0.5)
    raise ConfigError(
        f"there is no format {to!r} to convert to",
        kind="unknown-format",
        fix=(f"Did you mean {near[0]!r}? " if near else "") + f"Formats are {', '.join(TARGETS)}.",
    )


def family(kind: str, to: str, url: str) -> str:
    """How a source of this kind becomes that format: as samples, tokens or rows.

    Raises:
        ConfigError: there is no way, and why.
    """
    check_target(to)
    tokens = kind in TOKEN_SOURCES
    if kind == "vla" and to in TOKEN_TARGETS:
        kind = "vla-text"
    source = SOURCES.get(kind)
    if source is not None and to in source.targets:
        rows = kind in (*ROW_SOURCES, "documents") and to in _LINES
        return TOKENS if to in TOKEN_TARGETS else ROWS if rows else SAMPLES
    if tokens and to not in TOKEN_TARGETS:
        what = "tokens are never turned back into text or samples: that would have to guess what the tokenizer lost"
        fix = f"Convert to {', '.join(TOKEN_TARGETS)}; 'feedmill decode' shows documents of tokens as text."
    elif kind == "vla-text":
        what, fix = "it is tokenized text of VLA Foundry already", "Copy it, or convert to another token format."
    elif to in TOKEN_TARGETS:
        what = f"{source.name if source else kind} has no tokens, and which tokenizer to use is yours to say"
        fix = "Make tokens of text with 'feedmill tokenize'."
    elif source is not None and to in _LINES and "jsonl" in source.targets:
        what = f"{source.name} is not converted to {to} at once"
        fix = f"Convert it to jsonl, and that file to {to}."
    elif kind == "documents":
        what = f"{source.name if source else kind} is not converted to {to} at once"
        fix = f"Convert it to parquet, and that to {to}."
    else:
        what = f"{source.name if source else kind} is not converted to {to}"
        fix = f"It can be converted to {', '.join(source.targets) if source else 'nothing'}."
    raise ConfigError(what, file=url, kind="no-conversion", fix=fix)


def conversion_table() -> str:
    """The table of all conversions, as Markdown; `docs/convert.md` has it.

    >>> conversion_table().splitlines()[2][:35]
    '| prepared WebDataset | yes | yes |'
    """
    names = list(TARGETS)
    lines = [f"| from | {' | '.join(f'`{name}`' for name in names)} |", "|---" * (len(names) + 1) + "|"]
    for source in SOURCES.values():
        cells = ["yes" if name in source.targets else "" for name in names]
        lines.append(f"| {source.name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def target_table() -> str:
    """What each format writes and has no place for, as Markdown."""
    lines = ["| `--to` | writes | has no place for |", "|---|---|---|"]
    lines += [f"| `{name}` | {target.writes} | {target.lacks} |" for name, target in TARGETS.items()]
    return "\n".join(lines) + "\n"
