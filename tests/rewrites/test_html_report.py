"""The page says what the text says; whatever files say stays text; a report that no run wrote is refused by name."""

import copy
import json
import re
from html.parser import HTMLParser

import pytest

from formats.core.errors import InputError
from rewrites.report.pages.html_report import html_report, page_place, write_html
from rewrites.report.pages.kept_report import check_report, read_kept
from rewrites.report.pages.repeated import repeat_commands
from rewrites.report.results import printed

NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:e[+-]\d+)?")
HOSTILE = "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "\u202egnol\u202c \x1b[31m", "x" * 100_000
MEGABYTE = 1_000_000
TERMS = {"steps": 1, "of": 9, "share": 0.5, "measured": True, "kinds": []}  # as 0.17.0 writes them


class Reader(HTMLParser):
    """Tags with their attributes, and the text that is read."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.words, self.open = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-1:]}"
        self.open.pop()

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)


@pytest.fixture(scope="module")
def found(optimized):
    return json.loads((optimized.out / "report.json").read_text())


@pytest.fixture(scope="module")
def read(found):
    return Reader(html_report(found))


def test_every_figure_of_the_text_is_on_the_page(found, read):
    """Seconds of phases are sums that grow while the report is saved; these are read from one set of figures, too."""
    said = " ".join(" ".join(read.words).split())
    numbers = [each for each in NUMBER.findall(printed(found)) if each not in NUMBER.findall(said)]
    assert numbers == []


def test_figures_of_operators(found, read):
    """The import and the chosen program, by what is priced; what is measured inside adds up to a run."""
    said = " ".join(read.words)
    for which in ("before", "after"):
        for row in found["operators"][which]:
            assert row["what"] in said and f"{1e3 * row['measured_s']:.2f}" in said
    whole = sum(row["measured_s"] for row in found["operators"]["after"])
    assert 0 < whole < 100 * found["front"][found["chosen"]]["measured_s"]


def test_it_asks_no_network_and_runs_no_script(found, read):
    text = html_report(found)
    assert not {tag for tag, _ in read.tags} & {"script", "link", "img", "iframe", "object", "embed", "form", "base"}
    assert not [key for _, given in read.tags for key in given if key.startswith("on") or key in ("src", "href")]
    assert set(re.findall(r"\w+://[^\"'<> ]+", text)) == {"http://www.w3.org/2000/svg"}
    assert "default-src 'none'" in text and len(text.encode()) < MEGABYTE and read.open == []


def test_who_does_not_see_reads_it(read):
    """Language, a title, one heading of the first rank, a name for every picture, heads for every table."""
    tags = [tag for tag, _ in read.tags]
    assert dict(read.tags)["html"]["lang"] == "en" and tags.count("h1") == 1 and tags.count("main") == 1
    assert tags.count("table") == tags.count("caption") == tags.count("thead")
    assert all(given.get("scope") in ("col", "row") for tag, given in read.tags if tag == "th")
    for tag, given in read.tags:
        if tag == "svg":
            assert given["role"] == "img" and given["aria-labelledby"] in ("front-title", "spectra-title")
        if given.get("role") == "region":
            assert given["tabindex"] == "0" and given["aria-label"]


@pytest.mark.parametrize("words", HOSTILE, ids=["script", "attribute", "turned", "long"])
def test_what_files_say_stays_text(found, words):
    """Every word of the figures is somebody else's."""

    def spoilt(value):
        if isinstance(value, dict):
            return {key: spoilt(each) for key, each in value.items()}
        if isinstance(value, list):
            return [spoilt(each) for each in value]
        return words if isinstance(value, str) else value

    bad = spoilt(copy.deepcopy(found))
    bad["front"][0]["methods"] = {words: 3}
    page = html_report(check_report(bad, "report.json"))
    told = Reader(page)
    assert {tag for tag, _ in told.tags} <= {tag for tag, _ in Reader(html_report(found)).tags}
    assert not [key for _, given in told.tags for key in given if key.startswith("on")]
    assert "\x1b" not in page and len(page.encode()) < MEGABYTE and told.open == []
    assert words.strip("\u202e")[:4] in " ".join(told.words)


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda r: r.pop("search"), "it has no search"),
        (lambda r: r.update(front=[]), "front is .*: no list of 1 to 100"),
        (lambda r: r["front"][0].update(predicted_s="fast"), r"front\[0\].predicted_s is 'fast': no number"),
        (lambda r: r["front"][0].update(predicted_s=1e300), r"front\[0\].predicted_s is 1e\+300: no number of a run"),
        (lambda r: r["front"][0].update(predicted_s=-1.0), r"front\[0\].predicted_s is -1: below 0"),
        (lambda r: r["baseline"].update(measured_s=-1e-9), r"baseline.measured_s is -1e-09: below 0"),
        (lambda r: r["front"][-1].update(measured_bytes=-1), r"front\[\d\].measured_bytes is -1: below 0"),
        (lambda r: r["phases"].update(search=-0.1), r"phases\['search'\] is -0.1: below 0"),
        (lambda r: r.update(wall_s=-1), "wall_s is -1: below 0"),
        (lambda r: r["steps"][0].update(quartiles_s=[-1, 2]), r"steps\[0\].quartiles_s\[0\] is -1: below 0"),
        (lambda r: r["spectra"]["weights"][0].update(curve=[]), r"spectra.weights\[0\].curve is .*: no list"),
        (lambda r: r.update(chosen=99), "chosen is 99: the front has"),
        (lambda r: r.update(model=3), "model is 3: no text"),
        (lambda r: r.update(bound={"seconds": 1.0, "gap": None}), "bound.gap is None, though bound.seconds was proved"),
        (lambda r: r.update(terms=TERMS | {"places": [3]}), r"terms.places\[0\] is 3: no text"),
        (
            lambda r: (r.pop("bound"), r["versions"].update(opmatrix="0.1.0")),
            r"it has no bound \(opmatrix 0.1.0 wrote it",
        ),
    ],
)
def test_a_report_that_no_run_wrote(found, change, said):
    bad = copy.deepcopy(found)
    change(bad)
    with pytest.raises(InputError, match=f"report.json: {said}"):
        check_report(bad, "report.json")


def test_terms_of_an_older_report(found):
    """What it leaves out is none: the places at which functions could not be followed."""
    older = check_report({key: value for key, value in found.items() if key != "operators"} | {"terms": TERMS}, "old")
    assert older["operators"] is None and "1 step is evaluated as a term" in html_report(older)


def test_spectra_are_drawn_and_listed(found, read):
    """Every weight that was sampled has a line and a row, whose figures are those of its matrix."""
    rows, said = found["spectra"]["weights"], " ".join(read.words)
    assert 4 <= len(rows) <= found["spectra"]["of"] and [tag for tag, _ in read.tags].count("polyline") == len(rows)
    for row in rows:
        assert row["name"] in said and f"{row['largest']:.3g}" in said and row["curve"][0] == 1
        assert 1 <= row["stable"] <= row["effective"] <= min(row["shape"]) and row["tail_10"] <= row["tail_1"]
    older = check_report({key: value for key, value in found.items() if key != "spectra"}, "old")
    assert "Spectra" not in html_report(older)


def test_a_report_that_is_cut_short(optimized, tmp_path):
    file = tmp_path / "report.json"
    file.write_text((optimized.out / "report.json").read_text()[:300])
    with pytest.raises(InputError, match="not JSON"):
        read_kept(tmp_path)
    with pytest.raises(InputError, match="nothing: No such file"):
        read_kept(tmp_path / "nothing")


def test_where_it_is_written(found, tmp_path):
    """An older page is replaced; another file is not, and no half of a page is left."""
    page, other = tmp_path / "report.html", tmp_path / "other.html"
    write_html(found, page)
    page_place(page)
    other.write_text("mine")
    with pytest.raises(InputError, match="it exists, and is no page of a report"):
        page_place(other)
    with pytest.raises(InputError, match=r"a page's name ends in \.html"):
        page_place(tmp_path / "report.txt")
    assert [each.name for each in sorted(tmp_path.iterdir())] == ["other.html", "report.html"]


def test_the_command_that_repeats_it(found):
    """Words of a shell, whatever they hold."""
    [first, *_] = repeat_commands({**found, "model": "a b; rm -rf", "without": ["spread"]})
    assert first.startswith("opmatrix optimize 'a b; rm -rf' --error 0.2") and first.endswith("--without spread")
