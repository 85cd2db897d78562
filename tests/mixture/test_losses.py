"""Tables of losses: by run, and as Weights & Biases exports them; what cannot be used is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedmill as fm
from feedmill.mixture.losses import doubts, read_losses

RUNS = [f"run-{number:03}" for number in range(1, 13)]


def read(folder: Path, text: str, *metrics: str, **options: Any) -> Any:
    (folder / "losses.csv").write_bytes(text.encode())
    return read_losses(folder / "losses.csv", RUNS, metrics, **options)


def rows(values: dict[str, Any], head: str = "run,loss") -> str:
    usual = {run: f"{3 + number % 5}" for number, run in enumerate(RUNS)}
    return head + "\n" + "".join(f"{run},{value}\n" for run, value in {**usual, **values}.items())


def test_a_row_per_run_in_any_order(tmp_path: Path) -> None:
    head, *body = rows({}).splitlines()
    found = read(tmp_path, "\n".join([head, *reversed(body)]))
    assert found.runs == RUNS and found.metrics == ["loss"] and found.mean.tolist() == [3 + n % 5 for n in range(12)]
    for text in (rows({}).replace(",", "\t"), rows({}).replace(",", ";"), "\ufeff" + rows({}).replace("\n", "\r\n")):
        assert read(tmp_path, text).mean.tolist() == found.mean.tolist()


def test_several_columns_and_their_weights(tmp_path: Path) -> None:
    text = "run_id,a,b,note\n" + "".join(f"{run},{n},{2 * n},x\n" for n, run in enumerate(RUNS))
    assert read(tmp_path, text).mean.tolist() == [1.5 * n for n in range(12)]
    found = read(tmp_path, text, "a=3", "b")
    assert found.metrics == ["a", "b"] and found.weights.tolist() == [0.75, 0.25]
    assert read(tmp_path, text, "b").mean.tolist() == [2 * n for n in range(12)]


def wandb_runs(state: str = "finished", loss: str = "3.5") -> str:
    """As the table of runs is exported: every cell in quotes, settings beside losses."""
    head = '"Name","State","Notes","User","Tags","Created","Runtime","Sweep","lr","_step","val/loss","val/code"'
    cells = [
        f'"gpt-30m/{run}","{state if n == 4 else "finished"}","-","me","","2026-02-01T10:00:00.000Z","812","","0.001",'
        f'"1000","{loss if n == 4 else n}","{n}"'
        for n, run in enumerate(RUNS)
    ]
    return "\n".join([head, *cells])


def test_runs_of_wandb(tmp_path: Path) -> None:
    found = read(tmp_path, wandb_runs(), "val/loss")
    assert found.runs == RUNS and found.mean[4] == 3.5 and found.within == 12
    with pytest.raises(fm.ConfigError, match=r"unclear which columns are losses: lr, val/loss, val/code"):
        read(tmp_path, wandb_runs())
    for text, words in ((wandb_runs("crashed"), "a run that is crashed"), (wandb_runs(loss="NaN"), "missing or NaN")):
        with pytest.raises(fm.DataError, match=words):
            read(tmp_path, text, "val/loss")
        found = read(tmp_path, text, "val/loss", skip=True)
        assert len(found.runs) == 11 and RUNS[4] not in found.runs
        assert next(iter(found.left_out.as_dict().values())) == {"count": 1, "examples": [f"gpt-30m/{RUNS[4]}"]}


def test_a_chart_of_wandb(tmp_path: Path) -> None:
    """One column per run, empty where another run logged; the last value is the loss."""
    head = ['"Step"', *(f'"{run} - val/loss","{run} - val/loss__MIN","{run} - val/loss__MAX"' for run in RUNS)]
    lines = [",".join(head)]
    for step in (0, 500, 1000):
        for n in range(12):
            cells = [f'"{9 - step / 250 + n}"' if m == n else '""' for m in range(12) for _ in range(3)]
            lines.append(",".join([f'"{step}"', *cells]))
    found = read(tmp_path, "\n".join(lines))
    assert found.metrics == ["val/loss"] and found.mean.tolist() == [5 + n for n in range(12)]
    short = [line for line in lines if not (line.startswith('"1000"') and '"8.0"' in line)]  # of run-004
    with pytest.raises(fm.DataError, match=r"ends at step 500 of 1,000 \(run-004\)"):
        read(tmp_path, "\n".join(short))


@pytest.mark.parametrize("x", ["Relative Time (Process)", "Wall Time"])
def test_a_chart_over_time_does_not_say_which_runs_ended(tmp_path: Path, x: str) -> None:
    text = f'"{x}","run-001 - loss","run-002 - loss"\n"1","3",""\n"2","","3"'
    with pytest.raises(fm.ConfigError, match="Export the chart over steps"):
        read(tmp_path, text)


def test_a_column_without_numbers_is_not_left_out_in_silence(tmp_path: Path) -> None:
    """Before, the other columns alone were the losses."""
    for cell in ("", "2.31%", "'2,31'", "-"):
        text = "run,a,b\n" + "".join(f'{run},"{cell}",{n}\n' for n, run in enumerate(RUNS))
        with pytest.raises(fm.ConfigError, match=r"unclear which columns are losses: b .'a' has no numbers"):
            read(tmp_path, text)
        assert read(tmp_path, text, "b").metrics == ["b"]
    text = "run,optimizer,b\n" + "".join(f"{run},adamw,{n}\n" for n, run in enumerate(RUNS))
    assert read(tmp_path, text).metrics == ["b"]


def test_the_index_that_pandas_writes_is_no_loss(tmp_path: Path) -> None:
    text = "{},run,loss\n" + "".join(f"{n},{run},{3 - n / 9}\n" for n, run in enumerate(RUNS))
    assert read(tmp_path, text.format("")).metrics == ["loss"]
    for name in ("Unnamed: 0", "index"):
        with pytest.raises(fm.ConfigError, match=rf"unclear which columns are losses: {name}, loss .'{name}' may be"):
            read(tmp_path, text.format(name))


@pytest.mark.parametrize("other", ["accuracy", "val/code_acc", "ppl", "tokens", "constant"])
def test_columns_that_may_be_no_losses_must_be_named(tmp_path: Path, other: str) -> None:
    text = f"run,loss_tokens,{other}\n"
    text += "".join(f"{run},{n},{7 if other == 'constant' else n + 1}\n" for n, run in enumerate(RUNS))
    with pytest.raises(fm.ConfigError, match=f"unclear which columns are losses: loss_tokens, {other} .'{other}'"):
        read(tmp_path, text)
    assert read(tmp_path, text, "loss_tokens", other).metrics == ["loss_tokens", other]


def test_losses_that_may_be_wrong_are_named(tmp_path: Path) -> None:
    assert doubts(read(tmp_path, rows({}))) == []
    (note,) = doubts(read(tmp_path, rows({"run-005": "-9"})))
    assert "run-005 has a loss far below the others (-9, median 4)" in note and "--exclude run-005" in note
    (note,) = doubts(read(tmp_path, rows(dict.fromkeys(RUNS[:8], "3.3"))))
    assert note == "8 of 12 runs have the loss 3.3: is it rounded?"


@pytest.mark.parametrize(
    ("values", "words", "left"),
    [
        ({"run-003": "NaN"}, r"1 x a loss that is missing or NaN \(run-003\)", 11),
        ({"run-003": ""}, r"missing or NaN", 11),
        ({"run-003": "inf"}, r"infinite", 11),
        ({"run-003": "1e6"}, r"far above the others, such as 1e\+06", 11),
        ({"other": "3"}, r"1 x a run of no recipe of this swarm \(other\)", 12),
        ({"run-003": "nan", "other": "3"}, r"missing or NaN \(run-003\)|no recipe of this swarm \(other\)", 11),
        ({"x/run-003": "3"}, r"a second row of run-003", 11),
    ],
)
def test_runs_that_cannot_be_used_are_named(tmp_path: Path, values: dict[str, str], words: str, left: int) -> None:
    with pytest.raises(fm.DataError, match=words):
        read(tmp_path, rows(values))
    found = read(tmp_path, rows(values), skip=True)
    assert len(found.runs) == left and np.isfinite(found.values).all() and found.left_out


def test_runs_without_a_row_are_named_and_runs_can_be_excluded(tmp_path: Path) -> None:
    text = "\n".join(rows({}).splitlines()[:-2])
    with pytest.raises(fm.DataError, match=r"2 x no loss of this run \(run-011, run-012\).*--exclude RUN"):
        read(tmp_path, text)
    assert read(tmp_path, text, exclude=RUNS[-2:]).runs == RUNS[:-2]
    with pytest.raises(fm.ConfigError, match=r"Did you mean 'run-012'"):
        read(tmp_path, text, exclude=["run-0012"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("run,loss\n", "no rows"),
        ("a,loss\nrun-001,3\n", "no column with the names of the runs"),
        ("run,note\nrun-001,x\n", "no column of losses"),
        ("run,loss,loss\nrun-001,3,3\n", "two columns are named 'loss'"),
        ("run,loss\nrun-001,3,4\n", "row 2 has 3 cells"),
        ("run,loss\nrun-001,3\nrun-001,4\n", "several rows"),
        ("run,loss\n,3\n", "no name of a run"),
        ('run,loss\n"run-001,3\n', "not valid CSV"),
    ],
)
def test_tables_that_are_none(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(fm.FeedmillError, match=words):
        read(tmp_path, text)


def test_a_column_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(fm.ConfigError, match="Did you mean 'loss'"):
        read(tmp_path, rows({}), "los")
    with pytest.raises(fm.ConfigError, match="named twice"):
        read(tmp_path, rows({}), "loss", "loss=2")
