"""Compare tokenizing conversations, with loss masks, with the map of TRL's `SFTTrainer`. README.md has details."""

from __future__ import annotations

import json
import os
import pydoc_data.topics
import random
import re
import shutil
from pathlib import Path

from benchmarks import peers
from benchmarks.lib import corpus
from benchmarks.lib.measure import Failed, Row, alternate, child, feedmill, run
from benchmarks.tokens.tokenizing import TOKENIZER

ROWS, FEW = 100_000, 100
"""Conversations, and those of a run that shows the time of the start."""
TEMPLATE = (
    "{%- if messages[0]['role'] == 'system' %}{{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}"
    "{%- else %}{{- '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{%- endif %}"
    "{%- for message in messages %}{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}"
    "{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}"
    "{%- elif message.role == 'assistant' %}{{- '<|im_start|>assistant\n' }}"
    "{% generation %}{{- message.content + '<|im_end|>' }}{% endgeneration %}{{- '\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
"""ChatML with a default system prompt, as that of Qwen2.5, with the blocks that TRL needs."""


def tokenizer() -> Path:
    """Return a folder with GPT-2's tokenizer, ChatML's tokens and the template."""
    given, folder = os.environ.get(TOKENIZER), corpus.folder() / "chats_tokenizer"
    if not given:
        raise Failed(f"set {TOKENIZER}")
    if not folder.exists():
        made = folder.with_suffix(".part")
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir()
        model = json.loads((Path(given) / "tokenizer.json").read_text())
        first = 1 + max(max(model["model"]["vocab"].values()), *(token["id"] for token in model["added_tokens"]))
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        names = ("<|im_start|>", "<|im_end|>")
        model["added_tokens"] += [{"id": first + n, "content": name, **flags} for n, name in enumerate(names)]
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "chat_template": TEMPLATE}
        (made / "tokenizer.json").write_text(json.dumps(model))
        (made / "tokenizer_config.json").write_text(json.dumps(settings))
        made.rename(folder)
    return folder


def conversations(rows: int) -> Path:
    """Return a JSONL file of conversations: one to three questions and answers in English, 240 tokens on average."""
    path = corpus.folder() / f"chats_{rows}.jsonl"
    if not path.exists():
        words = re.findall(r"\S+", " ".join(pydoc_data.topics.topics.values()))
        dice = random.Random(7)

        def said(most: int) -> str:
            count = min(most, 1 + int(dice.expovariate(3 / most)))
            first = dice.randrange(len(words) - count)
            return " ".join(words[first : first + count])

        partial = path.with_suffix(".part")
        with open(partial, "w", encoding="utf-8") as out:
            for number in range(rows):
                messages = [{"role": "system", "content": said(40)}] if dice.random() < 0.3 else []
                for _ in range(dice.choice((1, 1, 2, 3))):
                    messages.append({"role": "user", "content": said(60)})
                    messages.append({"role": "assistant", "content": said(170)})
                out.write(json.dumps({"id": number, "messages": messages}, ensure_ascii=False) + "\n")
        partial.rename(path)
    corpus.warm(path)
    return path


def ours(rows: int) -> dict[str, float]:
    """Run Feedmill's command with one process."""
    source, model, out = conversations(rows), tokenizer(), corpus.folder() / "tokens" / "chats"
    for left in out.parent.glob("chats.*"):  # not counted: deleting the output of the previous run
        left.unlink()
    words = ("tokenize", source, "-o", out, "-t", model, "--chat", "messages", "--workers", 1, "--overwrite")
    found = run(feedmill(*words))
    manifest = json.loads(out.with_name("chats.pbin.feedmill.json").read_text())
    return {**found, "tokens": manifest["tokens"], "learned": manifest["options"]["tokens_in_loss"]}


def theirs(rows: int) -> dict[str, float]:
    """Run the preparation of `SFTTrainer` in one process: seconds of processor time of its map and of the program."""
    environment = {**peers.environment(), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return child(peers.need("trl"), "tokens.peers.trl", "prepare", tokenizer(), conversations(rows), env=environment)


def chats(repeat: int) -> list[Row]:
    """Measure conversations to ids and loss masks, by processor time of one process."""
    ours(FEW)  # not counted: compares the engines once
    mine, found = alternate(min(repeat, 3), lambda: ours(ROWS), lambda: theirs(ROWS))
    if any({*mine[name]} != {*found[name]} for name in ("tokens", "learned")):
        raise Failed("the two sides have different numbers of tokens, or of those in the loss")
    start = [ours(FEW)["cpu_s"] for _ in mine["cpu_s"]]
    steady = [whole - few for whole, few in zip(mine["cpu_s"], start, strict=True)]
    return [
        Row("chats", f"{ROWS:,} conversations, whole command; beside: map", "s", mine["cpu_s"], found["map_s"], 20),
        Row("chats", f"{ROWS:,} conversations without the start; beside: map", "s", steady, found["map_s"], 25),
        Row("chats", f"{ROWS:,} conversations, whole command; beside: program", "s", mine["cpu_s"], found["cpu_s"], 20),
    ]


PARTS = {"chats": chats}
