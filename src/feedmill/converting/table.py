"""Which format can be converted to which: the one place that says it, for the code, the help and the documentation."""

from __future__ import annotations

from difflib import get_close_matches

from feedmill.errors import ConfigError
from feedmill.formats.format import TargetFormat
from feedmill.formats.registry import by_name, formats, targets

SAMPLES, TOKENS, ROWS = "samples", "tokens", "rows"


def sources() -> dict[str, tuple[TargetFormat, ...]]:
    """Return the formats that can be read -> those they can be converted to."""
    found = {}
    for format in formats():
        takes = tuple(target for target in targets().values() if format.family in target.takes)
        found[format.name] = takes
    return found


def token_targets() -> list[str]:
    """Return the formats of tokens that can be written."""
    return [target.name for target in targets().values() if "tokens" in target.takes]


def is_one_file(destination: str, to: str) -> bool:
    """Return whether a destination is one file: lines and tables are, where its name ends so; all else is a folder."""
    return to in targets() and targets()[to].is_file and destination.endswith(f".{to}")


def check_target(to: str) -> None:
    """Raises `ConfigError` if a format can't be written, with what may have been meant."""
    if to in targets():
        return
    near = get_close_matches(to, targets(), 1, 0.5)
    raise ConfigError(
        f"there is no format {to!r} to convert to",
        kind="unknown-format",
        fix=(f"Did you mean {near[0]!r}? " if near else "") + f"Formats are {', '.join(targets())}.",
    )


def family(kind: str, to: str, url: str) -> str:
    """Return how a source of this kind becomes that format: as samples, tokens or rows.

    Raises:
        ConfigError: there is no way, and why.
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
    if source is not None and source.family == "tokens":
        what = "tokens are never turned back into text or samples: that would have to guess what the tokenizer lost"
        fix = f"Convert to {', '.join(token_targets())}; 'feedmill decode' shows documents of tokens as text."
    elif kind == "vla-text":
        what, fix = "it is tokenized text of VLA Foundry already", "Copy it, or convert to another token format."
    elif "tokens" in wanted.takes:
        what = f"{title} has no tokens, and which tokenizer to use is yours to say"
        fix = "Make tokens of text with 'feedmill tokenize'."
    elif source is not None and source.family == "samples" and "lines" in wanted.takes:
        what = f"{title} is not converted to {to} at once"
        fix = f"Convert it to jsonl, and that file to {to}."
    elif kind == "documents":
        what = f"{title} is not converted to {to} at once"
        fix = f"Convert it to parquet, and that to {to}."
    else:
        what = f"{title} is not converted to {to}"
        fix = f"It can be converted to {', '.join(t.name for t in sources()[kind]) if source else 'nothing'}."
    raise ConfigError(what, file=url, kind="no-conversion", fix=fix)


def conversion_table() -> str:
    """Return the table of all conversions, as Markdown; `docs/convert.md` has it.

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
    """Return what each format writes and has no place for, as Markdown."""
    lines = ["| `--to` | writes | has no place for |", "|---|---|---|"]
    lines += [f"| `{name}` | {target.writes} | {target.lacks} |" for name, target in targets().items()]
    return "\n".join(lines) + "\n"
