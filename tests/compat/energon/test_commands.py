"""Energon's commands beyond `prepare`: checkpoints, debug logs, texts, and `click` commands for programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from feedmill.cli.app import app
from feedmill.compat.energon import WorkerConfig, get_loader, get_train_dataset
from feedmill.errors import ConfigError
from helpers.tars import write_tar

torch = pytest.importorskip("torch")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for shard in range(4):
        members = [(f"{number:03d}.txt", b"x") for number in range(10 * shard, 10 * shard + 10)]
        write_tar(tmp_path / f"data/{shard}.tar", members)
    run("prepare", tmp_path / "data", "--non-interactive", "--split-ratio", "1,0,0", "--sample-type", "TextSample",
        "--field-map", '{"text": "txt"}', "--force-overwrite")  # fmt: skip
    return tmp_path / "data"


def run(*words: Any, code: int = 0, stdin: str = "") -> str:
    done = CliRunner().invoke(app, ["compat", "energon", *map(str, words)], input=stdin)
    assert done.exit_code == code, done.output
    return str(done.output)


def loader_of(data: Path, rank: int = 0, size: int = 1, batch: int = 4, **config: Any) -> Any:
    workers = WorkerConfig(rank=rank, world_size=size, num_workers=config.pop("num_workers", 0), **config)
    return get_loader(get_train_dataset(data, batch_size=batch, worker_config=workers, shuffle_buffer_size=10,
                                        max_samples_per_sequence=10))  # fmt: skip


def keys(loader: Any, batches: int) -> list[list[str]]:
    return [batch.__key__ for _, batch in zip(range(batches), loader, strict=False)]


def test_texts(data: Path, tmp_path: Path) -> None:
    assert run("info", data).startswith(f"{data}: 40 samples in 4 shards\n")
    assert "with the commands of Energon" in run("-V") == run("--version")
    again = run("prepare", data, "--non-interactive", "--force-overwrite", "--split-ratio", "1,0,0")
    assert again.endswith("Done.\n")
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    assert run("prepare", tmp_path / "x.jsonl").endswith("Found 2 samples.\nDone.\n")


def test_preview_asks_whether_to_continue(data: Path) -> None:
    said = run("preview", data, stdin="y\nn\n")
    assert "Sample 0\n - __key__ (<class 'str'>): '000'\n - text (<class 'str'>): x\n" in said
    assert "'001'" in said and "'002'" not in said and said.endswith("Exiting Preview\n")
    assert "'001'" not in run("preview", data) and "'002'" in run("preview", data, "--count", 3)


@pytest.mark.parametrize("answer", ["8", "TextSample", "TextWebdataset", "99\nNonsense\n6\ntextsample\n8"])
def test_numbers_and_names_in_the_dialogue(data: Path, answer: str) -> None:
    said = run("prepare", data, stdin=f"y\n1,0,0\ny\n{answer}\ny\ntxt\n")
    assert "  6. Sample\n  7. SimilarityInterleavedSample\n  8. TextSample\n" in said and "11. CrudeWebdataset" in said
    description = (data / ".nv-meta/dataset.yaml").read_text()
    assert "TextSample" in description and "text: txt" in description


@pytest.mark.parametrize("suffix", [".pt", ".json"])
@pytest.mark.parametrize("megatron", [False, True])
def test_a_checkpoint_of_two_ranks_resumes_on_four(data: Path, tmp_path: Path, suffix: str, megatron: bool) -> None:
    files, loaders = [], [loader_of(data, rank, 2) for rank in range(2)]
    for rank, loader in enumerate(loaders):
        keys(loader, 3)
        state = loader.save_state_rank()
        file = tmp_path / f"step8_rank{rank:02d}{suffix}"
        value = {"dataloader_state_dict": state} if megatron else state
        file.write_text(json.dumps(value)) if suffix == ".json" else torch.save(value, file)
        files.append(file)
    following = sorted(key for loader in loaders for batch in keys(loader, 2) for key in batch)
    assert "rank 1: at sample 24, batch 3 of its epoch" in run("checkpoint", "info", *files)
    out = tmp_path / "out"
    assert "Wrote 4 files" in run("checkpoint", "redist", *files, out, "--new-world-size", 4)
    resumed = []
    for rank in range(4):
        file = out / f"step8_rank{rank:02d}{suffix}"
        state = json.loads(file.read_text()) if suffix == ".json" else torch.load(file)
        loader = loader_of(data, rank, 4)
        loader.restore_state_rank(state["dataloader_state_dict"] if megatron else state)
        resumed += [key for batch in keys(loader, 1) for key in batch]
    assert sorted(resumed) == following


def test_checkpoints_in_one_file_and_wrong_ones(data: Path, tmp_path: Path) -> None:
    loader = loader_of(data)
    first = loader.save_state_rank()
    keys(loader, 1)
    second = loader.save_state_rank()
    torch.save([first, first], tmp_path / "all.pt")
    run("checkpoint", "redist", tmp_path / "all.pt", tmp_path / "out", stdin="3\n")
    assert len(torch.load(tmp_path / "out/all.pt")) == 3
    assert "one file for all ranks" in run("checkpoint", "info", tmp_path / "all.pt")
    torch.save([first, second], tmp_path / "differ.pt")
    assert "saved at different steps" in run("checkpoint", "redist", tmp_path / "differ.pt", tmp_path / "o",
                                             "--new-world-size", 2, code=1)  # fmt: skip
    torch.save(first, tmp_path / "state.pt")
    assert "no number of a rank" in run("checkpoint", "redist", tmp_path / "state.pt", tmp_path / "o",
                                        "--new-world-size", 2, code=1)  # fmt: skip
    torch.save({"x": 1}, tmp_path / "other.pt")
    assert "not the state of a loader" in run("checkpoint", "info", tmp_path / "other.pt", code=1)
    torch.save(WorkerConfig(rank=0, world_size=1, num_workers=0), tmp_path / "class.pt")
    assert "objects of classes" in run("checkpoint", "info", tmp_path / "class.pt", code=1)
    assert "cannot be read" in run("checkpoint", "info", tmp_path / "none.pt", code=1)
    (tmp_path / "bad.json").write_text("{")
    assert "is not JSON" in run("checkpoint", "info", tmp_path / "bad.json", code=1)


def test_commands_for_programs(data: Path) -> None:
    pytest.importorskip("click")
    from click.testing import CliRunner as Runner
    from feedmill.compat.energon.tools.checkpoint import command_redist
    from feedmill.compat.energon.tools.info import command
    from feedmill.compat.energon.tools.prepare import command as prepare

    from feedmill.compat.energon.cli.main import main, prepare_media_command

    done = Runner().invoke(command, [str(data)])
    assert done.exit_code == 0 and "40 samples" in done.output
    failed = Runner().invoke(prepare, [str(data), "--non-interactive"])
    assert failed.exit_code == 1 and isinstance(failed.exception, ConfigError)
    assert {"checkpoint", "prepare"} <= set(main.commands)
    assert prepare_media_command.name == "prepare-media" and command_redist.name == "redist"
