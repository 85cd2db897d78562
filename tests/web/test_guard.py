"""Who may read: the token, the name of the server, the origin; and data that would like to be markup."""

from __future__ import annotations

import contextlib
import io
import json
import re
import socket
from pathlib import Path

import pytest

from feedmill.errors import ConfigError, NotFound, StorageError
from feedmill.web.invisible import cut, marked
from feedmill.web.serve import serve
from helpers.tars import write_tar
from helpers.web_server import Site, serving

BAD = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{7*7}}\u202egpj.exe\u200b\x00\x1b[31m"


HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\u200b-\u200f\u202a-\u202e]")


def test_a_token_is_asked_for_and_kept_in_a_cookie(root: Path) -> None:
    with serving(root / "pages", token="secret") as site:
        assert site.get("/").status == 403 and "token" in site.get("/").text
        assert site.get("/pages/samples.json").status == site.get("/pages/image?at=0&part=png").status == 403
        assert site.get("/?token=wrong").status == site.get("/", Cookie=f"feedmill-{site.port}=x").status == 403
        answer = site.get("/pages/samples?token=secret&at=3")
        assert (answer.status, answer.headers["location"]) == (303, "/pages/samples?at=3")
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=strict" in cookie
        assert site.get("/pages/samples", Cookie=cookie.partition(";")[0]).status == 200
        assert site.get("/static/base.css").status == 200


def test_browsers_keep_what_pages_load_and_nothing_else(site: Site) -> None:
    """Before a page is drawn, only its styles are asked for, once for all pages."""
    for page in ("/", "/pages/samples", "/corpus/filters"):
        answer = site.get(page)
        head = answer.text.partition("</head>")[0]
        assert answer.headers["cache-control"] == "no-store"
        assert re.findall(r'<link rel="stylesheet" href="([^"?]+)', head) == ["/static/page.css"]
        assert not re.findall(r"<script(?![^>]* defer>)", head)
        for address in re.findall(r'(?:href|src)="(/static/[^"]+)"', head):
            kept = site.get(address)
            assert kept.status == 200 and "immutable" in kept.headers["cache-control"], address
            assert site.get(address.partition("?")[0]).headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("path", ["//evil.example/", "///evil.example/x", "/%5Cevil.example/", "//%5C/evil.example"])
def test_the_redirect_after_a_token_stays_here(path: str, root: Path) -> None:
    with serving(root / "pages", token="secret") as site:
        answer = site.get(f"{path}?token=secret")
        assert answer.status == 303
        to = answer.headers["location"]
        assert to.startswith("/") and to[1:2] not in ("/", "\\") and "evil.example" in to


@pytest.mark.parametrize("length", ["1,1", "x", "-1", "\u00b2", "1 1", "9" * 30, "0x10"])
def test_a_wrong_length_of_a_request_is_the_senders(length: str, site: Site) -> None:
    headers = {"Origin": f"http://{site.host}", "Content-Length": length}
    for path in ("/mix.yaml/loss", "/mix.yaml/copy"):
        # Python's client does not send each, and may lose the answer: uvicorn closes without reading the body.
        with contextlib.suppress(ValueError, UnicodeError, ConnectionResetError):
            assert site.get(path, "POST", b"x", **headers).status in (400, 413)
    assert site.get("/").status == 200


@pytest.mark.parametrize("log", [b"log=x", b"log=step,loss%0A1", b"log=%FF%00", b"log={", b"x=1"])
def test_a_malformed_log_is_the_senders(log: bytes, site: Site) -> None:
    form = {"Origin": f"http://{site.host}", "Content-Type": "application/x-www-form-urlencoded"}
    assert site.get("/mix.yaml/loss", "POST", log, **form).status == 400


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", "localhost.evil.example", ""])
def test_other_names_of_the_server_are_not_answered(host: str, site: Site) -> None:
    answer = site.get("/", Host=host)
    assert answer.status == 403 and "pages" not in answer.text


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "file://"])
def test_other_origins_are_not_answered(origin: str, site: Site) -> None:
    assert site.get("/pages/samples.json", Origin=origin).status == 403
    assert site.get("/mix.yaml/loss", "POST", b"log=1", Origin=origin).status == 403
    assert site.get("/", Origin=f"http://{site.host}").status == 200


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "POST", "OPTIONS"])
def test_nothing_can_be_written(method: str, site: Site) -> None:
    assert site.get("/pages/samples", method, b"x", Origin=f"http://{site.host}").status in (404, 405)
    assert site.get("/pages/samples", method, b"x").status == 403


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/..%2fapp.py",
        "/static/%2e%2e/app.py",
        "/static//etc/passwd",
        "/pages/part?at=0&part=../../x",
        "/pages/../../etc/passwd",
        "/..%2f..%2fetc/passwd/samples",
        "/static/",
    ],
)
def test_no_path_leads_out(path: str, site: Site) -> None:
    answer = site.get(path)
    assert answer.status in (403, 404) and b"root:" not in answer.body and b"import" not in answer.body


def hostile(folder: Path) -> Path:
    svg = b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"
    bomb = b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + (60000).to_bytes(4, "big") * 2 + b"\x08\x02\0\0\0" + b"\0" * 4
    files = []
    for n, (part, data) in enumerate(
        [
            ("json", json.dumps({"text": BAD, BAD: [BAD], "right": "\u0634\u0631\u0642 left"}).encode()),
            ("txt", BAD.encode()),
            ("svg", svg),
            ("png", bomb),
            ("png", b"\x89PNG\r\n\x1a\nbroken"),
            ("jpg", svg),
            ("txt", b"\xff\xfe\x00bin\x00ary"),
            ("txt", b"x" * 300_000),
            ("json", b"[" * 5000),
            ("html", BAD.encode()),
            ("npz", b"PK\x03\x04broken"),
            ("pth", b"\x80\x04c__builtin__\neval\n."),
        ]
    ):
        files.append((f"s{n}{'<b>' if n == 1 else ''}.{part}", data))
    write_tar(folder / "x.tar", files)
    return folder / "x.tar"


def test_hostile_data_stays_text(tmp_path: Path) -> None:
    with serving(hostile(tmp_path)) as site:
        count = site.get("/x.tar/samples.json").json["samples"]
        assert count == 12
        for query in ["as=grid", "as=table", *(f"at={n}" for n in range(count)), "q=%3Cscript%3E", "q=alert"]:
            page = site.get(f"/x.tar/samples?{query}")
            assert page.status == 200, (query, page.words[:300])
            low = page.text.lower()
            assert "<script>" not in low and "<svg xmlns" not in low and not re.search(r"<[^>&]*onerror", low)
            assert not HIDDEN.search(page.text)
        assert "U+202E" in site.get("/x.tar/samples?at=0").text
        for n, part in [(2, "svg"), (9, "html"), (0, "json"), (11, "pth")]:
            answer = site.get(f"/x.tar/part?at={n}&part={part}")
            kind = answer.headers["content-type"]
            assert (
                kind.startswith(("text/plain", "application/octet-stream"))
                and answer.headers["x-content-type-options"] == "nosniff"
            )
        for n in (3, 4, 5):
            assert site.get(f"/x.tar/image?at={n}&part={'jpg' if n == 5 else 'png'}").status == 404
        assert site.get("/x.tar/samples?at=7").text.count("x" * 2001) == 0


def test_what_cannot_be_seen_is_shown() -> None:
    assert str(marked("a\u202eb\x07<")) == (
        'a<span class="hidden-mark" title="right-to-left override">U+202E</span>b'
        '<span class="hidden-mark" title="control character">U+0007</span>&lt;'
    )
    assert cut("x" * 5000) == ("x" * 2000, 3000) and cut("ok") == ("ok", 0)


def test_wrong_arguments(root: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        serve([tmp_path / "nothing"])
    with pytest.raises(ConfigError, match="nothing to show"):
        serve([])
    with pytest.raises(ConfigError, match="everybody on the network"):
        serve([root / "pages"], host="0.0.0.0", token=False)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(StorageError, match="is in use"):
            serve([root / "pages"], port=taken.getsockname()[1])


def test_large_samples_are_decoded_only_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedmill.web.samples.TOO_LARGE", 1000)
    write_tar(tmp_path / "x.tar", [("a.txt", b"short"), ("b.txt", b"long " * 1000)])
    with serving(tmp_path / "x.tar") as site:
        data = site.get("/x.tar/samples.json?at=1").json
        assert data["opened"]["large"] and not data["opened"]["parts"] and "problem" in data["rows"][1]
        assert site.get("/x.tar/samples.json?at=1&decode=1").json["opened"]["parts"][0]["kind"] == "text"


def test_players_get_ranges(tmp_path: Path) -> None:
    data = io.BytesIO(bytes(range(256)) * 8).getvalue()
    write_tar(tmp_path / "x.tar", [("a.mp4", data)])
    with serving(tmp_path / "x.tar") as site:
        answer = site.get("/x.tar/part?at=0&part=mp4", Range="bytes=100-199")
        assert (answer.status, answer.body) == (206, data[100:200])
        assert (
            answer.headers["content-range"] == f"bytes 100-199/{len(data)}"
            and answer.headers["content-type"] == "video/mp4"
        )


def test_a_file_that_is_replaced_while_it_is_shown(tmp_path: Path) -> None:
    """Cut short, gone, or with other rows: a message on the page, and no defect."""
    path = tmp_path / "x.jsonl"
    rows = "".join(json.dumps({"n": n, "text": "x" * 50}) + "\n" for n in range(300))
    path.write_text(rows)
    with serving(path) as site:
        assert site.get("/x.jsonl/samples?at=250").status == 200
        for change in (lambda: path.write_text(rows[:900]), lambda: path.write_text(rows.upper()), path.unlink):
            change()
            for page in ("samples?at=250", "samples?page=2", "samples?q=zzz", "health", "part?at=250&part=json"):
                answer = site.get(f"/x.jsonl/{page}")
                assert "defect" not in answer.text, (page, answer.words[-300:])
            assert site.get("/").status == 200
