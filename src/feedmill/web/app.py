"""The server's pages: routes, the views by name, what is open, who may read, headers, errors."""

from __future__ import annotations

import hmac
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

import orjson
from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from feedmill.errors import ConfigError, DataError, FeedmillError, NotFound, defect_of
from feedmill.formats.base import Dataset
from feedmill.tokens.pieces import has_tokens, pieces_of, tokenizer_of
from feedmill.web import compare as compare_view
from feedmill.web import duplicates as duplicates_view
from feedmill.web import filters as filters_view
from feedmill.web import health as health_view
from feedmill.web import jobs as jobs_view
from feedmill.web import life as life_view
from feedmill.web import loader as loader_view
from feedmill.web import mixture as mixture_view
from feedmill.web import pipeline as pipeline_view
from feedmill.web import samples as samples_view
from feedmill.web import step as step_view
from feedmill.web import tokens as tokens_view
from feedmill.web.columns import read_each
from feedmill.web.episodes import video_of
from feedmill.web.library import Library, OpenItem, read_run
from feedmill.web.logs import MOST, parse_losses
from feedmill.web.parts import (
    FULL,
    MEDIA,
    THUMBNAIL,
    extension,
    facts_of,
    first_image,
    kind_of,
    picture,
    read_one,
    title_of,
)
from feedmill.web.state import RANGE, State
from feedmill.web.templating import STATIC, STYLE, environment, static_version, style
from feedmill.web.weights import save_copy

logger = logging.getLogger("feedmill")

POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; media-src 'self';"
    " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = (
    ("content-security-policy", POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("x-frame-options", "DENY"),
)
Make = Callable[[], dict[str, Any]]
"""Function that returns the data of a page."""
_AT_ONCE = 4  # pages that are made at the same time
_MOST_FORM = 4096  # bytes of a form with a name
_MOST_BYTES = 64 << 20  # of a part that is sent as it is
_DAY = 86_400
_FOR_EVER = "private, max-age=31536000, immutable"


def app_of(library: Library, *, token: str | None, hosts: Sequence[str], warm: bool = False) -> ASGIApp:
    """Return the application.

    Args:
        library: what is open.
        token: secret that the address or the cookie must have; None lets everybody read who reaches the server.
        hosts: values of the Host header that are answered, with their port.
        warm: whether to begin, in a thread, with what the first pages need: templates, tokenizers, plans.
    """
    pages = _Pages(library)
    if warm and not library.is_remote:
        threading.Thread(target=pages.warm, daemon=True).start()
    routes = [
        Route("/", pages.home),
        Route("/index.json", pages.home),
        Route(f"/static/{STYLE}", _style),
        Mount("/static", _Static(directory=STATIC)),
        Route("/{thing}/image", pages.image),
        Route("/{thing}/part", pages.part),
        Route("/{thing}/video", pages.video),
        Route("/{thing}/jump", pages.jump),
        Route("/{thing}/filter.yaml", pages.filter_file),
        Route("/{thing}/skip.yaml", pages.skip_list),
        Route("/{thing}/marked.txt", pages.marked_keys),
        Route("/{thing}/mark", pages.mark, methods=["POST"]),
        Route("/{thing}/forget.zip", pages.forget),
        Route("/{thing}/loss", pages.loss, methods=["POST"]),
        Route("/{thing}/copy", pages.copy, methods=["POST"]),
        Route("/{thing}/{view}.json", pages.view),
        Route("/{thing}/{view}", pages.view),
    ]
    app = Starlette(routes=routes, exception_handlers={404: pages.nothing, 405: pages.nothing})
    return _Guard(app, token, hosts)


class _Static(StaticFiles):
    """Scripts, which browsers keep under the addresses with their version that pages have."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        answer = await super().get_response(path, scope)
        answer.headers["cache-control"] = _lifetime(Request(scope))
        return answer


async def _style(request: Request) -> Response:
    return Response(style(), media_type="text/css", headers={"cache-control": _lifetime(request)})


def _lifetime(request: Request) -> str:
    return _FOR_EVER if request.query_params.get("v") == static_version() else "no-cache"


class _Guard:
    """Answers only those who know the token, under a known name, from the same origin."""

    def __init__(self, app: ASGIApp, token: str | None, hosts: Sequence[str]) -> None:
        self._app, self._token, self._hosts = app, token, {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                names = {name for name, _ in message["headers"]}
                for name, value in HEADERS:
                    if name.encode() not in names:
                        message["headers"].append((name.encode(), value.encode()))
                if b"cache-control" not in names:
                    message["headers"].append((b"cache-control", b"no-store"))
            await send(message)

        request = Request(scope)
        answer = self._refuse(request)
        await (self._app if answer is None else answer)(scope, receive, send_guarded)

    def _refuse(self, request: Request) -> Response | None:
        host = request.headers.get("host", "").lower()
        if host not in self._hosts:
            return PlainTextResponse(f"This server does not answer to {host[:80]!r}.\n", 403)
        origin = request.headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host:
            return PlainTextResponse("Requests from other origins are not answered.\n", 403)
        if origin is None and request.method not in ("GET", "HEAD"):
            return PlainTextResponse("A request that changes something needs the header Origin.\n", 403)
        if request.headers.get("sec-fetch-site") in ("cross-site", "same-site") and request.method != "GET":
            return PlainTextResponse("Requests from other origins are not answered.\n", 403)
        if self._token is None or request.url.path.startswith("/static/"):
            return None
        name = f"feedmill-{host.rpartition(':')[2]}"
        if hmac.compare_digest(request.cookies.get(name, "").encode(), self._token.encode()):
            return None
        given = request.query_params.get("token", "")
        if hmac.compare_digest(given.encode(), self._token.encode()):
            rest = [(key, value) for key, value in request.query_params.multi_items() if key != "token"]
            here = "/" + request.url.path.lstrip("/\\")  # two slashes would be another server
            answer = RedirectResponse(here + State(rest).link().removesuffix("?"), 303)
            answer.set_cookie(name, self._token, httponly=True, samesite="strict", max_age=7 * _DAY)
            return answer
        return PlainTextResponse(
            "This address needs the token of the server.\n"
            "Open the address that 'feedmill serve' printed, with ?token=.\n",
            403,
        )


class _Pages:
    def __init__(self, library: Library) -> None:
        self._library = library
        self._turns: CapacityLimiter | None = None
        self._environment = environment()
        self._environment.globals |= {"views": VIEWS, "keys": KEYS, "things": library.things, "RANGE": RANGE}
        self._environment.globals["tabs"] = tabs
        self._environment.globals["edit"] = any(thing.edit for thing in library.things.values())

    def warm(self) -> None:
        """Compile the templates, and make the home page and the first step of each recipe once."""
        try:
            for name in self._environment.list_templates():
                self._environment.get_template(name)
            home(self._library, State())
            for thing in self._library.things.values():
                if thing.kind == "recipe":
                    step_view.step(thing, State())
        except Exception:  # the page itself says why
            logger.debug("the first pages", exc_info=True)

    async def _off(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a function in a thread, a few at once for local data: more only take turns, and each waits for all."""
        if self._turns is None and not self._library.is_remote:
            self._turns = CapacityLimiter(_AT_ONCE)
        return await to_thread.run_sync(function, *arguments, limiter=self._turns)

    async def home(self, request: Request) -> Response:
        state = State(request.query_params.multi_items())
        return await self._answer(request, None, "home", state, lambda: home(self._library, state))

    async def view(self, request: Request) -> Response:
        name, state = request.path_params["view"], State(request.query_params.multi_items())

        def make() -> dict[str, Any]:
            thing = self._library[request.path_params["thing"]]
            if name not in VIEWS:
                raise NotFound(f"there is no view {name[:40]!r}", kind="no-page", fix=f"Views: {', '.join(VIEWS)}.")
            kind, view, _ = VIEWS[name]
            if thing.kind not in kind:
                wanted = kind if isinstance(kind, str) else " or ".join(kind)
                raise NotFound(f"{thing.path} is a {thing.kind}; this view shows a {wanted}", kind="no-page")
            return view(thing, state)

        return await self._answer(request, request.path_params["thing"], name, state, make)

    async def _answer(self, request: Request, thing: str | None, view: str, state: State, make: Make) -> Response:
        if request.url.path.endswith(".json"):
            body, status = await self._off(self._data, request.url.path, make)
            return Response(body, status, media_type="application/json")
        theme = state.get("theme") or request.cookies.get("feedmill-theme", "")
        theme = theme if theme in ("light", "dark") else ""
        body, status = await self._off(self._page, request.url.path, thing, view, state, theme, make)
        answer = HTMLResponse(body, status)
        if "theme" in state:
            answer.set_cookie("feedmill-theme", theme, samesite="strict", max_age=365 * _DAY)
        return answer

    def _made(self, path: str, make: Make) -> tuple[dict[str, Any] | None, FeedmillError | None, int]:
        """Return the data of a page, or the error, and the status."""
        try:
            return make(), None, 200
        except FeedmillError as error:
            return None, error, 404 if isinstance(error, NotFound) else 400 if isinstance(error, ConfigError) else 500
        except Exception as error:
            logger.exception("%s", path)
            return None, defect_of(error), 500

    def _data(self, path: str, make: Make) -> tuple[bytes, int]:
        data, problem, status = self._made(path, make)
        return _json(data if problem is None else {"error": problem.as_dict()}), status

    def _page(self, path: str, thing: str | None, view: str, state: State, theme: str, make: Make) -> tuple[bytes, int]:
        begin = time.perf_counter()
        data, problem, status = self._made(path, make)
        known = self._library.things.get(thing or "")
        page = self._environment.get_template("problem.html" if problem is not None else f"{view}.html")
        html = page.render(
            data=data,
            problem=problem,
            state=state,
            link=state.link,
            thing=known,
            view=view,
            theme=theme,
            base="/" if known is None else f"/{known.name}/",
            here=path,
            twin=("/index" if view == "home" else path) + ".json" + state.link().removesuffix("?"),
            milliseconds=lambda: round(1000 * (time.perf_counter() - begin)),
        )
        return html.encode("utf-8", "replace"), status

    async def nothing(self, request: Request, error: Exception) -> Response:  # noqa: ARG002
        fail = _raising(NotFound("there is nothing at this address", kind="no-page"))
        return await self._answer(request, None, "home", State(), fail)

    async def image(self, request: Request) -> Response:
        state = State(request.query_params.multi_items())

        def make() -> tuple[bytes, str]:
            sample = read_one(self._source(request, state), state.number("at", 0) or 0)
            return picture(sample, state.get("part", ""), THUMBNAIL if state.get("size") == "small" else FULL)

        return await self._bytes(make, "private, max-age=300")

    async def part(self, request: Request) -> Response:
        state = State(request.query_params.multi_items())

        def make() -> tuple[bytes, str]:
            sample = read_one(self._source(request, state), state.number("at", 0) or 0)
            name = state.get("part", "")
            data = sample.raw(name)
            if len(data) > _MOST_BYTES and kind_of(name) == "data":
                raise ConfigError(f"this part has {len(data):,} bytes; at most {_MOST_BYTES:,} are sent")
            if kind_of(name) in ("audio", "video"):
                return data, MEDIA[extension(name)]
            return _as_plain(sample, name, data)

        return await self._bytes(make, "no-store", request.headers.get("range"))

    async def video(self, request: Request) -> Response:
        """Answer a range of the video file of an episode; a file may have hours of video, so never all of it."""
        state = State(request.query_params.multi_items())
        asked = _range(request.headers.get("range"), 1 << 62)
        wanted = None if asked is None else (asked[0], None if asked[1] == 1 << 62 else asked[1])
        try:
            found = await self._off(lambda: video_of(self._source(request, state), state, wanted))
        except FeedmillError as error:
            return PlainTextResponse(f"{error}\n", 404)
        data, first, stop, size = found
        headers = {"cache-control": "private, max-age=300", "accept-ranges": "bytes"}
        if first >= size:
            return Response(b"", 416, headers={**headers, "content-range": f"bytes */{size}"})
        headers["content-range"] = f"bytes {first}-{stop - 1}/{size}"
        return Response(data, 206, media_type="video/mp4", headers=headers)

    async def filter_file(self, request: Request) -> Response:
        state = State(request.query_params.multi_items())

        def make() -> tuple[bytes, str]:
            thing = self._library[request.path_params["thing"]]
            return filters_view.filter_file(thing, state).encode(), "application/yaml"

        return await self._bytes(make, "no-store")

    async def skip_list(self, request: Request) -> Response:
        """Send the marked samples as the skip list of a recipe."""
        return await self._bytes(
            lambda: (samples_view.skip_list(self._named(request)).encode(), "application/yaml"), "no-store"
        )

    async def marked_keys(self, request: Request) -> Response:
        """Send the keys of the marked samples."""
        return await self._bytes(
            lambda: (samples_view.marked_keys(self._named(request)).encode(), "text/plain"), "no-store"
        )

    def _named(self, request: Request) -> OpenItem:
        """Return the dataset of an address. Raises `NotFound` if it is none."""
        thing = self._library[request.path_params["thing"]]
        if thing.kind != "dataset":
            raise NotFound(f"{thing.path} is a {thing.kind}, and no dataset", kind="no-page")
        return thing

    async def mark(self, request: Request) -> Response:
        """Mark samples. Marks are kept in memory only."""
        refused = _refuse_length(request, _MOST_FORM, "A form with an action is expected.\n")
        if refused is not None:
            return refused
        body = await request.body()
        state = State(request.query_params.multi_items())

        def make() -> dict[str, Any]:
            thing, fields = self._named(request), _fields(body[:_MOST_FORM])
            samples_view.mark(thing, state, fields.get("action", [""])[0], fields.get("key", [""])[0])
            return {"to": f"/{thing.name}/samples{state.link()}{'#sample' if 'at' in state else ''}"}

        return await self._redirect(request, "samples", state, make)

    async def forget(self, request: Request) -> Response:
        """Send what must be forgotten with a document, as `feedmill documents forget --report` writes it."""
        state = State(request.query_params.multi_items())

        def make() -> tuple[bytes, str]:
            return life_view.forget_files(self._library.recipe(request.path_params["thing"]), state), "application/zip"

        return await self._bytes(make, "no-store")

    async def jump(self, request: Request) -> Response:
        """Go to a sample by key or number, or to a step by number."""
        text = request.query_params.get("to", "").strip()
        state = State(request.query_params.multi_items())

        def make() -> dict[str, Any]:
            thing = self._library[request.path_params["thing"]]
            if thing.kind == "recipe":
                return {
                    "to": f"/{thing.name}/step" + State([("step", str(State([("step", text)]).number("step")))]).link()
                }
            number = samples_view.jump(thing, text)
            return {"to": f"/{thing.name}/samples" + State([("at", str(number))]).link() + "#sample"}

        return await self._redirect(request, "samples", state, make)

    async def loss(self, request: Request) -> Response:
        """Take a loss log that was pasted or chosen in the page of a step. It is kept in memory only."""
        refused = _refuse_length(request, MOST, f"A log of 1 to {MOST:,} bytes is expected.\n")
        if refused is not None:
            return refused
        data = (await request.body())[:MOST]
        state = State(request.query_params.multi_items())

        def make() -> dict[str, Any]:
            thing = self._library[request.path_params["thing"]]
            text, name = _posted(data, request.headers.get("content-type", ""))
            try:
                losses = parse_losses(text, name)
            except DataError as error:  # of who sent it, not of this server
                raise ConfigError(error.what, file=error.file, fix=error.fix, kind=error.kind) from None
            thing.loss = name
            thing.__dict__["_losses"] = losses
            return {"to": f"/{thing.name}/step{state.link()}"}

        return await self._redirect(request, "step", state, make)

    async def _redirect(
        self, request: Request, view: str, state: State, make: Callable[[], dict[str, Any]]
    ) -> Response:
        """Redirect to the address that `make` returns, or show its error in a view."""
        try:
            return RedirectResponse((await self._off(make))["to"], 303)
        except FeedmillError as error:
            return await self._answer(request, request.path_params["thing"], view, state, _raising(error))

    async def copy(self, request: Request) -> Response:
        """Save a copy of a recipe with the weights of the address."""
        state = State(request.query_params.multi_items())
        refused = _refuse_length(request, _MOST_FORM, "A form with the name of the copy is expected.\n")
        if refused is not None:
            return refused
        body = await request.body()

        def make() -> dict[str, Any]:
            thing = self._library[request.path_params["thing"]]
            name = _fields(body[:_MOST_FORM]).get("name", [""])[0].strip()
            path = save_copy(thing, state, name)
            return {"to": f"/{thing.name}/mixture{state.link(saved=os.path.basename(path))}"}

        return await self._redirect(request, "mixture", state, make)

    def _source(self, request: Request, state: State) -> Dataset:
        """Return the dataset of an address: what is open, one of its splits, or a source of a recipe."""
        thing = self._library[request.path_params["thing"]]
        return (
            thing.dataset(state.get("split")) if thing.kind == "dataset" else thing.plan.source(state.get("source", ""))
        )

    async def _bytes(self, make: Callable[[], tuple[bytes, str]], cache: str, range_: str | None = None) -> Response:
        try:
            data, kind = await self._off(make)
        except FeedmillError as error:
            return PlainTextResponse(f"{error}\n", 404)
        except Exception as error:
            logger.exception("part of a sample")
            return PlainTextResponse(f"{defect_of(error)}\n", 500)
        headers = {"cache-control": cache, "accept-ranges": "bytes"}
        chosen = _range(range_, len(data))
        if chosen is None:
            return Response(data, media_type=kind, headers=headers)
        first, stop = chosen
        headers["content-range"] = f"bytes {first}-{stop - 1}/{len(data)}"
        return Response(data[first:stop], 206, media_type=kind, headers=headers)


def _refuse_length(request: Request, most: int, words: str) -> Response | None:
    """Return the answer to a request whose body is too long or empty, or whose length is not a number."""
    text = request.headers.get("content-length") or "0"
    if not (text.isascii() and text.isdigit()):
        return PlainTextResponse("The header Content-Length is not a number.\n", 400)
    return None if len(text) < 19 and 0 < int(text) <= most else PlainTextResponse(words, 413)


def _range(text: str | None, size: int) -> tuple[int, int] | None:
    """Return the one range that a player asks for, [first, stop)."""
    low, dash, high = (text or "").removeprefix("bytes=").partition("-")
    if text is None or not dash or not low.isdigit() or len(low) > 18 or int(low) >= size:
        return None
    stop = int(high) + 1 if high.isdigit() and len(high) < 19 else size
    return int(low), min(stop, size)


def _as_plain(sample: Any, name: str, data: bytes) -> tuple[bytes, str]:
    """Return a part as text if it is text, otherwise as bytes that no browser shows."""
    value = sample[name]
    if isinstance(value, str):
        return value.encode("utf-8", "replace"), "text/plain; charset=utf-8"
    if isinstance(value, dict | list):
        return _json(value), "text/plain; charset=utf-8"
    return data, "application/octet-stream"


def _json(data: Any) -> bytes:
    try:
        return orjson.dumps(data, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY, default=str)
    except (TypeError, ValueError):  # lone surrogates, numbers of more than 64 bits
        return json.dumps(data, default=str).encode()


def _posted(data: bytes, kind: str) -> tuple[bytes, str]:
    """Return the log of a posted form, and its name."""
    if kind.startswith("application/x-www-form-urlencoded"):
        return (_fields(data).get("log") or [""])[0].encode(), "pasted log"
    return data, "log"


def _fields(data: bytes) -> dict[str, list[str]]:
    """Return the fields of a posted form. Raises `ConfigError` if it has more than eight."""
    try:
        return parse_qs(data.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=8)
    except ValueError:
        raise ConfigError("the form has too many fields", kind="bad-option") from None


def _raising(error: FeedmillError) -> Callable[[], dict[str, Any]]:
    def fail() -> dict[str, Any]:
        raise error

    return fail


View = Callable[[OpenItem, State], dict[str, Any]]

VIEWS: dict[str, tuple[str | tuple[str, ...], View, str]] = {
    "samples": ("dataset", samples_view.samples, "Look at samples: grid, table, episodes, facets, search, marks"),
    "filters": ("dataset", filters_view.filters, "Set limits on scores and see what they keep and drop"),
    "duplicates": ("dataset", duplicates_view.duplicates, "Clusters of duplicates, and the words that differ"),
    "tokens": ("dataset", tokens_view.tokens, "Lengths in tokens, and how full packed rows are"),
    "health": ("dataset", health_view.health, "Damaged, missing and changed files; outliers"),
    "pipeline": ("pipeline", pipeline_view.pipeline, "Steps, their files, hashes and durations"),
    "jobs": ("job", jobs_view.jobs, "Units by state, time left, slowest units and nodes, failures"),
    "mixture": ("recipe", mixture_view.mixture, "Weights, asked and realized shares; try other weights"),
    "step": ("recipe", step_view.step, "What each rank sees at a step, with cost and sightings"),
    "life": ("recipe", life_view.life, "A document from its raw line to the steps that see it"),
    "loader": ("telemetry", loader_view.loader, "What the training loop waits for, by rank"),
    "compare": (("dataset", "recipe", "pipeline"), compare_view.compare, "Two datasets, recipes or runs, side by side"),
}
KEYS = {
    "samples": "s",
    "step": "t",
    "mixture": "m",
    "life": "l",
    "filters": "f",
    "duplicates": "d",
    "health": "h",
    "tokens": "o",
    "pipeline": "p",
    "jobs": "j",
    "loader": "w",
    "compare": "c",
}


def tabs(thing: OpenItem, shown: str | None = None) -> list[str]:
    """Return the views of something that is open, without those that would be empty; `shown` is one of them anyway."""
    views = [name for name, (kind, _, _) in VIEWS.items() if thing.kind in kind]
    empty = set()
    if thing.kind == "dataset" and not thing.has_documents:
        empty |= {"filters", "duplicates"}
        if not has_tokens(thing.dataset()):
            empty.add("tokens")
    if not any(other.kind == thing.kind for other in thing.others.values() if other is not thing):
        empty.add("compare")
    return [name for name in views if name not in empty or name == shown]


_PICTURES, _ENDLESS, _BEGINNING = 6, 16_000, 60


def home(library: Library, state: State) -> dict[str, Any]:  # noqa: ARG001
    """Return what is open as plain data."""
    things = library.things.values()
    nouns = [plural for kind, plural in _NOUNS.items() if any(thing.kind == kind for thing in things)]
    if len(things) == 1:
        title = f"One {next(iter(things)).kind}"
    else:
        title = f"{len(things):,} {' and '.join(filter(None, (', '.join(nouns[:-1]), nouns[-1])))}"
    return {"title": title, "things": [_card(thing) for thing in things]}


_NOUNS = {
    "dataset": "datasets",
    "recipe": "recipes",
    "pipeline": "pipelines",
    "job": "jobs",
    "telemetry": "loader logs",
}


def _card(thing: OpenItem) -> dict[str, Any]:
    card: dict[str, Any] = {"name": thing.name, "path": thing.path, "kind": thing.kind}
    try:
        return card | _CARDS[thing.kind](thing)
    except FeedmillError as error:  # changed or gone since it was opened
        return card | {"problem": str(error)}


def _dataset(thing: OpenItem) -> dict[str, Any]:
    dataset = thing.dataset()
    facts = facts_of(dataset)
    count = len(dataset)
    numbers = sorted({count * n // _PICTURES for n in range(_PICTURES)}) if count else []
    pictures, text = [], None
    for number, sample in zip(numbers, read_each(dataset, numbers), strict=True):
        if isinstance(sample, FeedmillError):
            continue
        part = first_image(sample)
        if part is not None:
            pictures.append({"index": number, "part": part, "key": sample.key})
        elif text is None:
            text = _first_words(thing, dataset, sample)
    return {
        "format": facts.get("format"),
        "samples": count,
        "shards": facts.get("shards"),
        "bytes": facts.get("bytes"),
        "tokens": facts.get("tokens"),
        "splits": dict(dataset.splits),
        "pictures": pictures,
        "text": text,
    }


def _first_words(thing: OpenItem, dataset: Dataset, sample: Any) -> str | None:
    """Return the beginning of a sample in words; of tokens, decoded if their tokenizer is on this machine."""
    if "input_ids" in sample:
        try:
            pieces = pieces_of(tokenizer_of(dataset, thing.tokenizers), sample["input_ids"][:_BEGINNING].tolist())
            return "".join(piece["text"] for piece in pieces)
        except FeedmillError:  # the view Tokens says why
            return None
    return title_of(sample, facts_of(dataset).get("field_map"))


def _recipe(thing: OpenItem) -> dict[str, Any]:
    plan = thing.plan
    budget = plan.length or _ENDLESS
    return {
        "sources": len(plan.names),
        "length": plan.length,
        "names": list(plan.names),
        "slots": step_view.slots(plan.names),
        "shares": step_view.shares_over(plan, budget),
        "fingerprint": plan.fingerprint,
    }


def _pipeline(thing: OpenItem) -> dict[str, Any]:
    run = read_run(thing.path)
    records = None if run.manifest is None else run.manifest.steps
    names = [step.name for step in (run.pipeline.steps if run.pipeline is not None else records or ())]
    return {
        "steps": len(names),
        "names": names,
        "recorded": None if records is None else len(records),
        "seconds": 0.0 if records is None else sum(record.seconds for record in records),
    }


def _telemetry(thing: OpenItem) -> dict[str, Any]:
    found = loader_view.loader(thing, State())
    return {name: found[name] for name in ("ranks", "waiting", "age", "state")}


def _job(thing: OpenItem) -> dict[str, Any]:
    found = jobs_view.jobs(thing, State())
    return {name: found[name] for name in ("state", "age", "counts")} | {"stages": len(found["stages"])}


_CARDS = {"dataset": _dataset, "recipe": _recipe, "pipeline": _pipeline, "job": _job, "telemetry": _telemetry}
