"""Token data of different tokenizers is not mixed by accident."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from feedmill.errors import ConfigError
from feedmill.formats.tokens.ds import write_ds
from feedmill.formats.tokens.manifest import TokenizerFacts, TokenManifest, write_manifest
from feedmill.formats.tokens.megatron import write_megatron
from feedmill.planning.recipes.recipe import Recipe
from feedmill.planning.tokens import Identity, identities
from feedmill.samples.open import open as open_dataset
from feedmill.storage import LocalStore
from helpers.nanoset_golden import documents


def put(root: Path, name: str, tokenizer: str | None, hash: str | None = None) -> None:
    """Tokens that say who made them: in metadata, in a manifest, or not at all."""
    store = LocalStore(root)
    facts = None if hash is None else TokenizerFacts(name=tokenizer or "", hash=hash, vocab_size=100)
    if name.endswith(".ds"):
        write_manifest(store, name, TokenManifest(format="ds", documents=2, tokens=5, tokenizer=facts))
        with write_ds(store, name, 2, tokenizer_name=tokenizer, metadata=tokenizer is not None) as writer:
            writer.add(*documents([2, 3]))
        return
    write_manifest(store, name, TokenManifest(format="megatron", documents=2, tokens=5, tokenizer=facts))
    with write_megatron(store, name.removesuffix(".idx"), "u2") as writer:
        writer.add(*documents([2, 3]))


def plan(root: Path, *paths: str, **options: Any) -> Any:
    return Recipe.parse({"blend": [{"path": path} for path in paths], **options}, base=root).plan()


@pytest.mark.parametrize(
    ("first", "second", "differ"),
    [
        (("gpt2", "aa"), ("gpt2", "bb"), True),
        (("gpt2", "aa"), ("other", "aa"), False),
        (("gpt2", ""), ("llama", "aa"), True),
        (("gpt2", ""), ("gpt2", "aa"), False),
        (("tok1k/tokenizer.json", ""), ("/data/tok1k", ""), False),
        (("./tok1k/", ""), ("tok1k", ""), False),
        (("a/tok", ""), ("b/tok", ""), True),
        (("tokenizer.json", ""), ("tokenizer.json", ""), False),
        (("meta-llama/Llama-3", ""), ("/models/meta-llama/Llama-3/tokenizer.json", ""), False),
    ],
)
def test_what_is_known_to_differ(first: tuple[str, str], second: tuple[str, str], differ: bool) -> None:
    assert Identity(*first, "f").differs(Identity(*second, "g")) is differ
    assert Identity(*second, "g").differs(Identity(*first, "f")) is differ


def test_different_names_are_refused(tmp_path: Path) -> None:
    put(tmp_path, "a/0.ds", "gpt2")
    put(tmp_path, "b/0.ds", "llama")
    put(tmp_path, "c/0.ds", None, None)
    recipe = "seed: 1\nblend:\n- path: a\n- path: b\n"
    with pytest.raises(ConfigError) as caught:
        Recipe.parse(recipe, base=tmp_path).plan()
    said = str(caught.value)
    assert said.startswith("recipe:4: the source 'a' was tokenized with 'gpt2' and 'b' with 'llama'")
    assert "mixed_tokenizers: true" in said and caught.value.kind == "mixed-tokenizers"
    assert len(plan(tmp_path, "a", "b", mixed_tokenizers=True).sources) == 2
    assert len(plan(tmp_path, "a", "c", "a").sources) == 3  # what is not known is not refused


def test_hashes_decide_where_both_have_one(tmp_path: Path) -> None:
    put(tmp_path, "a/0.ds", "one", "aaaaaaaaaaaa")
    put(tmp_path, "b/0.ds", "two", "aaaaaaaaaaaa")
    put(tmp_path, "c/x.idx", "one", "bbbbbbbbbbbb")
    assert len(plan(tmp_path, "a", "b").sources) == 2
    with pytest.raises(ConfigError, match=r"'a' .* 'one' \(hash aaaaaaaa\) and 'x' with 'one' \(hash bbbbbbbb\)"):
        plan(tmp_path, "a", "c/x.bin")


def test_one_folder_may_be_of_two_tokenizers(tmp_path: Path) -> None:
    put(tmp_path, "a/0.ds", "one")
    put(tmp_path, "a/1.ds", "two")
    assert [identity.name for identity in identities(open_dataset(tmp_path / "a"))] == ["one", "two"]
    with pytest.raises(ConfigError, match="'a' was tokenized with 'one' and 'a' with 'two'"):
        Recipe.parse({"source": "a"}, base=tmp_path).plan()


def test_what_has_no_tokens_has_no_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"text": "a"}\n')
    assert identities(open_dataset(tmp_path / "x.jsonl")) == []


def test_files_of_one_tokenizer_are_not_compared_with_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{number}.ds" for number in range(6)]
    for name in names:
        put(tmp_path, name, "gpt2")
    put(tmp_path, "other.ds", "llama")
    asked = []
    differs = Identity.differs
    monkeypatch.setattr(Identity, "differs", lambda one, other: asked.append(other) or differs(one, other))
    assert plan(tmp_path, *names).length is None and not asked
    with pytest.raises(ConfigError, match="'0' was tokenized with 'gpt2' and 'other' with 'llama'"):
        plan(tmp_path, *names, "other.ds")
    assert len(asked) == 1
