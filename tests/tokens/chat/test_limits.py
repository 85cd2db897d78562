"""Templates come from elsewhere: none takes all time or memory, and legal long conversations work."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import feedmill as fm
from feedmill.errors import ConfigError, DataError
from feedmill.jobs import sandbox
from feedmill.jobs.sandbox import Sandbox
from feedmill.tokens.chat import reader, render
from feedmill.tokens.chat.reader import ChatReader, ChatSpec
from helpers.durations import slow_but

TOKENIZER = Path(__file__).parents[2] / "golden" / "nanosets" / "tok1k"
TURNS = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|>\n{% endfor %}"
LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
SLOW = {
    "loops": LOOP,
    "macros": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "one power": "{% set n = messages | length %}{{ (9 ** (9 ** (n + 7))) % 2 }}",
    "a power of constants": "{{ (9 ** (9 ** 9)) % 2 }}",
    "caller": "{% macro m() %}{% for a in range(99999) %}{{ caller() }}{% endfor %}{% endmacro %}"
    "{% call m() %}{% for a in range(99999) %}{% endfor %}{% endcall %}",
    "only later": "{% if messages | length > 3 %}" + LOOP + "{% endif %}" + PLAIN,
}
LARGE = {
    "doubling": "{% set s = namespace(t='aaaaaaaa') %}{% for i in range(60) %}{% set s.t = s.t ~ s.t %}{% endfor %}",
    "times": "{% set n = messages | length %}{{ ('a' * (n * 5000000000)) | length }}",
    "times of constants": "{{ ('a' * 10000000000) | length }}",
    "center": "{{ messages[0].content.center(9999999999) | length }}",
    "format": "{{ '%9999999999d' % 3 }}",
    "new format": "{{ '{:>9999999999}'.format('a') }}",
    "filter": "{{ 'a' | center(9999999999) }}",
    "indent": "{{ messages | tojson(indent=9999999999) }}",
    "list": "{% set s = namespace(t=[1]) %}{% for i in range(60) %}{% set s.t = s.t + s.t %}{% endfor %}",
    "text": "{% for a in range(99999) %}{{ 'aaaaaaaaaa' * 1000 }}{% endfor %}",
}


@pytest.fixture(autouse=True)
def _bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "SECONDS", 0.25)
    monkeypatch.setattr(sandbox, "_PATIENCE", 1000)  # the machine may be busy
    monkeypatch.setattr(reader, "MEMORY", 200 << 20)
    monkeypatch.setattr(render, "MOST", 1 << 20)


def spec(template: str, rule: str = "turns") -> ChatSpec:
    return ChatSpec("messages", template, None, (), rule, stops=("<|im_end|>",))


def rows(*counts: int) -> list[dict[str, Any]]:
    return [{"messages": TURNS * count} for count in counts]


@pytest.mark.parametrize("name", SLOW)
def test_a_template_that_does_not_end_is_an_invalid_document(name: str) -> None:
    chats = ChatReader(spec(SLOW[name]))
    first, second = chats.records(rows(2, 1))
    assert first.reason == "the chat template took longer than 0.25 s of processor time for it"
    assert (second.text is not None) == (name == "only later")
    chats.close()


@pytest.mark.parametrize("name", LARGE)
def test_a_template_that_takes_all_memory_is_an_invalid_document(name: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    chats = ChatReader(spec(LARGE[name], "none"))
    (found,) = chats.records(rows(1))
    chats.close()
    assert found.text is None
    wanted = (
        "needs more than 200 MiB of memory",
        "MemoryError",
        "OverflowError",
        "ValueError",
        "longer than 1,048,576",
    )
    assert any(word in found.reason for word in (*wanted, "took longer")), found.reason
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + (100 << 10)


def test_the_verb_names_the_document_and_skips_it(tmp_path: Path) -> None:
    """The limits of the defaults hold in workers; here they are those of a program that sets its own."""
    folder = tmp_path / "tok"
    shutil.copytree(TOKENIZER, folder)
    (folder / "chat_template.jinja").write_text(SLOW["only later"])
    source = tmp_path / "c.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows(1, 2, 1)))
    how: dict[str, Any] = {"tokenizer": folder, "chat": "messages", "workers": 1, "progress": False}
    before = _children()  # of other tests of this process, which may take a while to end
    with pytest.raises(DataError, match=r"line 2.*took longer than 0.25 s of processor time") as error:
        fm.tokenize(source, tmp_path / "a", **how)
    assert error.value.kind == "bad-document"
    report = fm.tokenize(source, tmp_path / "a", on_error="skip", **how)
    assert (report.documents, report.skipped, report.skipped_examples[0].line) == (2, 1, 2)
    assert not _children() - before


@pytest.mark.parametrize("kind", slow_but(["jsonl", "parquet"], "jsonl"))
def test_a_run_does_not_wait_for_each_conversation(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "tok"
    shutil.copytree(TOKENIZER, folder)
    (folder / "chat_template.jinja").write_text(LOOP)
    source = tmp_path / f"c.{kind}"
    if kind == "parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pytest.importorskip("pyarrow").Table.from_pylist(rows(*[1] * 50)), source)
    else:
        source.write_text("\n" + "".join(json.dumps(row) + "\n\n" for row in rows(*[1] * 50)))
    tried: list[int] = []
    original = Sandbox._wait
    monkeypatch.setattr(Sandbox, "_wait", lambda self, *who: tried.append(1) or original(self, *who))
    how: dict[str, Any] = {"tokenizer": folder, "chat": "messages", "workers": 1, "progress": False}
    with pytest.raises(DataError, match=r"(line 2|row 1)'.*took longer than 0.25 s"):
        fm.tokenize(source, tmp_path / "a", **how)
    assert len(tried) <= 3  # one to compile it
    with pytest.raises(ConfigError, match=r"took longer than 0.25 s of processor time for 3 conversations in a row"):
        fm.tokenize(source, tmp_path / "a", on_error="skip", **how)
    assert len(tried) <= 8


def test_invalid_rows_do_not_move_the_others(tmp_path: Path) -> None:
    folder = tmp_path / "tok"
    shutil.copytree(TOKENIZER, folder)
    (folder / "chat_template.jinja").write_text(PLAIN)
    source = tmp_path / "c.jsonl"
    good, bad = json.dumps(rows(1)[0]), '{"messages": 3}'
    source.write_text("\n".join(["", bad, good, "", bad, bad, good, good, "", bad, ""]))
    how: dict[str, Any] = {"tokenizer": folder, "chat": "messages", "workers": 1, "progress": False}
    report = fm.tokenize(source, tmp_path / "a", on_error="skip", **how)
    assert (report.documents, report.skipped, report.blank) == (3, 4, 3)
    assert [one.line for one in report.skipped_examples] == [2, 5, 6, 10]
    lineage = [fm.open(tmp_path / "a.pbin")[number]["input_ids"].tolist() for number in range(3)]
    assert lineage[0] == lineage[1] == lineage[2]


def _children() -> set[tuple[str, str]]:
    """Return number and command line of each process that this one has started."""
    found = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{name}/stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if fields[1] == str(os.getpid()) and fields[0] != "Z":
            found.add((name, Path(f"/proc/{name}/cmdline").read_text(errors="replace")))
    ours = ("resource_tracker", "forkserver", "zygote")
    return {(number, line) for number, line in found if not any(name in line for name in ours)}


def test_templates_that_cannot_be_compiled(tmp_path: Path) -> None:
    folder = tmp_path / "tok"
    shutil.copytree(TOKENIZER, folder)
    source = tmp_path / "c.jsonl"
    source.write_text(json.dumps(rows(1)[0]))
    for text, message in {
        "{{ " + "9" * 5000 + " }}": "cannot be compiled",
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}": "nested too deeply|cannot be compiled",
        "{{ x | no_such_filter }}": "syntax error in line 1.*No filter named 'no_such_filter'",
        SLOW["a power of constants"]: "cannot be compiled: it took longer than 0.25 s",
    }.items():
        (folder / "chat_template.jinja").write_text(text)
        with pytest.raises(ConfigError, match=message) as error:
            fm.tokenize(source, tmp_path / "a", tokenizer=folder, chat="messages", workers=1)
        assert error.value.kind == "bad-template"


def test_long_conversations_are_legal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "SECONDS", 60.0)
    chats = ChatReader(spec(PLAIN))
    (found,) = chats.records(rows(200))
    chats.close()
    assert found.text is not None and len(found.fields[0]) == 200


def test_a_reader_works_on_after_the_thread_that_used_it_first() -> None:
    """The child of a sandbox ends with the thread that started it."""
    chats = ChatReader(spec(PLAIN))
    for _ in range(3):
        texts: list[str | None] = []
        thread = threading.Thread(target=lambda out=texts: out.extend(r.text for r in chats.records(rows(1, 2))))
        thread.start()
        thread.join()
        assert texts == ["user: q<|im_end|>\nassistant: a<|im_end|>\n" * count for count in (1, 2)]
    chats.close()


def test_a_worker_has_the_limits_too(tmp_path: Path) -> None:
    """With two processes, and a program that is killed if the memory of any of them grows."""
    folder = tmp_path / "tok"
    shutil.copytree(TOKENIZER, folder)
    (folder / "chat_template.jinja").write_text(LARGE["center"] + PLAIN)
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(*[1] * 400)))
    program = """
import resource, feedmill as fm
resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
if __name__ == "__main__":
    try:
        fm.tokenize("c.jsonl", "a", tokenizer="tok", chat="messages", workers=2, unit_bytes=2000, progress=False)
    except fm.errors.DataError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "line 1" in done.stdout and "more than 1,024 MiB of memory" in done.stdout, done.stderr
