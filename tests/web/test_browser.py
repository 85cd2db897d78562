"""The pages in a browser: no errors, nothing from elsewhere, no jumps, keys, without scripts, narrow and wide."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import feedmill.web
from helpers.durations import slow_but
from helpers.web_runs import reports
from helpers.web_server import Site, serving

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PAGES = {
    "home": "/",
    "grid": "/pages/samples?at=3",
    "table": "/pages/samples?as=table&f.bytes=300:&sort=-bytes",
    "documents": "/prose.jsonl/samples?at=4",
    "tokens": "/prose.pbin/samples?at=2",
    "step": "/mix.yaml/step?step=60&world=4",
    "packed": "/packed.yaml/step?batch=4&world=2",
    "life": "/packed.yaml/life?at=3",
    "mixture": "/mix.yaml/mixture?w.0=0.2",
    "health": "/pages/health",
    "bench": "/documents/filters?min.q__char_length_v1__length=200&max.dup=0",
    "duplicates": "/documents/duplicates?set=dup_near&cluster=1",
    "lengths": "/prose.pbin/tokens?seq_len=64",
    "pipeline": "/crawl.yaml/pipeline",
    "compare": "/pages/compare?with=prose.pbin",
    "recipes": "/mix.yaml/compare?with=other.yaml",
    "runs": "/crawl.yaml/compare",
    "loader": "/loading-rank.jsonl/loader?over=all",
    "keys": "/pages/samples?keys=1",
    "problem": "/pages/samples?at=99999",
}
LARGE = ("home", "grid", "table", "step", "mixture", "bench", "loader")
"""Pages that the default run also shows in a wide window."""
IMAGES = "[...document.images].every((one) => one.naturalWidth > 0 || one.loading === 'lazy')"
INSIDE = """[...document.querySelectorAll('.views [aria-current]')].every((one) => {
  const box = one.getBoundingClientRect(); return box.left >= 0 && box.right <= window.innerWidth; })"""
SETTLED = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => window.setTimeout(done, 20))))"
SHIFTS = """() => new Promise((done) => { let sum = 0;
  new PerformanceObserver((list) => { for (const one of list.getEntries()) sum += one.value; })
    .observe({ type: "layout-shift", buffered: true });
  window.setTimeout(() => done(sum), 30); })"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield found
        found.close()


class Visit:
    """A page with what it reported and asked for."""

    def __init__(self, browser: Any, site: Site, **options: Any) -> None:
        self.context = browser.new_context(base_url=f"http://{site.host}", **options)
        self.context.set_default_timeout(300_000)  # half a minute is not enough on a busy machine
        self.page = self.context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self._open: set[Any] = set()  # requests without an answer
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", self._request)
        self.page.on("requestfinished", lambda request: self._open.discard(request))
        self.page.on("requestfailed", lambda request: self._open.discard(request))

    def _request(self, request: Any) -> None:
        self.asked.append(request.url)
        self._open.add(request)

    def __enter__(self) -> Visit:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()

    def go(self, path: str) -> Any:
        self.page.goto(path)
        self.settle()
        return self.page

    def settle(self) -> None:
        """Wait until what scripts asked for has come and is drawn: Playwright's own wait takes half a second more."""
        while True:
            count = len(self.asked)
            self.page.evaluate(SETTLED)
            if not self._open and len(self.asked) == count:
                return


@pytest.fixture(scope="module")
def both(browser: Any, site: Site) -> Iterator[dict[int, Visit]]:
    """By width: a tab for all pages, each of which is loaded as in a new one: nothing of the last is kept."""
    with contextlib.ExitStack() as stack:
        found = {}
        for width, scheme in ((1440, "light"), (390, "dark")):
            visit = Visit(browser, site, viewport={"width": width, "height": 900}, color_scheme=scheme)
            found[width] = stack.enter_context(visit)
            visit.context.new_cdp_session(visit.page).send("Network.setCacheDisabled", {"cacheDisabled": True})
        yield found


@pytest.fixture(scope="module")
def tab(browser: Any, site: Site) -> Iterator[Visit]:
    with Visit(browser, site) as found:
        yield found


@pytest.fixture
def visit(tab: Visit) -> Visit:
    """A tab that has nothing of the last test."""
    tab.go("/")
    tab.page.evaluate("() => { localStorage.clear(); sessionStorage.clear(); }")
    tab.context.clear_cookies()
    tab.page.mouse.move(0, 0)
    tab.said.clear()
    tab.asked.clear()
    return tab


@pytest.mark.parametrize(
    ("name", "width"), slow_but(product(PAGES, (1440, 390)), *product(PAGES, [390]), *product(LARGE, [1440]))
)
def test_wide_and_narrow_light_and_dark(
    name: str, width: int, both: dict[int, Visit], site: Site, tmp_path: Path
) -> None:
    visit = both[width]
    visit.said.clear()
    visit.asked.clear()
    page = visit.go(PAGES[name])
    assert not [text for text in visit.said if name != "problem" or "404" not in text]
    assert {
        url.partition("/")[2].partition("/")[2].partition("/")[0] for url in visit.asked if not url.startswith("data:")
    } == {site.host}
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert page.evaluate(INSIDE)
    assert page.evaluate(IMAGES)
    assert page.evaluate(SHIFTS) < 0.02
    shown = tmp_path / "page.jpg"  # drawn in two thirds of the time of a .png
    page.screenshot(path=shown, type="jpeg", quality=20)
    assert shown.stat().st_size > 8_000


@pytest.mark.parametrize("late", ["uplot.min.css", "uplot.min.js"])
def test_curves_that_are_drawn_late_move_nothing(late: str, browser: Any, site: Site) -> None:
    with Visit(browser, site, viewport={"width": 1440, "height": 900}) as visit:
        page, held = visit.page, []
        page.route(f"**/{late}", lambda route: held.append(route))
        for name in ("packed", "mixture"):
            page.goto(PAGES[name], wait_until="commit")
            page.wait_for_selector(".plot svg")
            page.evaluate(SETTLED)  # what is drawn without it is seen
            while not held:
                page.wait_for_timeout(10)
            assert not page.locator(".plot .u-over").count()
            held.pop().continue_()
            page.wait_for_selector(".plot .u-over", state="attached")
            assert page.evaluate(SHIFTS) < 0.02


def test_keys_of_samples(visit: Visit) -> None:
    page = visit.go("/pages/samples")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"at=1\b"))
    page.keyboard.press("j")
    page.wait_for_url(re.compile(r"at=2\b"))
    page.keyboard.press("k")
    page.wait_for_url(re.compile(r"at=1\b"))
    page.keyboard.press("v")
    page.wait_for_url(re.compile("as=table"))
    assert page.locator("tr[aria-selected=true]").count() == 1
    page.keyboard.press("Escape")
    page.wait_for_url(re.compile(r"samples\?as=table(#main)?$"))
    page.keyboard.press("/")
    page.keyboard.type("page-0100")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"at=100\b"))
    page.keyboard.press("?")
    page.wait_for_selector("#keys")
    page.wait_for_load_state()  # the script comes after the text
    page.keyboard.press("t")
    page.wait_for_selector("html[data-theme=dark]")
    assert not visit.said


def test_keys_of_steps(visit: Visit) -> None:
    page = visit.go("/mix.yaml/step?step=5")
    for key, step in (("ArrowRight", 6), ("ArrowLeft", 5), ("Shift+ArrowRight", 15), ("s", 60)):
        page.keyboard.press(key)
        page.wait_for_url(re.compile(rf"step={step}\b"))
    page.keyboard.press("1")
    page.wait_for_url(re.compile("rank=0"))
    page.keyboard.press("g")
    page.keyboard.press("m")
    page.wait_for_url(re.compile("/mixture"))
    page.locator("input[name='w.0']").fill("0.4")
    page.get_by_role("button", name="Show what changes").click()
    page.wait_for_url(re.compile(r"mixture\?w\.0=0\.4$"))
    assert "1 weight is changed here" in page.inner_text("#main") and not visit.said


def test_a_spike_leads_to_the_decoded_rows(visit: Visit) -> None:
    page = visit.go("/packed.yaml/step?batch=1")
    page.get_by_role("link", name="spike at 60").first.click()
    page.wait_for_url(re.compile("step=60"))
    page.locator(".prow a").first.click()
    page.wait_for_url(re.compile("row="))
    assert "document" in page.locator(".tokens").inner_text() and not visit.said


def test_sliders_of_the_filter_bench(visit: Visit) -> None:
    page = visit.go("/documents/filters")
    slider = page.get_by_role("slider", name="length, at least").first
    slider.focus()
    for _ in range(20):
        page.keyboard.press("ArrowRight")
    page.wait_for_url(re.compile(r"filters\?min\.q__char_length_v1__length=\d+$"))
    field = page.get_by_role("textbox", name="length, at least").first
    page.wait_for_selector("#bench-result pre")
    for _ in range(100):  # on a busy machine, the page may show the place of an earlier key
        kept = visit.context.request.get(page.url.replace("filters?", "filters.json?")).json()["kept"]
        if shown := f"Keeps {kept} of 120 documents" in page.inner_text("#bench-result pre"):
            break
        page.wait_for_timeout(100)
    assert 0 < kept < 120 and shown
    field.fill("")
    page.wait_for_url(re.compile(r"/documents/filters$"))
    page.get_by_role("checkbox").first.check()
    page.wait_for_url(re.compile(r"max\."))
    page.reload()
    assert page.get_by_role("checkbox").first.is_checked() and not visit.said


def test_keys_of_duplicates(visit: Visit) -> None:
    page = visit.go("/documents/duplicates?set=dup")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"cluster=0\b"))
    page.keyboard.press("]")
    page.wait_for_url(re.compile(r"b=\d+"))
    second = page.url
    page.keyboard.press("[")
    page.wait_for_url(lambda url: url != second)  # on the old page, the next key would be lost
    page.keyboard.press("j")
    page.wait_for_url(re.compile(r"cluster=1\b"))
    page.keyboard.press("Escape")
    page.wait_for_url(re.compile(r"duplicates\?set=dup$"))
    assert not visit.said


def test_keys_of_tokens(visit: Visit) -> None:
    page = visit.go("/prose.pbin/samples")
    page.keyboard.press("g")
    page.keyboard.press("o")
    page.wait_for_url(re.compile(r"/prose\.pbin/tokens$"))
    page.keyboard.press("v")
    page.wait_for_url(re.compile(r"scale="))
    page.locator("input[name=seq_len]").fill("64")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"seq_len=64\b"))
    page.wait_for_selector("#packing:has-text('rows of 64 tokens')")
    assert not visit.said


def test_curves_answer_to_the_pointer(visit: Visit) -> None:
    page = visit.go("/mix.yaml/step?step=5")
    box = page.locator(".u-over").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 60.5 / 250, box["y"] + 40)
    page.locator(".readout", has_text="step 60").wait_for()
    assert page.locator(".readout").inner_text() == "step 60: loss 5"
    page.mouse.down()
    page.mouse.up()
    page.wait_for_url(re.compile(r"step=60\b"))
    page = visit.go("/loading-rank.jsonl/loader?over=all")
    box = page.locator(".u-over").bounding_box()
    page.mouse.move(box["x"] + box["width"] - 3, box["y"] + 40)
    page.locator(".readout", has_text="slowest rank 24 %").wait_for()
    assert not visit.said


def test_telemetry_is_read_again(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(b"".join(reports(0)))
    with serving(tmp_path / "x.jsonl") as site, Visit(browser, site) as visit:
        visit.page.clock.install()
        page = visit.page
        page.goto("/x.jsonl/loader")
        page.locator("main .seg a").first.focus()
        assert page.locator(".lane").count() == 1
        with (tmp_path / "x.jsonl").open("ab") as file:
            file.write(b"".join(reports(1)))
        page.clock.run_for(6_000)  # it is read again after 5 seconds of the page's clock
        page.locator(".lane").nth(1).wait_for()
        assert page.evaluate("document.activeElement.textContent") == "last report"
        page.wait_for_selector(".u-over")
        assert not visit.said


@pytest.mark.parametrize("scripts", [True, False])
def test_a_copy_is_saved_from_the_page(scripts: bool, browser: Any, root: Path, tmp_path: Path) -> None:
    for name in ("pages", "text"):
        (tmp_path / name).symlink_to(root / name)
    (tmp_path / "mix.yaml").write_text((root / "mix.yaml").read_text())
    with serving(tmp_path / "mix.yaml", edit=True) as site, Visit(browser, site, java_script_enabled=scripts) as visit:
        page = visit.page
        page.goto("/mix.yaml/mixture")
        page.locator("input[name='w.0']").fill("0.4")
        page.get_by_role("button", name="Show what changes").click()
        page.get_by_role("button", name="Save a copy").click()
        page.wait_for_url(re.compile("saved=mix-2.yaml"))
        assert "Saved as" in page.inner_text("#main") and not visit.said
    assert "weight: 0.4" in (tmp_path / "mix-2.yaml").read_text()


def test_a_slider_moves_a_weight(visit: Visit) -> None:
    page = visit.go("/mix.yaml/mixture")
    page.locator("input[type=range]").first.focus()
    page.keyboard.press("End")
    page.wait_for_url(re.compile(r"w\.0=1\.4$"))
    assert "1 weight is changed here" in page.inner_text("#main") and not visit.said


def test_without_scripts(browser: Any, site: Site) -> None:
    with Visit(browser, site, java_script_enabled=False) as visit:
        page = visit.page
        page.goto("/prose.jsonl/samples")
        page.locator("th .hist a").first.click()
        page.wait_for_url(re.compile(r"f\.bytes="))
        assert "of 50 samples" in page.inner_text("#main") and page.locator("button.only-noscript").is_visible()
        page.goto("/mix.yaml/step?step=3")
        assert page.locator(".lane").count() == 1
        page.goto("/documents/filters")
        page.get_by_role("textbox", name="length, at least").first.fill("200")
        page.get_by_role("button", name="Show", exact=True).click()
        page.wait_for_url(re.compile(r"length=200"))
        assert "Around the limit of" in page.inner_text("#main") and not page.get_by_role("slider").first.is_visible()


def _luminance(color: str) -> float:
    parts = [int(color[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(one: str, other: str) -> float:
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_contrast(theme: str) -> None:
    """WCAG 2.2 AA: 4.5 for text, 3 for controls and the colors of sources."""
    text = (Path(feedmill.web.__file__).parent / "static/tokens.css").read_text()
    light, dark = text.split("@media (prefers-color-scheme: dark)")
    block = light if theme == "light" else dark.partition(":root[data-theme")[0]
    colors = dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", block))
    texts = [
        ("ink", "bg"),
        ("ink", "surface"),
        ("ink-2", "bg"),
        ("ink-2", "sunk"),
        ("accent-ink", "bg"),
        ("on-accent", "accent"),
    ]
    texts += [(name, f"{name}-bg") for name in ("ok", "warn", "bad", "info")] + [("ink-2", "select")]
    texts += [("ink", tint) for tint in ("ok-bg", "bad-bg", "heat-1", "heat-2", "heat-3")]
    assert min(_contrast(colors[a], colors[b]) for a, b in texts) >= 4.5
    marks = [("control", "field"), ("focus-color", "bg")]
    marks += [(f"src-{n}", surface) for n in range(11) for surface in ("bg", "surface")]
    assert min(_contrast(colors[a], colors[b]) for a, b in marks) >= 3
    both = dark.split(":root[data-theme")
    assert re.findall(r"--[a-z0-9-]+: [^;]+", both[0]) == re.findall(r"--[a-z0-9-]+: [^;]+", both[1].partition("}")[0])


def test_a_sample_fills_a_narrow_screen_until_it_is_closed(browser: Any, site: Site) -> None:
    with Visit(browser, site, viewport={"width": 390, "height": 844}) as visit:
        page = visit.go("/pages/samples")
        page.locator("[data-sample]").nth(1).click()
        sheet = page.locator("#sample")
        sheet.wait_for()
        box = sheet.bounding_box()
        assert (box["x"], box["y"], box["height"]) == (0, 0, 844) and box["width"] > 370
        page.locator("#sample [data-next]").click()
        page.wait_for_url(re.compile(r"at=2\b"))
        sheet.wait_for()
        page.go_back()
        page.wait_for_url(re.compile(r"at=1\b"))
        sheet.wait_for()
        page.go_back()
        sheet.wait_for(state="hidden")
