"""Find a mixture by experiment: tags, cells, 12 small runs of a GPT, a fit of their losses, and two large runs.

    python examples/mixture.py lab

The texts come from the Python installation: its modules, and the topics of its help. The held-out texts are as much
prose as code, but the texts at hand are mostly code, and many of them are tables of codecs. Cells are made of the
source and of how many English function words a document has. At the end, a run with the proposed weights is compared
with one that has the natural shares. ``curves.csv`` has the held-out losses of both. It takes a minute
or two. Needs the extras ``tokenize``, ``torch`` and ``lab``.
"""

from __future__ import annotations

import argparse
import csv
import json
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn import functional

import feedmill as fm

VOCABULARY, WIDTH, BATCH = 1024, 128, 8
RECIPE = """\
# mix.yaml
seed: 7
unit: tokens
blend:
  cells:
    of: tokens/train.pbin
    by: [source, {column: quality__gopher_v2__required_word_count, edges: [1, 10]}]
  max_repeats: 4
pack: {seq_len: 128}
targets: {}
"""
HELD = """\
# held.yaml
unit: tokens
blend: {cells: {of: tokens/held.pbin, by: [source]}, weights: {source=code: 1, source=prose: 1}}
pack: {seq_len: 128}
targets: {}
"""


def write_texts(folder: Path, every: int) -> None:
    """Write documents of about 1,500 characters: every tenth text is held out, of the codecs none.

    Args:
        folder: where ``train/documents`` and ``held/documents`` are written.
        every: use each text whose number it divides.
    """
    library = Path(sysconfig.get_path("stdlib"))
    texts = [("prose", f"topics/{name}", text) for name, text in sorted(topics.items())]
    for path in [*sorted(library.glob("*.py")), *sorted(library.glob("encodings/*.py"))]:
        texts.append(("code", str(path.relative_to(library)), path.read_text(encoding="utf-8")))
    rows: dict[str, list[str]] = {"train": [], "held": []}
    for number, (source, name, text) in enumerate(texts[::every]):
        part = "held" if number % 10 == 9 and not name.startswith("encodings/") else "train"
        for piece, content in enumerate(pieces(text)):
            rows[part].append(json.dumps({"id": f"{name}:{piece}", "text": content, "source": source}) + "\n")
    for part, lines in rows.items():
        path = folder / part / "documents/texts.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(lines), encoding="utf-8")


def pieces(text: str, size: int = 1500) -> Iterator[str]:
    """Cut a text at ends of lines; a short rest is dropped."""
    piece = ""
    for line in text.splitlines(keepends=True):
        piece += line
        if len(piece) >= size:
            yield piece
            piece = ""
    if len(piece) >= size // 8:
        yield piece


def prepare(folder: Path, every: int) -> None:
    """Write texts, tags, tokens, recipes and cells."""
    write_texts(folder, every)
    fm.tag([folder / "train/documents"], ["gopher_v2"], name="quality", progress=False)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    lines = (folder / "train/documents/texts.jsonl").read_text(encoding="utf-8").splitlines()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<end>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((json.loads(line)["text"] for line in lines), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    for part in ("train", "held"):
        fm.tokenize(
            [folder / part / "documents"],
            folder / f"tokens/{part}",
            tokenizer=folder / "tokenizer.json",
            eos="<end>",
            progress=False,
        )
    for name, text in (("held.yaml", HELD), ("mix.yaml", RECIPE)):
        (folder / name).write_text(text)
        report = fm.mixture.cells(folder / name, progress=False)
    for cell in report.sidecars[0].cells:
        print(f"{cell.documents:5,} documents {cell.tokens:9,} tokens in {cell.name}")


class GPT(nn.Module):
    """A small GPT of torch's own layers."""

    def __init__(self, size: int, layers: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, size), nn.Embedding(WIDTH, size)
        layer = nn.TransformerEncoderLayer(size, 4, 4 * size, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(size, VOCABULARY)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Return the loss of each target, [rows, tokens]; 0 for ignored ones."""
        x = self.tokens(batch["inputs"]) + self.places(batch["positions"].long().clamp(max=WIDTH - 1))
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        logits = self.head(self.blocks(x, mask, is_causal=True))
        return functional.cross_entropy(logits.transpose(1, 2), batch["targets"], ignore_index=-100, reduction="none")


def train(
    plan: Any, tokens: int, held: tuple[dict[str, Tensor], fm.Labels], size: int, layers: int, points: int
) -> list[dict[str, float]]:
    """Train a new model on a plan, and return its curve.

    Args:
        plan: the plan of packed rows.
        tokens: length of the run.
        held: a batch of held-out rows, and its labels.
        size, layers: of the model.
        points: number of evaluations; the last one is at the end.

    Returns:
        Tokens seen, and the held-out loss of each source, at each evaluation.
    """
    torch.manual_seed(0)
    model = GPT(size, layers)
    steps = min(tokens, len(plan) * WIDTH) // (BATCH * WIDTH)  # a proxy's length is that of mean documents
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps, pct_start=0.1)
    curve = []
    loader = fm.Loader(plan, BATCH, rank=0, world_size=1, output="torch")
    for step, batch in zip(range(1, steps + 1), loader, strict=False):
        loss = model(batch).sum() / (batch["targets"] != -100).sum()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rate.step()
        if step * points // steps > (step - 1) * points // steps:
            curve.append({"tokens": step * BATCH * WIDTH, **losses(model, *held)})
    loader.close()
    return curve


def losses(model: GPT, batch: dict[str, Tensor], labels: fm.Labels) -> dict[str, float]:
    """Return the held-out loss of each source."""
    with torch.no_grad():
        return labels.mean(model(batch), batch["targets"] != -100, by="source")


def held_out(folder: Path, rows: int) -> tuple[dict[str, Tensor], fm.Labels]:
    """Return a batch of held-out rows, and its labels."""
    loader = fm.Loader(str(folder / "held.yaml"), rows, rank=0, world_size=1, output="torch", labels=True)
    batch = next(iter(loader))
    labels = loader.labels
    loader.close()
    return batch, labels


def experiment(
    folder: Path, *, runs: int, proxy: int, target: int, size: int, layers: int, every: int, rows: int, points: int
) -> dict[str, list[dict[str, float]]]:
    """Do all of it, and return the curves of the two large runs, ``natural`` and ``best``."""
    prepare(folder, every)
    fm.mixture.propose(folder / "mix.yaml", folder / "swarm", count=runs, target=target)
    held = held_out(folder, rows)
    with open(folder / "losses.csv", "w", newline="") as file:
        table = csv.writer(file)
        for number in range(1, runs + 1):
            name = f"run-{number:03}"
            plan = fm.Recipe.load(folder / f"swarm/{name}.yaml").plan(proxy={"tokens": proxy, "of": target})
            found = train(plan, proxy, held, size, layers, 1)[-1]
            sources = [key for key in found if key != "tokens"]
            if number == 1:
                table.writerow(["run", *sources])
            table.writerow([name, *(found[source] for source in sources)])
            print(name, {source: round(found[source], 3) for source in sources}, flush=True)
    report = fm.mixture.fit(folder / "swarm", folder / "losses.csv", folder / "best.yaml")
    for source in report.sources:
        print(f"{source['natural']:7.1%} naturally, {source['share']:7.1%} proposed of {source['name']}")
    print(f"predicted by the {report.chosen}: {report.predicted:.3f}, of the natural shares: {report.natural:.3f}")
    print(*report.notes, sep="\n")
    curves = {}
    for name, recipe in (("natural", "mix.yaml"), ("best", "best.yaml")):
        plan = fm.Recipe.load(folder / recipe).plan()
        curves[name] = train(plan, target, held, size, layers, points)
    with open(folder / "curves.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["run", *curves["best"][0]])
        for name, curve in curves.items():
            table.writerows([name, *point.values()] for point in curve)
    return curves


def mean(point: dict[str, float]) -> float:
    """Return the mean over the sources, which all weigh the same."""
    values = [value for key, value in point.items() if key != "tokens"]
    return sum(values) / len(values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="an empty folder, or a new one")
    for name, default in (("runs", 12), ("proxy", 40_000), ("target", 240_000), ("size", 64), ("layers", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--every", type=int, default=1, help="use one text of so many")
    parser.add_argument("--rows", type=int, default=64, help="held-out rows")
    parser.add_argument("--points", type=int, default=10, help="points of a curve")
    options = vars(parser.parse_args())
    curves = experiment(options.pop("folder"), **options)
    print("   tokens  natural     best")
    for natural, best in zip(curves["natural"], curves["best"], strict=True):
        print(f"{natural['tokens']:9,} {mean(natural):8.3f} {mean(best):8.3f}")


if __name__ == "__main__":
    main()
