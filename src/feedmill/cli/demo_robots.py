"""Chapter of the demo about robotics: two datasets, their statistics, and a mixture with exact windows."""

from __future__ import annotations

from typing import Any

from feedmill.cli.story import Story, timed

EPISODES = {"reach": 24, "slow": 12}
WEIGHTS, WINDOWS, BATCH = (0.7, 0.3), 3, 16


def mix_robots(story: Story) -> None:
    """Generate, index and check two datasets, merge their statistics, and load batches of both."""
    import numpy as np

    from feedmill.demo.robots import ACTION, STATE, write_robots
    from feedmill.indexing.check import check
    from feedmill.loading.loader import Loader
    from feedmill.planning.recipes.recipe import Recipe
    from feedmill.samples.robotics.job import compute_statistics
    from feedmill.samples.vla.modalities import modality
    from feedmill.storage import LocalStore

    story.chapter("Robots: camera frames and actions in VLA Foundry's format, mixed 70 to 30")
    root = story.out / "robots"
    store = LocalStore(root)
    counts = []
    for seed, (name, episodes) in enumerate(EPISODES.items()):
        speed = 0.25 if name == "reach" else 0.08
        count, seconds = timed(
            lambda name=name, episodes=episodes, speed=speed, seed=seed: write_robots(  # type: ignore[misc]
                store, name, episodes, speed=speed, seed=seed
            )
        )
        counts.append(count)
        compute_statistics(str(root / name), str(root / name / "stats.json"), progress=False)
        found = check(str(root / name), progress=False)
        story.row(
            f"robots/{name}", f"{count:,} samples of {episodes} episodes, {len(found.findings)} findings", seconds
        )
    data: dict[str, Any] = {
        "type": "robotics",
        "dataset_manifest": [str(root / name / "manifest.jsonl") for name in EPISODES],
        "dataset_statistics": [str(root / name / "stats.json") for name in EPISODES],
        "dataset_weighting": list(WEIGHTS),
        "dataset_modality": ["robotics"] * 2,
        "allow_multiple_epochs": True,
        "action_fields": [ACTION],
        "proprioception_fields": [STATE],
        "normalization": {"method": "std"},
    }
    samples = WINDOWS * 10 * BATCH
    plan = Recipe.parse({"data": data, "total_train_samples": samples}).plan()
    view = modality("robotics", data, [str(root / name) for name in EPISODES])
    located = plan.locate(np.arange(samples, dtype=np.int64))
    shares = [np.bincount(part, minlength=2).tolist() for part in np.split(located.source, WINDOWS)]
    mixture = ", ".join(" + ".join(map(str, share)) for share in shares)
    story.row("windows", f"{WINDOWS} of {samples // WINDOWS} samples: {mixture}")
    loader = Loader(plan, BATCH, rank=0, world_size=1, transform=view.cook, collate=view.batch)
    batches, seconds = timed(lambda: list(loader))
    shapes = ", ".join(
        f"{name} {list(batches[0][name].shape)}" for name in ("actions", "proprioception", "pixel_values")
    )
    story.row("batches", f"{shapes}; {samples / seconds:,.0f} samples/s", seconds)
    story.facts |= {"robots": counts, "robot_windows": shares, "converted": _convert(story)}


def _convert(story: Story) -> dict[str, str]:
    """Convert one dataset to MosaicML's shards and to a prepared WebDataset, comparing each sample; return digests."""
    from feedmill.converting.convert import convert

    source = story.out / "robots" / "reach"
    digests = {}
    for to, label in (("mds", "to MDS"), ("webdataset", "to tars")):
        target = story.out / "robots" / f"reach-{to}"
        report, seconds = timed(
            lambda to=to, target=target: convert(source, target, to, overwrite=True, progress=False)  # type: ignore[misc]
        )
        digests[to] = str(report.digest)
        story.row(label, f"{report.samples:,} samples of reach, each compared with its source", seconds)
    return digests
