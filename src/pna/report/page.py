"""Pages of one file each: they need no other file, and no network."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from pna.report.colours import APART, FAINT, INK, NARROW

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Colours of figures, and their counterparts on a dark page. Other colours stay as they are.
_DARK = {
    INK: "#e6e9ed", FAINT: "#a4adb8", APART: "#63aeea", "#ffffff": "#15181c", "#7c8794": "#98a3b0",
    "#b3530a": "#ec9a58", "#3a8a5c": "#5fbb87", "#8a4f9e": "#c48ad8", "#a3862a": "#d3b452",
    "#4f4a45": "#bdb6ae",
}  # fmt: skip


_TEMPLATES = Environment(
    loader=PackageLoader("pna.report"), autoescape=True, trim_blocks=True, undefined=StrictUndefined
)


def render(template: str, **values: Any) -> str:
    """HTML of a file in `templates`. Values are escaped, unless `render` itself returned them."""
    return Markup(_TEMPLATES.get_template(template).render(values))


def render_text(template: str, **values: Any) -> str:
    """Text of a file in `templates`; values are not escaped."""
    return _TEMPLATES.overlay(autoescape=False).get_template(template).render(values)


def document(title: str, body: str) -> str:
    """The whole page; `title` is text, `body` is HTML."""
    light, dark = (
        "".join(f"--{name[1:]}:{colour};" for name, colour in colours.items())
        for colours in ({name: name for name in _DARK}, _DARK)
    )
    return str(render("page.html", title=title, body=Markup(body), light=light, dark=dark))


def figure(drawn: Figure, caption: str, name: str, adapts: bool = True) -> str:
    """A figure with its caption, as wide as there is room; a broad one scrolls by itself.

    `name` must be unique on the page. A figure that `adapts` is dark on a dark page; others keep a
    white background.
    """
    svg = _inline(drawn, str(escape(caption)), name, adapts)
    broad = drawn.get_figwidth() > NARROW
    return render("figure.html", svg=Markup(svg), caption=caption, broad=broad, adapts=adapts)


def _inline(drawn: Figure, label: str, name: str, adapts: bool) -> str:
    """The figure as an <svg>, its text as text."""
    from matplotlib import rc_context

    out = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        drawn.savefig(out, format="svg", metadata={"Date": None}, transparent=True)
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # Groups of all figures have the same names, which nothing refers to.
    text = re.sub(r' id="([a-z0-9._]+|[A-Z][A-Za-z]+)_\d+"', "", text)
    if adapts:
        text = re.sub("|".join(_DARK), lambda found: f"var(--{found[0][1:]})", text)
    return text.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
