"""The page as a browser shows it."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pna.report.experiments import page
from pna.report.read import ExperimentResult
from tests.report.made import make

pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'pna[plot]'")
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
CHROMIUM = next((found for name in NAMES if (found := shutil.which(name))), None)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="needs Chromium to open the page: apt-get install chromium"
)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars", "--window-size=1400,1000",
)  # fmt: skip
PHONE, DESKTOP = 390, 1280

#: Runs at the end of the page, and leaves what it has seen with the one around it.
MEASURE = """<script>
const size = e => { const b = e.getBoundingClientRect(); return [b.width, b.height] };
const all = (what, f) => [...document.querySelectorAll(what)].map(f);
const seen = {
  width: innerWidth, scrolls: document.documentElement.scrollWidth,
  background: getComputedStyle(document.body).backgroundColor,
  ink: getComputedStyle(document.body).color,
  labels: all('svg text', e => getComputedStyle(e).fill),
  tables: all('table', size), figures: all('figure svg', size), sections: all('section', size),
  boxes: all('div.wide', e => [e.clientWidth, e.scrollWidth]),
  paragraphs: all('p, li, figcaption, h1, h2', e => e.getBoundingClientRect().right),
  folded: all('details dl', e => e.checkVisibility()),
  text: document.body.innerText,
  loaded: performance.getEntriesByType('resource').map(e => e.name),
};
parent.document.getElementById('measured').textContent = JSON.stringify(seen);
</script>"""
#: Windows have a least width, greater than that of a phone; frames have none.
AROUND = (
    "<!doctype html><style>:root {{ color-scheme: light dark }}</style><pre id=measured></pre>"
    '<iframe style="border: 0; width: {width}px; height: 900px" srcdoc="{page}"></iframe>'
)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page, and what measures it."""
    folder = tmp_path_factory.mktemp("results")
    folders = [make(folder / "a", "multitask"), make(folder / "b", "extrapolation", quick=True)]
    text = page([ExperimentResult.read(folder) for folder in folders])
    return text.replace("</body>", f"{MEASURE}</body>")


def open_page(text: str, width: int, folder: Path, *flags: str) -> dict[str, Any]:
    """What the page measures where it has some width."""
    assert CHROMIUM is not None
    folder.mkdir(exist_ok=True)
    path = folder / "around.html"
    path.write_text(AROUND.format(width=width, page=html.escape(text)), encoding="utf-8")
    done = subprocess.run(
        [CHROMIUM, *FLAGS, f"--user-data-dir={folder / 'profile'}", *flags, "--dump-dom",
         path.as_uri()],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    found = re.search(r'<pre id="measured">(.+?)</pre>', done.stdout, re.DOTALL)
    assert found, f"Chromium did not show the page: {done.stderr[-2000:]}"
    seen: dict[str, Any] = json.loads(html.unescape(found[1]))
    assert seen["width"] == width
    return seen


@pytest.mark.slow
def test_everything_is_shown_and_nothing_is_fetched(shown: str, tmp_path: Path) -> None:
    seen = open_page(shown, DESKTOP, tmp_path)
    assert seen["loaded"] == []
    assert len(seen["tables"]) == 4 and len(seen["figures"]) == 3 and len(seen["sections"]) == 2
    assert all(width > 300 and height > 100 for width, height in seen["tables"])
    assert all(width > 400 and height > 200 for width, height in seen["figures"])
    assert seen["folded"] and not any(seen["folded"])
    assert "PNA has the lowest error on every task" in seen["text"]
    assert "Quick run." in seen["text"]
    assert seen["scrolls"] <= DESKTOP


def test_a_phone_scrolls_tables_and_not_text(shown: str, tmp_path: Path) -> None:
    seen = open_page(shown, PHONE, tmp_path)
    assert seen["scrolls"] <= PHONE
    assert all(right <= PHONE for right in seen["paragraphs"])
    assert all(visible <= PHONE for visible, _ in seen["boxes"])
    assert any(whole > visible for visible, whole in seen["boxes"])
    assert all(width > 300 for width, _ in seen["figures"])


@pytest.mark.slow
def test_a_dark_page_is_legible(shown: str, tmp_path: Path) -> None:
    light = open_page(shown, PHONE, tmp_path / "light")
    dark = open_page(shown, PHONE, tmp_path / "dark", "--blink-settings=preferredColorScheme=0")
    assert light["background"] == "rgb(255, 255, 255)"
    assert luminance(dark["background"]) < 0.05
    for seen in (light, dark):
        assert contrast(seen["ink"], seen["background"]) > 7
        assert min(contrast(label, seen["background"]) for label in seen["labels"]) > 3


def luminance(colour: str) -> float:
    """Of a colour as a browser writes it, by the definition of WCAG."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
