"""Deduplicating and mixing over an object store: the same files as on a local disk."""

from typing import Any

from feedmill.curation.dedupe.job import dedupe
from feedmill.curation.mix.config import read_config
from feedmill.curation.mix.job import mix
from feedmill.storage import open_store
from helpers.document_folders import texts, write_documents
from helpers.kills import contents

OPTIONS: dict[str, Any] = {"by": "paragraphs", "name": "dup", "workers": 1}


def run(root, folder):
    exact = dedupe([f"{root}/documents"], **OPTIONS)
    dedupe([f"{root}/documents/*"], name="seen", keep_empty=True, bloom=f"{folder}/f.bin", items=1000, workers=2)
    stream = {
        "name": "m",
        "documents": [f"{root}/documents/*"],
        "attributes": ["dup", "seen"],
        "output": {"path": f"{root}/mixed", "max_size_in_bytes": 1},
        "filter": {"exclude": ["$.attributes.seen[0]"]},
        "span_replacement": [{"span": "$.attributes.dup", "min_score": 0.5}],
    }
    report = mix(read_config({"streams": [stream]}), workers=1)
    again = mix(read_config({"streams": [stream]}), workers=1)
    assert dedupe([f"{root}/documents"], **OPTIONS).skipped and again.streams[0].finished_before == 2
    return exact.units, report.streams[0].counts.as_dict()


def test_the_same_as_on_a_disk(tmp_path, s3_bucket):
    here, away = tmp_path / "here", f"{s3_bucket}/away"
    write_documents(here, texts(30), texts(20, seed=1))
    store = open_store(away)
    for path in sorted((here / "documents").iterdir()):
        store.write_bytes(f"documents/{path.name}", path.read_bytes())
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert run(str(here), tmp_path / "a") == run(away, tmp_path / "b")
    wanted = contents(here)
    found = {entry.path: store.read(entry.path) for entry in store.files() if "/.feedmill" not in entry.path}
    assert found == wanted and len(wanted) == 8
    assert (tmp_path / "a/f.bin").read_bytes() == (tmp_path / "b/f.bin").read_bytes()
