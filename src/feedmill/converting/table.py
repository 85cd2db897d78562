"""Table of supported conversions: the single source for the code, the help and the documentation."""

from __future__ import annotations

from feedmill.errors import ConfigError, NotFound, suggestion
from feedmill.formats.format import TargetFormat
from feedmill.formats.registry import by_name, formats, targets

SAMPLES, TOKENS, ROWS = "samples", "tokens", "rows"


def sources() -> dict[str, tuple[TargetFormat, ...]]:
    """Return source format -> formats it can be converted to."""
    found = {}
    for format in formats():
        takes = tuple(target for target in targets().values() if format.family in target.takes)
        found[format.name] = takes
    return found


def token_targets() -> list[str]:
    """Return the token formats that can be written."""
    return [target.name for target in targets().values() if "tokens" in target.takes]


def is_one_file(destination: str, to: str) -> bool:
    """Return whether a destination is one file: lines or a table, with a name that ends with the format's suffix."""
    return to in targets() and targets()[to].is_file and destination.endswith(f".{to}")


_MEANT = {
    "webdataset, and then 'feedmill prepare'": ("energon", "coco"),
    "webdataset": ("tar", "tars", "shards"),
    "parquet": ("arrow", "hf", "huggingface", "datasets"),
    "jsonl": ("json", "ndjson", "lines"),
    "mds": ("mosaicml", "streaming"),
    "ds": ("nanotron", "datatrove"),
    "pbin": ("modalities",),
}
"""What to write instead -> what people ask for."""


def check_target(to: str) -> None:
    """Raise `ConfigError` if `to` is not a format that can be written; its fix suggests the closest name."""
    if to in targets():
        return
    meant = next((f"Use --to {name}." for name, words in _MEANT.items() if to.lower() in words), "")
    raise ConfigError(
        f"{to!r} is not a format that can be written",
        kind="unknown-format",
        fix=f"{meant or suggestion(to, targets(), cutoff=0.5)} Formats are {', '.join(targets())}.".strip(),
    )


def has_token_ids(kind: str, url: str) -> bool:
    """Return whether a dataset of this kind has rows with a column of token ids."""
    source = by_name().get(kind)
    if source is None or (source.family != "rows" and kind not in ("mds", "jsonl")):
        return False
    from feedmill.converting.tokens import token_rows  # imports much that other conversions do not need

    try:
        return token_rows(url) is not None
    except NotFound:  # it is reported when the source is opened
        return False


def family(kind: str, to: str, url: str) -> str:
    """Return how a source of this kind is converted to a format: as samples, tokens or rows.

    Raises:
        ConfigError: the conversion is unsupported.
    """
    check_target(to)
    wanted = targets()[to]
    if kind == "vla" and "tokens" in wanted.takes:
        kind = "vla-text"
    source = by_name().get(kind)
    title = source.title if source else kind
    if source is not None and source.family in wanted.takes:
        rows = source.family in ("rows", "lines") and "lines" in wanted.takes
        return TOKENS if "tokens" in wanted.takes else ROWS if rows else SAMPLES
    if "tokens" in wanted.takes and has_token_ids(kind, url):
        return TOKENS
    if source is not None and source.family == "tokens":
        what = "tokens cannot be converted to text or samples: detokenizing does not restore the original text"
        fix = f"Convert to {', '.join(token_targets())}, or show documents as text with 'feedmill tokens decode'."
    elif kind == "vla-text":
        what, fix = "it is already tokenized text of VLA Foundry", "Copy it, or convert to another token format."
    elif "tokens" in wanted.takes:
        what = f"{title} has no tokens, and a conversion does not choose a tokenizer"
        fix = "Tokenize text with 'feedmill tokenize'."
    elif source is not None and source.family in ("samples", "episodes") and "lines" in wanted.takes:
        what = f"{title} cannot be converted to {to} directly"
        fix = f"Convert it to jsonl, and that file to {to}."
    elif kind == "documents":
        what = f"{title} cannot be converted to {to} directly"
        fix = f"Convert it to parquet, and that to {to}."
    else:
        what = f"{title} cannot be converted to {to}"
        fix = f"It can be converted to {', '.join(t.name for t in sources()[kind]) if source else 'nothing'}."
    raise ConfigError(what, file=url, kind="no-conversion", fix=fix)


def conversion_table() -> str:
    """Return the table of all conversions, as Markdown, for `docs/internals/conversions.md`.

    >>> conversion_table().splitlines()[2][:35]
    '| prepared WebDataset | yes | yes |'
    """
    names = list(targets())
    lines = [f"| from | {' | '.join(f'`{name}`' for name in names)} |", "|---" * (len(names) + 1) + "|"]
    for source in formats():
        cells = ["yes" if source.family in targets()[name].takes else "" for name in names]
        lines.append(f"| {source.title} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def target_table() -> str:
    """Return the table of what each format writes and cannot store, for docs/internals/conversions.md."""
    lines = ["| `--to` | writes | cannot store |", "|---|---|---|"]
    lines += [f"| `{name}` | {target.writes} | {target.lacks} |" for name, target in targets().items()]
    return "\n".join(lines) + "\n"
