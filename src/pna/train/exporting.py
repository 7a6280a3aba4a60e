"""Files with the models of a run for programs that do not have this package, or no Python."""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim, ExportedProgram

from pna.files import check_plain, replacing
from pna.names import lookup
from pna.ops.aggregators import Aggregator
from pna.torch_internals import compile_package, type_check
from pna.train.prediction import Ensemble
from pna.train.program import Program
from pna.train.run import Run, load
from pna.waiting import waiting_for

#: Where files hold the description of their inputs and outputs, as JSON.
KEY = "pna"

#: The sizes for which a program is traced; it then takes all.
_TRACED = {"nodes": 5, "edges": 7, "graphs": 3}


def export(
    run: Run | str | Path,
    format: str,
    out: str | Path | None = None,
    member: int | None = None,
    *,
    max_nodes: int | None = None,
    device: str | torch.device = "cpu",
    force: bool = False,
    aggregators: Sequence[type[Aggregator]] = (),
) -> Path:
    """Write the models of a run to a file that needs no part of this package; returns its path.

    Its results are those of `predict`: the mean over the members, in the units of the targets.
    They are computed by plain operations, in the precision of the weights, for any number of
    nodes, edges and graphs.

    Args:
        run: a run or its folder.
        format: "torch" for a program of `torch.export`, "aoti" for a package compiled by
            AOTInductor for the processor of this machine, "onnx" for ONNX, which needs
            ``pna[onnx]``.
        out: the file. Default: in the folder of the run, ``model.pt2``, ``model.aoti.pt2`` or
            ``model.onnx``.
        member: export this member only. Default: all that had a finite validation loss.
        max_nodes: the most nodes that a graph will have. Models whose number of steps depends on
            the graph need it: recurrent ones, and those with Set2Set. Predictions for larger
            graphs are NaN.
        device: the device on which the program will run. An ONNX file is for all devices.
        force: overwrite the file if it exists.
        aggregators: the classes of your own aggregators, if the models have any.
    """
    kind = lookup("format of export", format, FORMATS)
    run = run if isinstance(run, Run) else Run(run)
    config = run.config  # raises if this is no run
    path = run.folder / kind.file if out is None else Path(out)
    device = torch.device(device)
    kind.check(path, device, force)
    members = Ensemble.of(run, member, "cpu", aggregators=aggregators).members
    models = [load(run, k, aggregators=aggregators) for k in members]
    program = Program(models, config, max_nodes)
    about = {"torch": torch.__version__, "members": members, **program.description()}
    with _quiet(), tempfile.TemporaryDirectory() as folder:
        waiting_for("tracing the models")
        exported = trace(program, device)
        waiting_for(kind.waiting)
        aside = Path(folder, kind.file)
        kind.write(exported, about, aside)
        with replacing(path, binary=True) as file, aside.open("rb") as written:
            shutil.copyfileobj(written, file)
    return path


def trace(program: Program, device: torch.device) -> ExportedProgram:
    """The program as torch exports it, for any number of nodes, edges and graphs."""
    axes = {name: Dim(name, min=0) for name in _TRACED}
    inputs, shapes = {}, {}
    for name, field in program.inputs.items():
        inputs[name] = field.example(_TRACED, device)
        shapes[name] = {i: axes[a] for i, a in enumerate(field.shape) if isinstance(a, str)}
    program = program.to(device).eval().requires_grad_(False)
    try:
        with torch.no_grad():
            exported = torch.export.export(program, (), inputs, dynamic_shapes=shapes)
    except Exception as error:  # of many kinds, from torch and from the models
        raise ValueError(
            f"got models that torch cannot export ({_first_line(error)}), expected operations that "
            "do not read the values of tensors; change the aggregators of your own that do"
        ) from error
    _tidy(exported)
    return exported


def _tidy(exported: ExportedProgram) -> None:
    """Remove what is not needed: checks of types, unused nodes, paths of source files."""
    modules = [m for m in exported.graph_module.modules() if isinstance(m, torch.fx.GraphModule)]
    for module in modules:
        for node in [*module.graph.nodes]:
            node.meta.pop("stack_trace", None)
            if node.target is type_check:
                module.graph.erase_node(node)
        module.graph.eliminate_dead_code()
        module.recompile()


@dataclass(frozen=True)
class Format:
    """A format of exported models. Nothing has a default."""

    file: str  # name of the file in the folder of a run
    write: Callable[[ExportedProgram, dict[str, Any], Path], None]
    waiting: str  # what `write` does
    packages: tuple[str, ...]  # that it needs
    any_device: bool  # whether the file is for all devices

    def check(self, path: Path, device: torch.device, force: bool) -> None:
        """Raise unless such a file can be written. Called before the work, not after it."""
        missing = [package for package in self.packages if find_spec(package) is None]
        if missing:
            raise ModuleNotFoundError(
                f"got no {' and no '.join(missing)}, needed to write ONNX; pip install 'pna[onnx]'"
            )
        suffix = Path(self.file).suffix
        if path.suffix != suffix:
            raise ValueError(f"got {path}, expected the name of a file that ends in {suffix}")
        if self.any_device and device.type != "cpu":
            raise ValueError(
                f"got device {device} for a file that is for all devices, expected none; leave it "
                "out"
            )
        check_plain(path)
        if not path.resolve().parent.is_dir():
            raise FileNotFoundError(f"got {path}, but there is no folder {path.parent}; make it")
        if path.exists() and not force:
            raise FileExistsError(
                f"got {path}, which exists, expected a new file; force=True (--force) overwrites it"
            )


def _write_torch(exported: ExportedProgram, about: dict[str, Any], path: Path) -> None:
    torch.export.save(exported, path, extra_files={f"{KEY}.json": json.dumps(about)})


def _write_aoti(exported: ExportedProgram, about: dict[str, Any], path: Path) -> None:
    try:
        compile_package(exported, str(path), {KEY: json.dumps(about)})
    except Exception as error:  # of many kinds: Inductor runs compilers
        raise ValueError(
            f"got a program that cannot be compiled here ({_first_line(error)}), expected a "
            "machine with a C++ compiler; install g++, or choose another format: torch, onnx"
        ) from error


def _write_onnx(exported: ExportedProgram, about: dict[str, Any], path: Path) -> None:
    from pna.train import onnx_format  # which needs pna[onnx]

    program = onnx_format.translate(exported, about["inputs"], about["outputs"])
    program.model.metadata_props[KEY] = json.dumps(about)
    program.save(path)


FORMATS = {
    "torch": Format("model.pt2", _write_torch, "writing the program", (), False),
    "aoti": Format("model.aoti.pt2", _write_aoti, "compiling, which takes minutes", (), False),
    "onnx": Format(
        "model.onnx", _write_onnx, "translating to ONNX, which may take minutes",
        ("onnx", "onnxscript"), True,
    ),
}  # fmt: skip


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the warnings and the log of torch's exporters, which concern their developers."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
