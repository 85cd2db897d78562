"""Conversations of known shapes are written without rendering, and as rendering writes them."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from feedmill.errors import FeedmillError
from feedmill.tokens.chat.reader import UNKNOWN, ChatReader, ChatSpec, Conversations
from feedmill.tokens.chat.render import Template
from feedmill.tokens.chat.watched import Watch, Word
from helpers.chat_families import FAMILIES

ASKED: dict[str, set[str] | str] = {
    "{{ c }}{{ c | trim }}{{ 'a' ~ c ~ 1 }}{{ 'a' + c + '' }}{{ c.strip() }}{{ c.lstrip('\n') }}": set(),
    "{% if c %}{{ namespace(a=c).a | default('') | string }}{% endif %}{{ c != '' and c is string }}": set(),
    "{% if '<t>' in c %}{{ c.split('<u>')[-1] }}{% endif %}{{ c.startswith('/v') }}": {"<t>", "/v"},
    "{% set x %}{{ c }}!{% endset %}{{ 'q' in x }}{% macro m(y) %}<{{ y }}>{% endmacro %}{{ m(c) == 'r' }}": {"q", "r"},
    "{{ c == 'x' }}{{ 'y' != c }}{{ c in ['z', 'Z'] }}{{ c is equalto 'w' }}{{ c.text }}": {"x", "y", "z", "Z", "w"},
    "{{ c | replace('x', 'y') }}{{ m | selectattr('content', 'equalto', 'z') | list | length }}": {"x", "z"},
    "{{ c | tojson }}{{ {'a': [c]} | tojson }}": "quoted",
    "{{ c.rstrip('!') }}": "edges",
    **dict.fromkeys(
        (
            "{% if c in 'abc' %}{% endif %}", "{{ c | length }}", "{{ c[:3] }}", "{% for x in c %}{{ x }}{% endfor %}",
            "{{ c | upper }}", "{{ c.upper() }}", "{{ {'a': c} }}", "{{ '%s' | format(c) }}", "{{ '%s' % c }}",
            "{{ '%s' % (c,) }}", "{{ 'x{}'.format(c) }}", "{{ c.format(1) }}", "{{ ','.join([c]) }}",
            "{{ [c] | join }}", "{{ [c] | map('upper') | join }}", "{{ c | safe }}", "{{ ('<b>' | safe) + c }}",
            "{% autoescape true %}{{ c }}{% endautoescape %}", "{% if {c: 1} %}{% endif %}", "{{ c is in 'abc' }}",
            "{% if c > 'a' %}{% endif %}", "{{ '' in c }}", "{% filter upper %}{{ c }}{% endfilter %}",
            "{{ c == m[0].content }}", "{{ [1] | random }}", "{{ c.split() }}", "{{ c.find('x') }}", "{{ c * 2 }}",
            "{{ c.startswith('x', 1) }}", "{{ c | e }}", "{{ c.strip(c) }}",
        ),
        "blind",
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", ASKED)
def test_what_a_template_asks_of_words_is_noted(text: str) -> None:
    watch, wanted = Watch(), ASKED[text]
    given: dict[str, Any] = {"c": "probe0", "m": [{"content": "probe1"}]}
    words = {"c": Word("probe0", watch), "m": [{"content": Word("probe1", watch)}]}
    assert Template(text, watched=True).watch(watch, **words).text == Template(text).render(**given).text
    assert watch.blind == (wanted == "blind")
    if not watch.blind:
        assert watch.needles == (wanted if isinstance(wanted, set) else set())
        assert (watch.quoted, bool(watch.edges)) == (wanted == "quoted", wanted == "edges")


WORDS = ("alpha", "Ä 🙂", "{{ 7 }}", "a\n\nb", "beta", "ok", " lead", "<b>", '"q"', "back\\slash", "assistant", "k>",
         "</thi", "</think>", "<|im_end|>", "think", "!", "<tool_response>")  # fmt: skip


@pytest.mark.parametrize("count", [6, pytest.param(400, marks=pytest.mark.slow)])
def test_what_is_written_is_what_is_rendered(count: int) -> None:
    """Few shapes and many words; words that templates look for, also in part."""
    wrote = asked = 0
    for name, family in list(FAMILIES.items())[:: 1 if count > 100 else 4]:
        special = (("bos_token", "<s>"), ("eos_token", "<eos>"))
        stops = (family.stop,) if isinstance(family.stop, str) else tuple(family.stop)
        spec = ChatSpec("messages", family.template, None, special, "turns", "2026-01-31", stops=stops)
        rendering, writing, random = Conversations(spec), Conversations(spec), Random(name)
        for number in range(count):
            row = conversation(random, family.has, number // 6 % 3)
            found = writing.written(row)
            if found is None or found is UNKNOWN:
                writing.record(row)
                asked += 1
            else:
                assert found == rendering.record(row), (name, row)
                wrote += 1
    assert wrote > asked / 3, (wrote, asked)


def conversation(random: Random, has: str, turns: int) -> bytes:
    def words() -> str:
        return " ".join(random.choices(WORDS[:6] if random.random() < 0.8 else WORDS, k=random.randint(1, 3)))

    thinks = "thinking" in has and turns == 2
    found = []
    for _ in range(turns + 1):
        found.append({"role": "user", "content": words()})
        thought = {"reasoning_content": words()} if thinks else {}
        found.append({"role": "assistant", "content": words(), **thought})
    return json.dumps({"messages": found, "id": random.randint(0, 9)}).encode()


PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<|im_end|>\n{% endfor %}"


def rows(count: int) -> list[bytes]:
    turns = ({"role": "user", "content": "q {}"}, {"role": "assistant", "content": "a {}"})
    return [
        json.dumps({"messages": [{**turn, "content": turn["content"].format(n)} for turn in turns]}).encode()
        for n in range(count)
    ]


def test_few_conversations_of_a_shape_are_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    chats = ChatReader(ChatSpec("messages", PLAIN, None, (), "turns", stops=("<|im_end|>",)))
    rendered: list[Any] = []
    original = chats._sandbox.map
    monkeypatch.setattr(chats._sandbox, "map", lambda items: original(rendered.extend(items) or items))
    found = list(chats.records([*rows(100), b'{"messages": 3}', *rows(20)]))
    chats.close()
    assert len(rendered) == 2 + 5 + 1  # to know the shape; to verify it, at powers of two; and what is invalid
    assert [record.text is None for record in found] == [False] * 100 + [True] + [False] * 20
    assert found[9].text == "<user>q 9<|im_end|>\n<assistant>a 9<|im_end|>\n"


def test_roles_of_their_own_are_written_too() -> None:
    chats = Conversations(ChatSpec("messages", PLAIN, None, (), "turns", stops=("<|im_end|>",)))
    *first, row = (row.replace(b'"user"', b'"narrator"') for row in rows(3))
    assert all(chats.record(one).text for one in first)
    assert chats.written(row) == chats.record(row)


def test_a_shape_that_is_wrong_is_an_error() -> None:
    chats = Conversations(ChatSpec("messages", PLAIN, None, (), "turns", stops=("<|im_end|>",)))
    first, second, third = rows(3)
    for row in (first, second):
        assert chats.record(row).text
    (skeleton,) = chats._shapes.values()
    assert skeleton is not None and skeleton.allowed is not None
    skeleton.pieces = ("<User>", *skeleton.pieces[1:])
    with pytest.raises(FeedmillError, match=r"in another way than one of the same shape: '<user>q 2.*not '<User>q 2"):
        chats.record(third)
    assert isinstance(chats.rendered(third), FeedmillError)


def test_rows_of_another_form_are_refused_when_shapes_are_known() -> None:
    chats = Conversations(ChatSpec("sharegpt", PLAIN, None, (), "turns", stops=("<|im_end|>",)))
    turns = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]
    for _ in range(2):
        assert chats.record({"conversations": turns}).text
    written = chats.written(json.dumps({"conversations": turns}).encode())
    assert written == chats.record({"conversations": turns})
    for wrong in (rows(1)[0], b'{"conversations": [{"from": [], "value": 1}]}', b"[", b"\xff", b'"x"', b"{}"):
        assert chats.written(wrong) is None
    empty = Conversations(ChatSpec("messages", "{% for m in messages %}{% endfor %}", None, (), "none"))
    assert [empty.record(row).reason for row in rows(2)] == ["the text is empty"] * 2
    assert empty.written(rows(1)[0]) is None


def test_the_order_of_keys_is_that_of_the_row() -> None:
    """A template that lists the keys of a message is not taken to write those of others in the same order."""
    text = "{% for m in messages %}{% for key in m %}<{{ key }}>{{ m[key] }}{% endfor %}<|im_end|>{% endfor %}"
    chats = Conversations(ChatSpec("messages", text, None, (), "none", stops=("<|im_end|>",)))
    for row in (*rows(4), b'{"messages": [{"content": "q", "role": "user"}, {"content": "a", "role": "assistant"}]}'):
        assert chats.written(row) in (None, UNKNOWN)
        first = json.loads(row)["messages"][0]
        assert (chats.record(row).text or "").startswith("".join(f"<{key}>{value}" for key, value in first.items()))
