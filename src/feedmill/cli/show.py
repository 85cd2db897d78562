"""``feedmill show``: describe a dataset, and show its first samples as text, and their images as one picture."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from feedmill.cli.command import command
from feedmill.cli.output import counted, emit, facts, human_size, printable, table
from feedmill.jobs.options import Opt, call
from feedmill.samples.options import Preview


class Show(Preview, kw_only=True):
    """Describe a dataset: format, samples, shards, bytes, splits, sample type; and show samples, each part as text."""

    count: Annotated[int, Opt("N", "Number of samples to show; 0: only describe the dataset.", "-n", min=0)] = 3


@command(Show)
def show(options: Show, json: bool) -> None:
    from feedmill.converting.info import info

    about = call(info, options).as_dict()
    if not json:
        show_facts(about)  # first: a sample that cannot be read is an error
    shown, sheet = _samples(options, about)
    if json:
        emit({**about, "shown": shown, "sheet": sheet}, json, lambda: None)
        return
    if shown:
        typer.echo("")
    print_shown(shown)
    if sheet is not None:
        typer.echo(f"contact sheet: {sheet}")


def _samples(options: Show, about: dict[str, Any]) -> tuple[list[dict[str, Any]], str | None]:
    """Return samples as text, and the picture that was written."""
    asked = options.start or options.sheet is not None
    empty = about.get("samples") == 0 and options.split is None
    if not asked and (not options.count or empty or about.get("own_code")):  # the facts say why there are none
        return [], None
    from feedmill.samples.preview import preview

    if not options.count:
        raise typer.BadParameter("no sample is shown: it needs a number of at least 1", param_hint="--count")
    report = call(preview, options)
    return report.samples, report.sheet


def _converted(proof: dict[str, Any] | None) -> str | None:
    if proof is None:
        return None
    found = f"each equal to the source's (digest {proof['digest']})" if proof["verified"] else "not verified"
    left = f", {proof['skipped']:,} left out" if proof["skipped"] else ""
    return f"from {proof['source']} ({proof['source_format']}): {proof['samples']:,} samples, {found}{left}"


def _loss_mask(data: dict[str, Any]) -> str | None:
    """Return how many tokens contribute to the loss, for display."""
    mask = data.get("loss_mask")
    if not mask:
        return None
    share = 100 * mask["tokens_in_loss"] / max(data["tokens"], 1)
    files = "" if mask["files"] == data["shards"] else f" ({mask['files']} of {data['shards']} files have one)"
    return f"{mask['tokens_in_loss']:,} of {data['tokens']:,} tokens in the loss, {share:.1f} %{files}"


def show_facts(data: dict[str, Any]) -> None:
    """Print the description of a dataset."""
    facts(
        [
            ("dataset", data.get("path")),
            ("format", data.get("format")),
            ("samples", data.get("samples")),
            ("rollouts", _rollouts(data.get("rollouts"))),
            ("episodes", _episodes(data)),
            ("cameras", ", ".join(data.get("cameras") or []) or None),
            ("robot", data.get("robot")),
            ("tasks", data.get("tasks")),
            ("tokens", _counted(data)),
            ("loss mask", _loss_mask(data)),
            ("tokenizer", data.get("tokenizer")),
            ("shards", data.get("shards")),
            ("size", None if data.get("bytes") is None else human_size(data["bytes"])),
            ("indexed", data.get("indexed")),
            ("sample type", data.get("sample_type")),
            ("field map", _pairs(data.get("field_map"))),
            ("subflavors", _pairs(data.get("subflavors"))),
            ("remarks", "\n".join(data.get("remarks") or []) or None),
            ("own code", data.get("own_code")),
            ("converted", _converted(data.get("conversion"))),
            ("first sample", _first(data.get("first_sample"))),
        ]
    )
    splits = data.get("splits") or {}
    if splits:
        total = sum(split.get("samples") or 0 for split in splits.values()) or 1
        rows = [
            (name, n := split.get("samples") or 0, split.get("shards"), f"{100 * n / total:.1f} %")
            for name, split in splits.items()
        ]
        names = ["split", "samples", "shards", "share"]
        if all(shards is None for _, _, shards, _ in rows):  # ranges of episodes in the same files
            names.remove("shards")
            rows = [(name, n, share) for name, n, _, share in rows]  # type: ignore[misc]
        typer.echo("")
        table(names, rows)


def _rollouts(about: dict[str, Any] | None) -> str | None:
    if about is None:
        return None
    first, last = about["versions"]
    of = "" if about["group_size"] is None else f" of {about['group_size']:,} answers"
    return f"{about['groups']:,} groups{of} in {counted(about['commits'], 'commit')}, versions {first:,} to {last:,}"


def _episodes(data: dict[str, Any]) -> str | None:
    if data.get("episodes") is None:
        return None
    rate = "at an unknown rate" if data.get("fps") is None else f"{data['fps']:g} steps a second"
    return f"{data['episodes']:,}, {rate}"


def _counted(data: dict[str, Any]) -> str | None:
    """Return the number of tokens, with their size in bytes if known."""
    if data.get("tokens") is None:
        return None
    sizes = data.get("token_bytes") or []
    return f"{data['tokens']:,}" + (f" of {' and '.join(map(str, sizes))} bytes" if sizes else "")


def _pairs(mapping: Any) -> str | None:
    return ", ".join(f"{name}: {value}" for name, value in mapping.items()) if mapping else None


def _first(sample: dict[str, Any] | None) -> str | None:
    if sample is None:
        return None
    sizes = {name: "not readable" if size is None else human_size(size) for name, size in sample["parts"].items()}
    return f"{sample['key']} ({', '.join(f'{name} {size}' for name, size in sizes.items())})"


def print_shown(shown: list[dict[str, Any]]) -> None:
    """Print the output of `as_shown`."""
    for sample in shown:
        source = sample["source"]
        where = f"{printable(source['file'])} at byte {source['offset']:,}, {source['length']:,} bytes"
        typer.secho(printable(sample["key"]), bold=True, nl=False)
        typer.echo(f"   sample {source['index']:,}   {where}")
        for name, text in sample["parts"].items():
            rows = text.splitlines() or [""]
            typer.echo(f"  {printable(name) + ':':<14} {rows[0]}")
            for row in rows[1:]:
                typer.echo(f"  {'':<14} {row}")
        typer.echo("")
