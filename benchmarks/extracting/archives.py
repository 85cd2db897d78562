"""Create web archives: WARC files of pages that are built as real ones are, in several languages and charsets.

A page has a head with styles and scripts, menus, a sidebar, an article, comments, lists of related links and a footer.
Its size is log-normal with a median of about 45 kB, of which the article is a tenth, as in crawls of the web.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import random
from collections.abc import Iterator
from pathlib import Path

from benchmarks.lib import corpus

WORDS = {
    "en": "the of and to in that was his with for had which not at on him this are but from they were their one "
    "all she have there been who would when more some into could time only new year people should over "
    "work water between government market river morning history development language before important "
    "children public small country",
    "de": "der die und in den von zu das mit sich des auf für ist im dem nicht ein eine als auch es an werden "
    "aus er hat dass sie nach wird bei einer um am sind noch wie einem über zwischen Straße größer Jahre "
    "können müssen Universität Geschichte Entwicklung Bürger natürlich während schließlich Wasser Sprache",
    "fr": "le de un être et à il avoir ne je son que se qui ce dans en du elle au pour pas vous par sur faire "
    "plus dire me on mon lui nous comme mais pouvoir avec tout y aller voir bien où sans tu ou leur homme "
    "après très créé même année français école forêt développement première société",
    "ru": "и в не на я быть он с что а по это она этот к но они мы весь который из у свой вы за для от мочь год "
    "человек один такой тот если время когда город вода работа история развитие между правительство "
    "большой новый первый",
    "ja": "日本 東京 世界 今日 時間 学校 会社 新しい 大きい 言葉 "
    "歴史 研究 です ます した こと これ それ ため から "
    "まで という について による 行う 考える 思う 人間 社会 文化 技術 "
    "発展 大学 経済 環境",
}
CHARSETS = {"en": "utf-8", "de": "iso-8859-1", "fr": "windows-1252", "ru": "windows-1251", "ja": "shift_jis"}
_ENDS = {"ja": "。"}


def archives(files: int, pages: int) -> Path:
    """Return a folder of `files` archives ``web-N.warc.gz`` with `pages` pages each, every record its own gzip member.

    Two of five pages are in UTF-8, the others in the charset of their language. ``corpus.json`` has the numbers.
    """
    path = corpus.folder() / f"archives_{files}x{pages}"
    if (path / "corpus.json").exists():
        return path
    path.mkdir(parents=True, exist_ok=True)
    size = 0
    for number in range(files):
        dice = random.Random(number)
        with open(path / f"web-{number:03d}.warc.gz", "wb") as out:
            out.write(gzip.compress(_record("warcinfo", None, b"software: benchmark\r\n"), 6))
            for k in range(pages):
                url, charset, html = page(dice, f"{number}-{k}")
                size += len(html)
                http = f"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset={charset}\r\n"
                http += f"Date: Mon, {1 + k % 28:02d} Sep 2025 10:00:00 GMT\r\nContent-Length: {len(html)}\r\n\r\n"
                out.write(gzip.compress(_record("request", url, b"GET / HTTP/1.1\r\n\r\n"), 6))
                out.write(gzip.compress(_record("response", url, http.encode() + html, html), 6))
    (path / "corpus.json").write_text(json.dumps({"files": files, "pages": files * pages, "html_bytes": size}))
    return path


def page(dice: random.Random, name: str) -> tuple[str, str, bytes]:
    """Return the URL, the charset and the bytes of a page."""
    language = dice.choice(list(WORDS))
    charset = dice.choice(["utf-8", "utf-8", CHARSETS[language], CHARSETS[language], CHARSETS[language]])
    words = WORDS[language].split()

    def text(low: int, high: int) -> str:
        return " ".join(_sentence(dice, words, language) for _ in range(dice.randint(low, high)))

    def links(count: int, kind: str) -> str:
        items = (
            f'<li class="{kind}-item level-{dice.randint(1, 3)}"><a href="/{kind}/{dice.randrange(10**6)}" '
            f'title="{dice.choice(words)}" data-id="{dice.randrange(10**9)}">'
            f"{' '.join(dice.choices(words, k=3))}</a></li>"
            for _ in range(count)
        )
        return f'<ul class="{kind}">\n' + "\n".join(items) + "\n</ul>"

    scale = dice.lognormvariate(0, 0.6)
    title = " ".join(dice.choices(words, k=6)).capitalize()
    blocks = list[str]()
    for _ in range(max(2, int(10 * scale))):
        blocks.append(f'<p class="text">{text(2, 6)} <a href="/see/{dice.randrange(999)}">{dice.choice(words)}</a> <b>'
                      f"{dice.choice(words)}</b> {text(1, 2)}</p>")  # fmt: skip
        if dice.random() < 0.25:
            blocks.append(f"<h2>{' '.join(dice.choices(words, k=4))}</h2>")
        if dice.random() < 0.15:
            blocks.append("<ul>" + "".join(f"<li>{text(1, 1)}</li>" for _ in range(4)) + "</ul>")
        if dice.random() < 0.08:
            rows = "".join(f"<tr><td>{dice.choice(words)}</td><td>{dice.randrange(999)}</td></tr>" for _ in range(6))
            blocks.append(f"<table>{rows}</table>")
        if dice.random() < 0.2:
            blocks.append(f'<figure><img src="/i/{dice.randrange(999)}.jpg" alt="{dice.choice(words)}"><figcaption>'
                          f"{text(1, 1)}</figcaption></figure>")  # fmt: skip
    comments = "".join(
        f'<div class="comment" id="c{k}"><span class="author">{dice.choice(words)}</span><p>{text(1, 2)}</p></div>'
        for k in range(int(6 * scale))
    )
    script = ";".join(
        f'window.d{k}={{"id":{dice.randrange(10**9)},"k":"{dice.randbytes(12).hex()}"}}'
        for k in range(int(160 * scale))
    )
    style = "\n".join(
        f".c{k}{{margin:{dice.randrange(40)}px;color:#{dice.randrange(1 << 24):06x}}}" for k in range(int(140 * scale))
    )
    html = f"""<!DOCTYPE html>
<html lang="{language}"><head><meta charset="{charset}"><title>{title}</title>
<meta name="description" content="{text(1, 1)}"><link rel="stylesheet" href="/s.css"><style>{style}</style>
<script>{script}</script></head>
<body class="single post"><div id="page">
<header class="site-header"><nav>{links(int(40 * scale) + 5, "menu")}</nav></header>
<div class="content-area"><main><article class="post"><h1 class="entry-title">{title}</h1>
<div class="entry-content">{chr(10).join(blocks)}</div></article>
<section id="comments">{comments}</section></main>
<aside class="sidebar">{links(int(30 * scale) + 3, "related")}
<form><input name="q"><button>Go</button></form></aside></div>
<footer class="site-footer">{links(int(20 * scale) + 2, "footer")}<p>&copy; 2025</p></footer></div>
<script>{script[: len(script) // 3]}</script></body></html>
"""
    url = f"https://www.site{dice.randrange(500)}.example/{language}/{name}?b=2&a=1"
    return url, charset, html.encode(charset, "xmlcharrefreplace")


def _sentence(dice: random.Random, words: list[str], language: str) -> str:
    chosen = dice.choices(words, k=dice.randint(6, 18))
    return ("" if language == "ja" else " ").join(chosen).capitalize() + _ENDS.get(language, ".")


def _record(kind: str, url: str | None, block: bytes, payload: bytes = b"") -> bytes:
    digest = base64.b32encode(hashlib.sha1(payload).digest()).decode()
    named = hashlib.sha1(block).hexdigest()
    head = {
        "WARC-Type": kind,
        "WARC-Record-ID": f"<urn:uuid:{named[:8]}-{named[8:12]}-{named[12:16]}-{named[16:20]}-{named[20:32]}>",
        "WARC-Date": "2025-09-01T10:00:00Z",
        **({"WARC-Target-URI": url} if url else {}),
        **({"WARC-Payload-Digest": f"sha1:{digest}"} if payload else {}),
        "Content-Type": "application/http; msgtype=" + kind if url else "application/warc-fields",
        "Content-Length": str(len(block)),
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    return f"WARC/1.0\r\n{lines}\r\n".encode() + block + b"\r\n\r\n"


def read_pages(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the URL and the HTML of each page of an archive, by Python's own gzip."""
    data = gzip.decompress(path.read_bytes())
    at = 0
    while at < len(data):
        end = data.index(b"\r\n\r\n", at) + 4
        head = dict(line.split(": ", 1) for line in data[at:end].decode().strip().splitlines()[1:])
        block = data[end : end + int(head["Content-Length"])]
        if head["WARC-Type"] == "response":
            yield head["WARC-Target-URI"], block.split(b"\r\n\r\n", 1)[1]
        at = end + len(block) + 4
