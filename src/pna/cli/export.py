"""`pna export`: the models of a run in a file for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pna.cli import options
from pna.cli.progress import show_waiting
from pna.cli.shared import check_device, errors, print_line


@options.explained
def export(
    run: Path,
    *,
    format: str,
    out: Annotated[Path | None, typer.Option("--out", "-o")] = None,
    member: int | None = None,
    max_nodes: int | None = None,
    device: str = "cpu",
    force: options.Force = False,
) -> None:
    r"""Write the models of a run to a file that other programs can run without pna.

    The file predicts what pna predict does: the mean of the members, in the units of the targets.
    It takes graphs of any size, and describes its inputs and outputs.

    Args:
        run: Folder of a run, as pna train wrote it.
        format: Format of the file. Values: torch (a program of torch.export), aoti (compiled by
            AOTInductor for this machine, for C++ or Python), onnx (needs pna\[onnx]).
        out: File to write. Default: model.pt2, model.aoti.pt2 or model.onnx in the run's folder.
        member: Only this member, counted from 0. Default: the mean of all members.
        max_nodes: The most nodes that a graph will have. Needed, and allowed, only for models whose
            number of steps depends on the graph: recurrent ones, and those with set2set.
            Larger graphs get NaN. Default: none.
        device: Device on which the file will be run: cpu, cuda or cuda:N. onnx is for all devices.
    """
    from pna.train.exporting import export as export_run

    with errors() as console:
        check_device(device)
        with show_waiting(console):
            path = export_run(
                run, format, out, member, max_nodes=max_nodes, device=device, force=force
            )
        print_line(console, f"wrote {path}")
