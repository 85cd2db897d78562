"""Every verb in an environment without extras gives its result, or a message that names the extra: never a traceback.

`CASES` has each verb, and the main commands of the drop-in faces, with small real inputs, and the extra whose name its
error must give; ``""`` where it works without any.
"""

from __future__ import annotations

import ast
import gzip
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from feedmill.cli.app import GROUPS, VERBS
from feedmill.indexing.prepare import prepare
from feedmill.samples.media import MediaFilter
from helpers import bare_python
from helpers import foreign_datasets as sourcedata
from helpers import media_files as clips
from helpers.tars import write_tar
from helpers.web_archives import archive, pages

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests/golden"
TOKENIZER = "tokenizer/tokenizer.json"

CASES: list[tuple[str, str]] = [
    ("demo --output demo-out", "media"),
    ("demo --data sample_data", "media"),
    ("import docs.jsonl imported", ""),
    ("import table imported_table", "arrow"),
    ("import media imported_media", ""),
    ("show coco", ""),
    ("show table", "arrow"),
    ("show books.pbin", ""),
    ("show hf://datasets/org/set", "fsspec"),
    ("show coco", ""),
    ("show coco --sheet sheet.png", "media"),
    ("serve coco", "web"),
    ("serve coco --export coco.html", "web"),
    ("check coco", ""),
    ("edit repair coco", ""),
    ("prepare plain --split-ratio 1,0,0", ""),
    ("edit prepare-media media --media-by-extension", "media"),
    ("tokens lengths photos --processor processor --text txt", "tokenize"),
    ("edit reshard coco coco2 --max-shard-samples 2", ""),
    ("edit append coco more", ""),
    ("edit delete coco 000001 --yes", ""),
    ("edit add-parts coco parts --on-error skip", ""),
    ("edit mount coco mnt", "mount"),
    ("documents extract crawl -o pages", "curation"),
    ("documents extract crawl -o pages --linearizer trafilatura", "curation"),
    ("tag web/documents -t char_length_v1 --name lengths", ""),
    ("tag web/documents -t pii_regex_v2 --name pii", ""),
    ("tag web/documents -t cld2_en_doc_v2 --name language", "curation"),
    ("tag web/documents -t code_starcoder_taggers_v1 --name code", "curation"),
    (f"tag web/documents -t tokens={TOKENIZER} --name counts", "tokenize"),
    ("documents embed web/documents --model static", "models"),
    ("dedupe web/documents", ""),
    ("dedupe --near web/documents", ""),
    ("documents decontaminate web/documents --against docs.jsonl", ""),
    ("filter mix.yaml", ""),
    ("documents stat web/documents", ""),
    ("documents stat web/documents --plot-to lengths.png", "media"),
    ("tokenize docs.jsonl -o tokens/docs -t tokenizer", "tokenize"),
    ("tokenize docs.jsonl -o tokens/piece -t piece.model", "tokenize"),
    ("tokenize docs.jsonl -o tokens/jq -t tokenizer --text '.id + .text'", "tokenize"),
    ("tokens decode books.pbin --document 0 -t tokenizer", "tokenize"),
    ("run pipeline.yaml", ""),
    ("convert coco coco.jsonl --to jsonl --allow-loss", ""),
    ("convert coco coco_mds --to mds --allow-loss", ""),
    ("convert docs.jsonl docs_parquet --to parquet", "arrow"),
    ("plan recipe.yaml", ""),
    ("plan recipe.yaml --samples 8 --plot-to plan.png", "media"),
    ("mixture cells docs.jsonl --by id", ""),
    ("mixture propose blend.yaml -o swarm", ""),
    ("mixture compare blend.yaml blend.yaml --samples 9", ""),
    ("mixture fit swarm losses.csv -o best.yaml", "lab"),
    ("trace recipe.yaml --step 1 --global-batch 2", ""),
    ("documents forget d1 docs.jsonl mixed", ""),
    ("bench recipe.yaml --seconds 0.1 --workers 0", ""),
    ("cache list", ""),
    ("bench recipe.yaml --arrays torch", "torch"),
    ("tokens index lines.jsonl", ""),
    ("tokens merge books.pbin news.pbin all.pbin", ""),
    ("tokens shuffle books.pbin shuffled.ds --seed 7", ""),
    ("tokens split books.pbin 'part_{part}.pbin' --ratio 1,1 --seed 7", ""),
    ("filter books.pbin short.pbin --max-length 100", ""),
    ("tokens numbers --data books.pbin --seq-len 8 --ranks 1 --micro-batch 1", ""),
    ("compat modalities data create_raw_index more.jsonl", ""),
    ("compat modalities data merge_packed_data books.pbin news.pbin merged.pbin", ""),
    ("compat modalities data pack_encoded_data pack.yaml", "tokenize"),
    ("compat energon info coco", ""),
    ("compat energon lint coco", "media"),
    ("compat energon preview coco", ""),
    ("compat energon prepare plain2 --non-interactive --split-ratio 1,0,0", ""),
    ("compat nanotron preprocess_data --tokenizer-name-or-path tokenizer --output-folder nano jsonl"
     " --dataset docs.jsonl", "tokenize"),
    ("compat megatron preprocess_data --input docs.jsonl --output-prefix mg --tokenizer-type HuggingFaceTokenizer"
     " --tokenizer-model tokenizer --json-keys text --workers 1", "tokenize"),
    ("compat vla manifest text_doc --overwrite", ""),
    ("compat vla stats robotics --output stats.json", ""),
    ("compat dolma list", ""),
    ("compat dolma tag --documents web/documents/* --taggers char_length_v1 --experiment lengths", ""),
    ("compat dolma warc --documents crawl/* --destination pages --source_name web", "curation"),
    ("compat dolma -c mix.yaml mix", ""),
    ("compat dolma stat --attributes web/attributes/given/* --report report", ""),
    ("compat dolma tokens --documents web/documents/* --destination dolma --tokenizer.name_or_path tokenizer"
     " --tokenizer.eos_token_id 0", "tokenize"),
]  # fmt: skip

_CHILD = """
import json, sys
from typer.testing import CliRunner
from feedmill.cli.app import app

out = []
for words in json.load(sys.stdin):
    done = CliRunner().invoke(app, words, prog_name="feedmill")
    crash = done.exception if not isinstance(done.exception, SystemExit) else None
    out.append([done.exit_code, done.output, repr(crash) if crash else ""])
with open(sys.argv[1], "w") as file:
    json.dump(out, file)
"""


def data(root: Path) -> None:
    """Inputs of all cases, made with the extras that the tests have."""
    shutil.copytree(GOLDEN / "models/static", root / "static")
    for folder, first, count in (("coco", 0, 6), ("plain", 0, 4), ("plain2", 0, 4), ("more", 6, 2)):
        write_tar(root / folder / "shard_0.tar", _captions(first, count))
    write_tar(root / "parts/shard_0.tar", [(f"{number:06d}.cls", b"1") for number in range(6)])
    for folder in ("coco", "parts"):
        prepare(str(root / folder), split_ratio="1,0,0", progress=False)
    write_tar(root / "photos/shard_0.tar", _captions(0, 2))
    prepare(str(root / "photos"), split_ratio="1,0,0", media=MediaFilter.parse(extension=True), progress=False)
    (root / "processor").mkdir()
    for name, content in json.loads((GOLDEN / "token_rules/llava.json").read_text())["files"].items():
        (root / "processor" / name).write_text(json.dumps(content))
    shutil.copyfile(GOLDEN / "nanosets/tok1k/tokenizer.json", root / "processor/tokenizer.json")
    (root / "media").mkdir()
    (root / "media/one.mp4").write_bytes(clips.movie("mp4", seconds=0.5))
    (root / "table").mkdir()
    sourcedata.parquet(root / "table", [3])
    documents = [{"id": f"d{n}", "text": f"Document {n} has a few words. " * (n + 1)} for n in range(6)]
    lines = "".join(json.dumps(document) + "\n" for document in documents)
    (root / "web/documents").mkdir(parents=True)
    (root / "web/attributes/given").mkdir(parents=True)
    for path in ("docs.jsonl", "lines.jsonl", "more.jsonl", "web/documents/part-0.jsonl"):
        (root / path).write_text(lines)
    with gzip.open(root / "web/attributes/given/part-0.jsonl.gz", "wt") as out:
        out.writelines(json.dumps({"id": d["id"], "attributes": {"good": [[0, 5, 1.0]]}}) + "\n" for d in documents)
    shutil.copyfile(GOLDEN / "modalities/main_2b.pbin", root / "books.pbin")
    shutil.copyfile(GOLDEN / "modalities/crlf_2b.pbin", root / "news.pbin")
    shutil.copytree(GOLDEN / "nanosets/tok1k", root / "tokenizer")
    (root / "piece.model").write_bytes(b"\x0a\x05")
    for name in ("text_doc", "robotics"):
        shutil.copytree(GOLDEN / "vla" / name, root / name, ignore=shutil.ignore_patterns("expected.json"))
    archive(root / "crawl/a.warc.gz", pages(3))
    (root / "mnt").mkdir()
    (root / "recipe.yaml").write_text("seed: 7\nblend:\n  - {path: lines.jsonl, weight: 1}\n")
    (root / "blend.yaml").write_text("blend: [{path: books.pbin}, {path: news.pbin}]")
    rows = "".join(f"run-{number:03},{3 + number % 7}\n" for number in range(1, 65))
    (root / "losses.csv").write_text(f"run,loss\n{rows}")
    (root / "mix.yaml").write_text(_MIX)
    step = "{verb: dedupe, inputs: [web/documents], outputs: [web/attributes/copies], options: {name: copies}}"
    (root / "pipeline.yaml").write_text(f"steps: [{step}]")
    (root / "pack.yaml").write_text(_PACK)


def _captions(first: int, count: int) -> list[tuple[str, bytes]]:
    image = io.BytesIO()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(image, "JPEG")
    numbers = range(first, first + count)
    return [(f"{n:06d}.{part}", body) for n in numbers for part, body in (("jpg", image.getvalue()), ("txt", b"one"))]


_MIX = """
streams:
  - name: web
    documents: [web/documents/*]
    filter: {include: ["$.id"]}
    output: {path: mixed}
"""
_PACK = """
settings: {src_path: docs.jsonl, dst_path: packed.pbin, jq_pattern: .text, num_cpus: 1,
  eod_token: <eod>, processing_batch_size: 5, raw_samples_queue_size: 10, processed_samples_queue_size: 10}
tokenizer: {component_key: tokenizer, variant_key: pretrained_hf_tokenizer,
  config: {pretrained_model_name_or_path: tokenizer, padding: false, truncation: false}}
"""


def broken(folder: Path, python: str, variables: dict[str, str]) -> list[str]:
    """The cases that end in another way than `CASES` says, run one after another in one process of that Python."""
    data(folder)
    report = folder / "report.json"
    commands = json.dumps([shlex.split(command) for command, _ in CASES])
    program = [python, "-c", _CHILD, str(report)]
    done = subprocess.run(
        program, cwd=folder, env=variables, input=commands, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stdout + done.stderr
    wrong = []
    for (command, wanted), (status, said, crash) in zip(CASES, json.loads(report.read_text()), strict=True):
        named = set(re.findall(r"feedmill\[([a-z,]+)\]", said))
        right = status == 0 if wanted == "" else status == 1 and named == {wanted}
        if crash or not right:
            wrong.append(f"feedmill {command}: expected {wanted or 'a result'}, status {status}\n{said}{crash}")
    return wrong


def test_every_verb_gives_its_result_or_names_the_extra(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    variables = bare_python.environment(tmp_path / "bare")
    assert not (wrong := broken(tmp_path / "work", sys.executable, variables)), "\n".join(wrong)


def test_every_verb_has_a_case() -> None:
    lines = [command.split() for command, _ in CASES]
    assert {" ".join(words[: 1 + (words[0] in GROUPS)]) for words in lines} == set(VERBS)


def test_every_extra_that_an_error_names_is_one() -> None:
    """And each extra is named by an error: nothing that an extra brings is used without a word where it is missing."""
    named = set()
    for path in (ROOT / "src/feedmill").rglob("*.py"):
        text = path.read_text()
        for call in ast.walk(ast.parse(text)) if "MissingExtra(" in text else ():
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "MissingExtra":
                words = [*call.args[1:2], *(word.value for word in call.keywords if word.arg == "extra")]
                named |= {word.value for word in words if isinstance(word, ast.Constant)}
    assert named == set(bare_python.extras())


def test_the_simulated_install_lacks_what_extras_bring_and_nothing_else(tmp_path: Path) -> None:
    variables = bare_python.environment(tmp_path)
    code = """if True:
        import importlib, sys
        import numpy, rich, pydantic, obstore, isal, regex, yaml, typer
        for name in sys.argv[1:]:
            try:
                importlib.import_module(name)
            except ModuleNotFoundError:
                continue
            print(name)
    """
    absent = ["numba", "torch", "PIL", "av", "soundfile", "tokenizers", "sentencepiece", "pyarrow", "jinja2", "mfusepy"]
    program = [sys.executable, "-c", code, *absent]
    done = subprocess.run(program, env=variables, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.slow
def test_a_true_environment_without_extras(tmp_path: Path) -> None:
    """As above, in what ``pip install feedmill`` makes."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv/bin/python")
    install = [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "-c",
        str(ROOT / "constraints.txt"),
        "setuptools>=77",
        str(ROOT),
    ]
    done = subprocess.run(install, capture_output=True, text=True)
    if done.returncode and re.search(
        r"No matching distribution|ConnectionError|NewConnection|Max retries", done.stderr
    ):
        pytest.skip(f"pip reaches no registry here: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    (tmp_path / "work").mkdir()
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    assert not (wrong := broken(tmp_path / "work", python, variables)), "\n".join(wrong)
