"""ONNX of an exported program, with forms of operations that torch's translator lacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import onnxscript
import torch
from onnx_ir.passes import common
from onnxscript import optimizer
from torch.export import ExportedProgram

op: Any = onnxscript.opset18
_INT64 = 7  # of ONNX's data types


def _sort(self: Any, stable: bool = True, dim: int = -1, descending: bool = False) -> Any:
    """TopK is stable: among equal values the lower index comes first."""
    size = op.Gather(op.Shape(self), op.Constant(value_ints=[dim]), axis=0)
    return op.TopK(self, size, axis=dim, largest=int(descending), sorted=1)


def _searchsorted(sorted_sequence: Any, self: Any) -> Any:
    """How many numbers of a sorted line are below each number of another. All pairs are compared:
    only "diffpool" uses it, for the nodes and graphs of a batch."""
    return _count(op.Less(op.Unsqueeze(sorted_sequence, [0]), op.Unsqueeze(self, [1])))


def _repeat_interleave(self: Any, repeats: Any, output_size: Any = None) -> Any:
    """Of a line, with `output_size`. All pairs are compared, as in `_searchsorted`."""
    slots = op.Range(op.Constant(value_int=0), output_size, op.Constant(value_int=1))
    ends = op.CumSum(op.Cast(repeats, to=_INT64), op.Constant(value_int=0))
    row = _count(op.LessOrEqual(op.Unsqueeze(ends, [0]), op.Unsqueeze(slots, [1])))
    return op.Cast(op.Gather(self, row), to=_INT64)  # indices of ONNX Runtime are int64


def _count(is_true: Any) -> Any:
    return op.ReduceSum(op.Cast(is_true, to=_INT64), [1], keepdims=0)


_FORMS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.ops.aten.sort.stable: _sort,
    torch.ops.aten.searchsorted.Tensor: _searchsorted,
    torch.ops.aten.repeat_interleave.self_Tensor: _repeat_interleave,
}


def translate(
    exported: ExportedProgram, inputs: Mapping[str, Any], outputs: Mapping[str, Any]
) -> Any:
    """The program as a `torch.onnx.ONNXProgram`, with these names and named axes."""
    axes = {
        name: {i: axis for i, axis in enumerate(field["shape"]) if isinstance(axis, str)}
        for name, field in inputs.items()
    }
    try:
        program = torch.onnx.export(
            exported,
            input_names=[*inputs],
            output_names=[*outputs],
            dynamic_shapes=axes,
            custom_translation_table=_FORMS,
            verbose=False,
            optimize=False,
        )
    except torch.onnx.OnnxExporterError as error:
        raise ValueError(
            f"got models with an operation that has no ONNX form ({_cause(error)}), expected "
            "operations that have one; change the aggregator of your own that uses it, or choose "
            "another format: torch, aoti"
        ) from error
    assert program is not None
    _simplify(program.model)
    return program


def _simplify(model: Any) -> None:
    """Make a model smaller. `optimize` of the export does a little more, but one of its rules
    compares all nodes with all others: five models of eight layers took more than 12 minutes."""
    optimizer.fold_constants(model)
    optimizer.remove_unused_nodes(model)
    for simplify in (
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.DeduplicateInitializersPass(),
        common.CommonSubexpressionEliminationPass(),
        common.OutputFixPass(),
        common.NameFixPass(),
        common.ClearMetadataAndDocStringPass(),  # among it paths of source files
    ):
        simplify(model)


def _cause(error: BaseException) -> str:
    """The first line of the error at the beginning of a chain."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).partition("\n")[0].partition(". Failure message")[0]
