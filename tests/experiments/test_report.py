"""The report as a document: well-formed, self-contained, complete, legible; in a browser where there is one."""

import re
import shutil
import struct
import zlib
from html.parser import HTMLParser

import pytest

from fade_sim.experiments import html

VOID = {"meta", "link", "img", "br"}


def png(width=2400, height=900) -> bytes:
    """A blank picture, as wide as the figures are."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = zlib.compress(b"".join(b"\0" + b"\xdd" * width for _ in range(height)))
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def number(name, value=0.5, low=None, high=None, **more):
    return {"name": name, "value": value, "low": low, "high": high, "seeds": 0, "predicted": None, "prototype": "",
            "note": "", **more}


def entry(title, verdict, numbers=(), conditions=(), limits=("few prompts",), differs=("3 of 4 agree",)):
    return {"claim": {"name": "n", "title": title, "text": f"{title}: the text & <more>", "source": "arXiv 2607.01490",
                      "holds_if": "the excess is above .1"},
            "verdict": verdict, "conditions": list(conditions), "because": f"Because of {title}.",
            "numbers": list(numbers), "limits": list(limits), "differs": list(differs)}


LONG = "train.mode=expected/world.solve_rates=" + "a_very_long_word_without_any_blank" * 4
SCORES = {"mode": "full", "version": "1.0", "source": "abc", "claims": {
    "one": entry("Claim one", "holds", [number("exact", 1 / 3, predicted=1 / 3)]),
    "two": entry(f"Claim two {LONG}", "holds under", conditions=[LONG, "stale"], numbers=[
        number(LONG, 0.12345, 0.1, 0.15, seeds=10, predicted=0.1, prototype=".12", note="a note of many words " * 9)]),
    "three": entry("Claim three", "does not hold here", [number("none", None), number("infinite", "inf")], limits=()),
}}
FIGURES = {name: png() for name in SCORES["claims"]}
PAGE = html.report(SCORES, FIGURES)


class Checked(HTMLParser):
    """Every tag closed in order; ids, links and pictures collected."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.ids, self.links, self.images, self.text, self.kinds = [], [], [], [], [], []

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.kinds.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        self.ids += [attrs["id"]] if "id" in attrs else []
        self.links += [attrs[key] for key in ("href", "src") if key in attrs]
        self.images += [attrs] if tag == "img" else []

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, (tag, self.getpos())

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def checked():
    parser = Checked()
    parser.feed(PAGE)
    parser.close()
    return parser


def test_it_is_well_formed_and_needs_nothing_from_outside(checked):
    assert checked.open == []
    assert len(checked.ids) == len(set(checked.ids))
    for link in checked.links:
        assert link.startswith("data:") or (link[0] == "#" and link[1:] in checked.ids), link[:60]
    assert "script" not in checked.kinds and not re.search(r"https?:|@import|url\(", PAGE)
    assert checked.kinds.count("h1") == 1 and checked.kinds.count("h2") == 4  # three claims, and their list


def test_everything_of_a_score_is_in_it(checked):
    text = " ".join("".join(checked.text).split())
    for scored in SCORES["claims"].values():
        claim = scored["claim"]
        for part in (claim["title"], claim["text"], claim["source"], claim["holds_if"], scored["verdict"],
                     *scored["conditions"], *scored["limits"], *scored["differs"],
                     *(n["name"] for n in scored["numbers"])):
            assert part in text, part
        assert text.count(scored["because"]) == 2  # in the list at the top, and with its numbers
    assert "Of 3 claims: 1 holds, 1 holds only under conditions, 1 does not hold here." in text
    assert checked.images[0]["alt"].split(".")[0] == "Figure of the claim: Claim one"
    assert (checked.images[0]["width"], checked.images[0]["height"]) == ("2400", "900")


@pytest.mark.parametrize("given, shown", [
    # half-width .025: two digits of it are .025, so 3 decimals
    (number("x", 0.12345, 0.1, 0.15, seeds=10, predicted=0.1), ["0.123", "0.100 to 0.150", "10", "0.100"]),
    # half-width 120: none
    (number("x", -1234.5, -1354.5, -1114.5, seeds=3), ["\u22121234", "\u22121354 to \u22121114", "3"]),
    (number("x", 1 / 3), ["0.3333", "exact"]),
    # half-width .02, so 2 digits of it are .020; a rounded zero has no sign
    (number("x", -0.02, -0.04, -0.0001, seeds=2), ["\u22120.020", "\u22120.040 to 0.000", "2"]),
    (number("x", "inf"), ["inf", "exact"]),
    (number("x", 2e-16), ["2e\u221216", "exact"]),
    (number("x", 0.5, 0.5, 0.5, seeds=2), ["0.5", "0.5 to 0.5", "2"]),
])
def test_numbers_show_as_many_digits_as_their_interval_allows(given, shown):
    cells = re.findall(r'<td class="[^"]*">([^<]*)</td>', html.numbers_table([given], "c"))
    assert cells == shown


def test_columns_that_no_number_fills_are_left_out():
    assert "prototype" not in html.numbers_table([number("x")], "c")
    assert "prototype" in html.numbers_table([number("x"), number("y", prototype=".1")], "c")


def test_many_numbers_are_folded_by_regime_with_the_first_in_sight():
    numbers = [number(f"regime {r}: quantity {q}", r + q / 100, r, r + 0.02, seeds=3)
               for r in (1, 2) for q in range(15)]
    page = html.numbers_of({**entry("Many", "holds", [*numbers, number("alone")])})
    summaries = re.findall(r"<summary>(.*?)</summary>", page)
    assert [re.sub("<.*?>", "", text) for text in summaries] == [
        "regime 1: quantity 0 1.000 (1.000 to 1.020)", "regime 2: quantity 0 2.000 (2.000 to 2.020)",
        "Others: alone 0.5"]
    assert page.count("<tr>") == 3 + 31 and page.count(">quantity 14<") == 2


def luminance(color: str) -> float:
    """WCAG 2: relative luminance of #rrggbb."""
    parts = [int(color[i:i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_stands_out_from_the_page(scheme):
    colors = dict(re.findall(r"--(\w+): (#\w{6})", re.findall(r":root \{(.*?)\}", html.STYLE, re.S)[scheme]))
    for ink in ("ink", "soft", "yes", "partly", "no", "link"):
        for ground in ("page", "box"):
            light, dark = sorted((luminance(colors[ink]), luminance(colors[ground])), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (ink, ground)


# --- in a browser ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install -e '.[browser]'")
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
    with playwright.sync_playwright() as context:
        try:
            running = context.chromium.launch(executable_path=found, args=["--no-sandbox"])
        except playwright.Error as error:
            pytest.skip(f"no browser to start: {str(error).splitlines()[0]}")
        yield running
        running.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_a_phone_and_a_desktop_show_it(browser, tmp_path, width, scheme):
    (tmp_path / "report.html").write_text(PAGE, encoding="utf-8")
    page = browser.new_page(viewport={"width": width, "height": 844}, color_scheme=scheme)
    said, asked = [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url.partition(":")[0]))
    page.goto((tmp_path / "report.html").as_uri())
    page.screenshot(path=tmp_path / "report.png", full_page=True)
    assert (tmp_path / "report.png").stat().st_size > 10_000
    assert said == [] and set(asked) <= {"file", "data"}
    assert page.evaluate("document.documentElement.scrollWidth") == width  # the page itself never scrolls sideways
    boxes = page.evaluate("[...document.querySelectorAll('div.scroll')].map(b => [b.scrollWidth, b.clientWidth])")
    assert len(boxes) == 3 and all(client <= width for _, client in boxes)
    if width == 390:
        assert boxes[1][0] > boxes[1][1]  # the wide table scrolls in its own box
    assert page.evaluate("[...document.images].every(i => i.complete && i.naturalWidth == 2400)")
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", background)[:3])) < 200) == (scheme == "dark")
    page.click("text=Claim one >> nth=0")
    assert page.url.endswith("#one")
    page.close()
