"""The report's page as a browser shows it: no error, no request, nothing that axe-core finds serious, the figures of
the text, at the width of a telephone and of a desk, with and without scripts; what files say stays text there, too."""

import copy
import json
import os
import re
import shutil

import pytest

from rewrites.report.pages.html_report import write_html
from rewrites.report.pages.kept_report import check_report
from rewrites.report.results import printed

playwright = pytest.importorskip("playwright.sync_api", reason="needs peers: playwright")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs peers: axe-playwright-python")

BROWSERS = "chromium", "chromium-browser", "google-chrome", "google-chrome-stable"
WIDTHS = 400, 1400
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:e[+-]\d+)?")
SCRIPT = '<script>document.title = "ran"</script><img src=x onerror="document.title=\'ran\'">'
HOSTILE = SCRIPT, "\u202egnol\u202c \x1b[31m", "x" * 100_000
MEGABYTE = 1_000_000


@pytest.fixture(scope="module")
def browser():
    """Chromium, of the system where it has one, else playwright's own."""
    with playwright.sync_playwright() as engines:
        place = next(filter(None, map(shutil.which, BROWSERS)), None)
        alone = ["--no-sandbox"] if os.geteuid() == 0 else []  # which root has none
        try:
            found = engines.chromium.launch(executable_path=place, args=alone)
        except playwright.Error as error:
            pytest.skip(f"does not build: no Chromium: {str(error).splitlines()[0]:.80}")
        yield found
        found.close()


def spoil(value, words):
    """Every text of the figures is somebody else's."""
    if isinstance(value, dict):
        return {key: spoil(each, words) for key, each in value.items()}
    if isinstance(value, list):
        return [spoil(each, words) for each in value]
    return words if isinstance(value, str) else value


@pytest.fixture(scope="module")
def figures(optimized):
    return check_report(json.loads((optimized.out / "report.json").read_text()), "report.json")


@pytest.fixture(scope="module")
def files(figures, tmp_path_factory):
    """Pages: of the run, and of the run with hostile words in every place."""
    room = tmp_path_factory.mktemp("pages")
    every = {"report": figures} | {
        f"hostile{at}": spoil(copy.deepcopy(figures), words) for at, words in enumerate(HOSTILE)
    }
    for name, found in every.items():
        write_html(check_report(found, name), room / f"{name}.html")
    return {name: room / f"{name}.html" for name in every}


@pytest.fixture
def shown(browser, files):
    """Opens a page at a width: the page, and what it asked for and complained of."""
    rooms = []

    def show(name, width, **options):
        room = browser.new_context(viewport={"width": width, "height": 900}, **options)
        rooms.append(room)
        page, noticed = room.new_page(), []
        page.on("console", lambda said: noticed.append(said.text))
        page.on("pageerror", lambda error: noticed.append(str(error)))
        page.on("dialog", lambda asked: (noticed.append(asked.message), asked.dismiss()))
        page.on("request", lambda asked: noticed.append(asked.url) if asked.url != files[name].as_uri() else None)
        page.goto(files[name].as_uri())
        return page, noticed

    yield show
    for room in rooms:
        room.close()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["report", "hostile0", "hostile1", "hostile2"])
def test_nothing_is_asked_and_nothing_complains(shown, files, name, width):
    """The page is no wider than the screen: tables scroll by themselves."""
    page, noticed = shown(name, width)
    assert not noticed and files[name].stat().st_size < MEGABYTE
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.title().startswith("opmatrix: ") and page.locator("script, img, iframe, object, link").count() == 0


@pytest.mark.parametrize("width", [320, 420, 600, 800, 1400])
def test_no_column_is_cut(shown, width):
    """Every cell of every table is within the screen."""
    page, _ = shown("report", width)
    assert page.locator(".scroll").count() > 5
    beyond = "[...document.querySelectorAll('.scroll')].map(each => each.scrollWidth - each.clientWidth)"
    assert max(page.evaluate(beyond)) <= 0


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["report", "hostile2"])
def test_axe_finds_nothing_serious(shown, name, width):
    page, _ = shown(name, width, bypass_csp=True)  # or axe itself could not run
    found = axe.Axe().run(page).response
    assert len(found["passes"]) > 10, "it looked"
    serious = [
        (each["id"], [node["html"][:120] for node in each["nodes"]][:3])
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
    ]
    assert not serious


@pytest.mark.parametrize("scripts", [True, False])
def test_every_figure_of_the_text_is_seen(shown, figures, scripts):
    """And a page whose figures are others is seen, too. Without scripts tables remain."""
    page, _ = shown("report", 1400, java_script_enabled=scripts)
    seen = {*NUMBER.findall(page.locator("main").inner_text())}
    wanted = NUMBER.findall(printed(figures))
    assert len(wanted) > 60 and not [each for each in wanted if each not in seen]
    assert "98.76" not in seen and page.locator("table").count() == page.locator("table >> visible=true").count() > 5


def test_words_of_files_are_read_as_they_are(shown):
    """The script is there to read; what turns letters round is spelled; what is long is cut, which is said."""
    page, _ = shown("hostile0", 400)
    assert SCRIPT in page.locator("h1").inner_text() and page.title() != "ran"
    page, _ = shown("hostile1", 400)
    assert r"\u202egnol\u202c \x1b[31m" in page.locator("h1").inner_text()
    page, _ = shown("hostile2", 400)
    assert "(100,000 letters)" in page.locator("h1").inner_text()


def test_it_prints(shown):
    """On paper nothing scrolls: each table is as wide as what it holds lets it be seen, on more than one page."""
    page, _ = shown("report", 1400)
    page.emulate_media(media="print")
    assert page.evaluate(
        "[...document.querySelectorAll('.scroll')].every(e => getComputedStyle(e).overflowX == 'visible')"
    )
    assert page.pdf().startswith(b"%PDF")
