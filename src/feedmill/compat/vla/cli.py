"""Implement ``feedmill compat vla ...``: manifests and statistics of VLA Foundry's data, and plans of its runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from feedmill.cli.app import new_app
from feedmill.cli.command import Json
from feedmill.cli.output import counted, emit, facts, table

if TYPE_CHECKING:
    from feedmill.compat.vla.run import VlaRun

Threads = Annotated[int | None, typer.Option("--workers", metavar="N", min=1, help="Threads; default: four per core.")]
Processes = Annotated[
    int | None, typer.Option("--workers", metavar="N", min=1, help="Processes; default: one per core.")
]

app = new_app(no_args_is_help=True, help="VLA Foundry's data: manifests, statistics, checkpoint windows.")

Folder = Annotated[str, typer.Argument(metavar="FOLDER", help="A folder of tars; a path or a URL.")]
Manifest = Annotated[str, typer.Argument(metavar="PATH", help="A manifest.jsonl, or its folder; a path or a URL.")]


@app.command()
def manifest(
    folder: Folder,
    form: Annotated[
        str,
        typer.Option("--form", metavar="documented|code", help="Shard names with .tar, or without."),
    ] = "documented",
    name: Annotated[str, typer.Option("--name", metavar="FILE", help="Name of the manifest.")] = "manifest.jsonl",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing manifest.")] = False,
    workers: Threads = None,
    json: Json = False,
) -> None:
    """Count the samples of all tars in a folder and its subfolders, and write the manifest."""
    from feedmill.indexing.manifests import write_manifest

    report = write_manifest(folder, name=name, form=form, overwrite=overwrite, workers=workers, progress=not json)

    def show() -> None:
        for note in report.notes:
            typer.echo(f"note: {note}")
        typer.echo(f"{report.path}: {counted(report.samples, 'sample')} in {counted(len(report.rows), 'shard')}")

    emit(report.as_dict(), json, show)


@app.command()
def stats(
    path: Manifest,
    output: Annotated[
        str | None,
        typer.Option("--output", metavar="FILE", help="Output file; default: stats.json beside the manifest."),
    ] = None,
    field: Annotated[
        list[str] | None,
        typer.Option("--field", metavar="NAME", help="Compute only this field; repeatable."),
    ] = None,
    pose_groups: Annotated[
        str | None,
        typer.Option(
            "--pose-groups",
            metavar="FILE",
            help="YAML with pose_groups: compute the relative fields of these poses too.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Compute statistics of robotics fields: mean, standard deviation, extremes, percentiles, per step and overall."""
    from feedmill.compat.vla.options import read_pose_groups
    from feedmill.samples.robotics.job import compute_statistics
    from feedmill.storage import split_url

    folder = split_url(path)[0] if path.endswith(".jsonl") else path
    where = output or f"{folder.rstrip('/')}/stats.json"
    groups = () if pose_groups is None else read_pose_groups(pose_groups)
    found = compute_statistics(path, where, fields=field or None, groups=groups, progress=not json)
    rows = [[one, *statistics.shape, int(statistics.count.max())] for one, statistics in found.items()]
    data = {
        "path": where,
        "fields": [dict(zip(("field", "steps", "channels", "samples"), row, strict=True)) for row in rows],
    }

    def show() -> None:
        table(["field", "steps", "channels", "samples"], rows)
        typer.echo(f"statistics: {where}")

    emit(data, json, show)


@app.command()
def windows(
    path: Annotated[str, typer.Argument(metavar="LEROBOT", help="A LeRobot dataset; a path or a URL.")],
    output: Annotated[str, typer.Option("--output", "-o", metavar="FOLDER", help="Output folder.")],
    past: Annotated[int, typer.Option("--past", metavar="N", help="Steps before the anchor.")] = 1,
    future: Annotated[int, typer.Option("--future", metavar="N", help="Steps after the anchor.")] = 15,
    stride: Annotated[int, typer.Option("--stride", metavar="N", help="Frames from one anchor to the next.")] = 1,
    image: Annotated[
        list[int] | None,
        typer.Option("--image", metavar="STEP", help="Step of the images, from the anchor; repeatable; default 0."),
    ] = None,
    quality: Annotated[int, typer.Option("--jpeg-quality", metavar="N", help="From 1 to 95.")] = 95,
    shard_samples: Annotated[int, typer.Option("--shard-samples", metavar="N", help="Samples per shard.")] = 1000,
    split: Annotated[str | None, typer.Option("--split", metavar="NAME", help="Only this split.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing dataset.")] = False,
    workers: Processes = None,
    json: Json = False,
) -> None:
    """Cut the episodes of a LeRobot dataset into windows, with manifest, configuration and statistics."""
    from feedmill.converting.windows import Cut, write_windows

    report = write_windows(
        path,
        output,
        Cut(past, future, stride, tuple(image or (0,)), quality),
        split=split,
        shard_samples=shard_samples,
        workers=workers,
        overwrite=overwrite,
        progress=not json,
    )

    def show() -> None:
        rows = [
            ("windows", f"{counted(report.samples, 'sample')} of {counted(report.episodes, 'episode')}"),
            ("written", f"{counted(report.shards, 'shard')}, manifest.jsonl, preprocessing_config.yaml, stats.json"),
            ("fields", ", ".join(report.fields)),
            ("cameras", ", ".join(report.cameras) or "none"),
            ("skipped", ", ".join(report.skipped) or "none"),
        ]
        facts(rows)

    emit(report.as_dict(), json, show)


@app.command("merge-stats")
def merge_stats(
    paths: Annotated[list[str], typer.Argument(metavar="FILE...", help="stats.json files.")],
    output: Annotated[str, typer.Option("--output", metavar="FILE", help="Output file.")],
    json: Json = False,
) -> None:
    """Merge the statistics of several datasets."""
    from feedmill.samples.robotics.statistics import merge_statistics, read_statistics, write_statistics

    merged = merge_statistics([read_statistics(path) for path in paths])
    write_statistics(output, merged)
    data = {"path": output, "merged": paths, "fields": list(merged)}
    emit(data, json, lambda: typer.echo(f"statistics: {output} ({counted(len(merged), 'field')})"))


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def plan(
    ctx: typer.Context,
    config: Annotated[str | None, typer.Argument(metavar="[CONFIG]", help="A run's YAML; a path or a URL.")] = None,
    json: Json = False,
) -> None:
    """Show what a run reads in each checkpoint window. Settings: --data.NAME VALUE, or the file."""
    from feedmill.compat.vla.run import VlaRun

    words = list(ctx.args)
    if config is None and not words:
        from feedmill.errors import ConfigError

        raise ConfigError(
            "no run was given", kind="bad-option", fix="Pass its YAML file, or settings: --data.NAME VALUE."
        )
    if config is not None and config.startswith("--"):
        words, config = [config, *words], None
    run = VlaRun.load(config, words)
    data = _planned(run)
    emit(data, json, lambda: _show_plan(run, data))


def _planned(run: VlaRun) -> dict[str, Any]:
    windows = run.windows() if run.plan.length is not None else []
    return {
        "fingerprint": run.plan.fingerprint,
        "samples": run.plan.length,
        "datasets": [
            {"path": source.url, "samples": len(source), "weight": str(weight)}
            for source, weight in zip(run.plan.sources, _weights(run), strict=True)
        ],
        "windows": [
            {"window": one.number, "start": one.start, "stop": one.stop, "samples": run.shares(one)} for one in windows
        ],
        "notes": run.notes,
        "settings": [meaning._asdict() for meaning in run.settings],
    }


def _weights(run: VlaRun) -> list[Any]:
    return list(run.config.get("data", {}).get("dataset_weighting") or [])


def _show_plan(run: VlaRun, data: dict[str, Any]) -> None:
    typer.echo(str(run.recipe))
    typer.echo("")
    names = list(run.plan.names)
    rows = []
    for window in data["windows"]:
        total = sum(window["samples"])
        shares = [f"{count:,} ({count / total:.4%})" for count in window["samples"]]
        rows.append([window["window"], f"{window['start']:,}", f"{window['stop']:,}", *shares])
    table(["window", "from", "to", *names], rows)
    for note in data["notes"]:
        typer.echo(f"note: {note}")
    ignored = [meaning for meaning in run.settings if not meaning.used]
    facts([(meaning.name, meaning.words) for meaning in ignored])
