import gzip
from pathlib import Path

import numpy as np
import pytest

from feedmill.errors import ConfigError, DataError
from feedmill.formats.bloom import hashes, new_bloom, read_bloom, write_bloom
from feedmill.storage import LocalStore

GOLDEN = Path(__file__).parent.parent / "golden/dolma/bloom"


@pytest.mark.parametrize("name", ["empty", "after_para", "after_docs", "after_ngram"])
def test_round_trip_is_byte_exact(tmp_path, name):
    store = LocalStore(tmp_path)
    original = gzip.decompress((GOLDEN / f"{name}.bin.gz").read_bytes())
    store.write_bytes("a.bin", original)
    bloom = read_bloom(store, "a.bin")
    write_bloom(store, "b.bin", bloom)
    assert store.read("b.bin") == original
    assert (bloom.fill > 0) == (name != "empty")


@pytest.mark.parametrize("damage", ["short", "long", "magic", "head", "empty", "words"])
def test_damage_is_named(tmp_path, damage):
    store = LocalStore(tmp_path)
    data = gzip.decompress((GOLDEN / "empty.bin.gz").read_bytes())
    broken = {
        "short": data[:-4],
        "long": data + b"\0",
        "magic": b"\0" + data[1:],
        "head": data[:20],
        "empty": b"",
        "words": data[: 12 + 32 * data[8]] + bytes(8),
    }
    store.write_bytes("a.bin", broken[damage])
    with pytest.raises(DataError, match=r"a\.bin.*Bloom filter") as caught:
        read_bloom(store, "a.bin")
    assert caught.value.kind == "bad-data"


def test_sizes():
    assert hashes(1 << 20, 1000, None) == 5815  # Dolma's number
    assert len(new_bloom(items=1000, false_positives=1e-6).seeds) == 24
    assert len(new_bloom(items=100_000, false_positives=1e-6, most=None).seeds) == 59
    assert len(new_bloom(size=16384, items=4500).words) == 4096
    big = new_bloom(items=10_000_000, false_positives=1e-6)
    assert 4 * len(big.words) == 64 << 20
    again, other = new_bloom(size=64, items=9, seed=0), new_bloom(size=64, items=9)
    assert (again.seeds == new_bloom(size=64, items=9, seed=0).seeds).all()
    assert not np.array_equal(again.seeds, other.seeds)


@pytest.mark.parametrize("sizes", [{"size": 100}, {"items": 5}, {"items": 5, "false_positives": 2.0}])
def test_impossible_sizes(sizes):
    with pytest.raises(ConfigError) as caught:
        new_bloom(**sizes)
    assert caught.value.kind == "bad-option"
