"""The table of docs/kernels.md: what each fast path is, and what it buys.

docs.write_text(with_table(docs.read_text(), results))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pna.fast_paths import FAST_PATHS, FastPath

_BEGIN, _END = "<!-- table: begin -->", "<!-- table: end -->"
_DEVICES = {"cuda": "GPU", "cpu": "CPU"}

Lines = Sequence[Mapping[str, str]]


def with_table(page: str, results: Lines) -> str:
    """A page with the table between its two marks written anew."""
    before, begin, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"got a page without {_BEGIN} and {_END}, expected the table between them")
    return f"{before}{_BEGIN}\n{table(results)}\n{_END}{after}"


def table(results: Lines) -> str:
    """Markdown: a line for each fast path and device."""
    head = ["path", "on", "without it", "also off", "largest gain", "smallest gain", "rows"]
    lines = [head, ["---"] * len(head)]
    for name, path in FAST_PATHS.items():
        for device in (device for device in _DEVICES if device in path.devices):
            lines.append(_cells(name, path, device, results))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _cells(name: str, path: FastPath, device: str, results: Lines) -> list[str]:
    own = [r for r in results if r["path"] == name and r["device"] == device]
    measured = sorted((r for r in own if r["gain"]), key=lambda r: float(r["gain"]))
    also = [n for n in path.needed_by if device in FAST_PATHS[n].devices]
    what = [f"`{name}`", _DEVICES[device], path.replaces, ", ".join(f"`{n}`" for n in also)]
    if measured:
        return [*what, _gain(measured[-1]), _gain(measured[0]), str(len(measured))]
    if any(r["device"] == device for r in results):
        return [*what, "fails" if own else "no measured row takes it", "", ""]
    return [*what, "not measured yet", "", ""]


def _gain(result: Mapping[str, str]) -> str:
    row = result["row"].removesuffix(", synthetic graphs")
    return f"{float(result['gain']):.2f}× ({row})"
