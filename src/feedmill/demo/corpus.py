"""Documents available with every Python: the documentation and sources of the standard library.

The same Python gives the same documents in the same order. Sources are parsed as text; nothing is imported or run.

Train a small tokenizer for the demo on its documents: byte-level BPE, because nothing is downloaded.
"""

from __future__ import annotations

import ast
import inspect
import sysconfig
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import orjson

from feedmill.errors import DataError, MissingExtra
from feedmill.formats.documents import write_rows
from feedmill.storage import Store

PER_MODULE = 16
_LEFT_OUT = frozenset({"site-packages", "dist-packages", "test", "tests", "encodings", "lib2to3", "__pycache__"})
_SHORTEST, _CHUNK = 120, 40


@dataclass(frozen=True, slots=True)
class Document:
    """One document: an id like ``json.decoder:JSONDecoder``, a title for display, and its text."""

    id: str
    title: str
    text: str


def standard_library(count: int) -> list[Document]:
    """Return the first `count` documents of the running Python's standard library, or all if it has fewer.

    Raises:
        DataError: this Python has no sources of its standard library.
    """
    root = Path(sysconfig.get_path("stdlib"))
    documents = list(islice(_documents(root), count))
    if not documents:
        raise DataError(
            "this Python has no sources of its standard library",
            file=str(root),
            kind="demo",
            fix="Run the demo with a Python whose library is not stripped or zipped.",
        )
    return documents


def write_docs(store: Store, path: str, documents: Sequence[Document]) -> None:
    """Write documents as JSONL, one object ``{"id", "title", "text"}`` per line."""
    with store.write(path) as file:
        for document in documents:
            file.write(orjson.dumps(asdict(document)) + b"\n")


def write_documents(store: Store, path: str, source: str, documents: Sequence[Document]) -> None:
    """Write documents as Dolma lays them out, one object ``{"id", "source", "text"}`` per line."""
    with write_rows(store, path) as append:
        append(orjson.dumps({"id": d.id, "source": source, "text": d.text}) for d in documents)


def _documents(root: Path) -> Iterator[Document]:
    """Yield at most `PER_MODULE` documents of each module, so that they come from many modules."""
    for path in _sources(root):
        try:
            source = path.read_text(encoding="utf-8")
            tree = ast.parse(source)
        except (OSError, ValueError, SyntaxError):  # the library has a few intentionally invalid files
            continue
        module = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        texts = [*_docstrings(module, tree), *_chunks(module, source)]
        yield from islice((document for document in texts if len(document.text) >= _SHORTEST), PER_MODULE)


def _sources(root: Path) -> list[Path]:
    found = (path for path in root.rglob("*.py") if not _LEFT_OUT.intersection(path.relative_to(root).parts))
    return sorted(found, key=lambda path: path.relative_to(root).as_posix())


def _docstrings(module: str, tree: ast.Module) -> Iterator[Document]:
    """Yield the module's docstring, then those of its classes, functions and methods, in the order of the source."""
    seen: set[str] = set()
    todo: list[tuple[str, ast.AST]] = [("", tree)]
    while todo:
        name, node = todo.pop(0)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text and name not in seen:  # a name can be defined twice, for example for two platforms
                seen.add(name)
                identity = f"{module}:{name}" if name else module
                yield Document(identity, identity.replace(":", "."), inspect.cleandoc(text).strip())
        if isinstance(node, ast.Module | ast.ClassDef):
            children = [child for child in node.body if hasattr(child, "name")]
            todo += [(f"{name}.{child.name}" if name else child.name, child) for child in children]


def _chunks(module: str, source: str) -> Iterator[Document]:
    """Yield the source, one page of lines at a time."""
    lines = source.splitlines()
    for first in range(0, len(lines), _CHUNK):
        text = textwrap.dedent("\n".join(lines[first : first + _CHUNK])).strip("\n")
        last = min(first + _CHUNK, len(lines))
        yield Document(f"{module}@{first + 1}", f"{module}, lines {first + 1} to {last}", text)


EOS = "<|endoftext|>"


def train_tokenizer(store: Store, texts: Iterable[str], vocab_size: int = 4096) -> int:
    """Write ``tokenizer.json`` and ``tokenizer_config.json``, as Hugging Face's tools do. Return the vocabulary size.

    Raises:
        MissingExtra: the package `tokenizers` is not installed.
    """
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError:
        raise MissingExtra("training a tokenizer needs the package tokenizers", "tokenize") from None
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    with store.write("tokenizer.json") as file:
        file.write(tokenizer.to_str().encode())
    with store.write("tokenizer_config.json") as file:
        file.write(orjson.dumps({"eos_token": EOS}))
    return int(tokenizer.get_vocab_size())
