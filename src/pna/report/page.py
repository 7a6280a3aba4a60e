"""A page that is one file: it needs no other, and no network. Here is how it looks."""

from __future__ import annotations

import io
import re
from html import escape
from typing import TYPE_CHECKING

from pna.report.figures import APART, FAINT, INK
from pna.report.panels import NARROW

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Colours of figures, and what they are on a dark page; others stay as they are.
_DARK = {
    INK: "#e6e9ed", FAINT: "#a4adb8", APART: "#63aeea", "#ffffff": "#15181c", "#7c8794": "#98a3b0",
    "#b3530a": "#ec9a58", "#3a8a5c": "#5fbb87", "#8a4f9e": "#c48ad8", "#a3862a": "#d3b452",
    "#4f4a45": "#bdb6ae",
}  # fmt: skip


def document(title: str, body: str) -> str:
    """The whole page; `title` is text, `body` is HTML."""
    light, dark = (
        "".join(f"--{a[1:]}:{b};" for a, b in colours.items())
        for colours in ({colour: colour for colour in _DARK}, _DARK)
    )
    style = _STYLE.replace("/*light*/", light).replace("/*dark*/", dark)
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n<body>\n{body}\n</body>\n</html>\n"
    )


def figure(drawn: Figure, caption: str, name: str, adapts: bool = True) -> str:
    """A figure with its caption, as wide as there is room, scrolled by itself where it is broad.

    `name` is of this figure alone on the page. One that `adapts` is dark on a dark page, others
    are on white paper.
    """
    kinds = [kind for kind, is_so in (("broad", drawn.get_figwidth() > NARROW),
                                      ("paper", not adapts)) if is_so]  # fmt: skip
    return (
        f'<figure class="{" ".join(kinds)}"><div class=wide>{_inline(drawn, caption, name, adapts)}'
        f"</div><figcaption>{escape(caption)}</figcaption></figure>"
    )


def _inline(drawn: Figure, caption: str, name: str, adapts: bool) -> str:
    """The figure as an <svg>, its text as text."""
    from matplotlib import rc_context

    out = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        drawn.savefig(out, format="svg", metadata={"Date": None}, transparent=True)
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # Groups of all figures have the same names, which nothing refers to.
    text = re.sub(r' id="[a-z0-9._]+_\d+"', "", text)
    if adapts:
        text = re.sub("|".join(_DARK), lambda found: f"var(--{found[0][1:]})", text)
    return text.replace("<svg", f'<svg role="img" aria-label="{escape(caption)}"', 1)


_STYLE = """
:root { color-scheme: light dark; --ink: #22262b; --faint: #59616b; --page: #fff; --line: #dde1e6;
  --ours: #e9f2fb; --soft: #f4f6f8; --link: #0b5fa5; --good: #1c6b41; --bad: #a3361f;
  --open: #6b5a12; --warn: #fdf3d6; /*light*/ }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ed; --faint: #a4adb8; --page: #15181c;
  --line: #343a42; --ours: #172c42; --soft: #1d2126; --link: #7cbcf2; --good: #6fcf97;
  --bad: #f08a75; --open: #e0c760; --warn: #3a3115; /*dark*/ } }
* { box-sizing: border-box }
body { margin: 0 auto; padding: 1.2rem 1.2rem 4rem; max-width: 70rem; background: var(--page);
  color: var(--ink); font: 1rem/1.55 system-ui, sans-serif; overflow-wrap: break-word }
h1 { font-size: clamp(1.4rem, 1.1rem + 1.4vw, 2rem); line-height: 1.2; margin: .6rem 0 1rem }
h2 { font-size: clamp(1.2rem, 1rem + .8vw, 1.5rem); line-height: 1.25; margin: 0 0 .4rem }
h3 { font-size: 1rem; margin: 1.8rem 0 .5rem }
p, li, dl, h1, h2, nav { max-width: 46rem }
a { color: var(--link) }
section:not(:first-child) { border-top: 1px solid var(--line); margin-top: 3rem;
  padding-top: 1.6rem }
nav ol { padding-left: 1.4rem; margin: .4rem 0 }
nav li { margin: .35rem 0 }
nav small { color: var(--faint) }
.quick { background: var(--warn); border-left: .3rem solid var(--open); padding: .5rem .8rem;
  border-radius: .2rem }
.facts { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; font-size: .92rem;
  margin: 1rem 0 }
.facts dt { color: var(--faint) }
.facts dd { margin: 0; overflow-wrap: anywhere }
.claims { list-style: none; padding: 0; margin: 0 }
.claims li { padding: .55rem 0; border-bottom: 1px solid var(--line) }
.claims b { display: inline-block; margin-right: .4rem }
.claims small { display: block; color: var(--faint) }
.holds b { color: var(--good) } .fails b { color: var(--bad) } .open b { color: var(--open) }
.wide { overflow-x: auto }
table { border-collapse: separate; border-spacing: 0; font-variant-numeric: tabular-nums;
  font-size: .85rem; margin: .4rem 0 1.2rem; min-width: min(100%, 30rem) }
caption { text-align: left; font-weight: bold; font-size: .95rem; padding: .4rem 0;
  white-space: nowrap }
th, td { padding: .22rem .42rem; text-align: right; white-space: nowrap }
.word { text-align: left }
th:first-child { padding-left: 0; position: sticky; left: 0; background: var(--page) }
thead th { color: var(--faint); font-weight: normal;
  white-space: normal; vertical-align: bottom;  border-bottom: 1px solid var(--line) }
tbody th { font-weight: normal }
tbody td.word { color: var(--faint) }
tr.first > * { border-top: 1px solid var(--line) }
tr.ours > * { background: var(--ours) }
tr.ours > th { background: linear-gradient(var(--ours), var(--ours)), var(--page);
  font-weight: bold; padding-left: .4rem }
figure { margin: 1.4rem 0 }
figure.paper { background: #fff; border-radius: .5rem; padding: .6rem }
figure.paper figcaption { color: #59616b }
svg { width: 100%; height: auto; display: block; max-width: 37rem }
.broad svg { min-width: 42rem; max-width: 60rem }
svg text { font-family: system-ui, sans-serif !important }
figcaption { color: var(--faint); font-size: .9rem; max-width: 46rem; margin-top: .3rem }
details { margin: .6rem 0; font-size: .92rem }
details details { margin-left: 1rem }
summary { cursor: pointer; color: var(--link) }
code { font-size: .92em; overflow-wrap: anywhere }
.source { color: var(--faint); font-size: .88rem }
@media (max-width: 40rem) { th:first-child { white-space: normal; min-width: 6rem; max-width: 8rem }
  caption { white-space: normal; max-width: 80vw } }
@media print { details, nav { display: none } figure, table { break-inside: avoid } }
"""
