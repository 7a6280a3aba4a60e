"""Exported files predict what the models of a run do, for graphs of any size."""

import json
import shutil
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch._inductor import config as inductor
from torch.onnx._internal.exporter._registration import ONNXRegistry
from torch.utils import cpp_extension
from typer.testing import CliRunner

import pna
from pna.aggregators import Aggregator
from pna.cli import app
from pna.nn.architectures import ARCHITECTURES
from pna.nn.registry import CONVOLUTIONS
from pna.ops.aggregators import BUILT_IN, KthSmallest, Moment
from pna.train import Settings, export, exporting, train
from pna.train.defaults import model_for
from pna.train.exporting import FORMATS, trace
from tests.train.programs import BATCHES, LOSSES, assert_as_expected, expected, inputs_of, made
from tests.train.small_runs import molecules
from tests.train.test_program import MAX_NODES, settings

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
CPU = torch.device("cpu")
QUICKLY = {
    "aot_inductor.precompile_headers": False,
    "aot_inductor.compile_wrapper_opt_level": "O0",
}
#: Torch's table of ONNX forms, which takes most of a second to build.
ONNX_FORMS = staticmethod(cache(ONNXRegistry.from_torchlib))


def as_numpy(run, given):
    with torch.no_grad():
        return {name: tensor.cpu().numpy() for name, tensor in run(**given).items()}


def by_onnx(session, given):
    names = [output.name for output in session.get_outputs()]
    found = session.run(None, {name: tensor.numpy() for name, tensor in given.items()})
    return dict(zip(names, found, strict=True))


def onnx_session(exported, program, path, optimize=False):
    """The program as ONNX Runtime reads it from a file; skips where that is not installed.

    To try all rules by which onnxscript optimises takes as long as the translation.
    """
    runtime = pytest.importorskip("onnxruntime", reason="needs pna[onnx]")
    translated = patch("torch.onnx.export", partial(torch.onnx.export, optimize=optimize))
    with exporting._quiet(), translated, patch.object(ONNXRegistry, "from_torchlib", ONNX_FORMS):
        FORMATS["onnx"].write(exported, program.description(), path)
    return runtime.InferenceSession(path, providers=["CPUExecutionProvider"])


def check(program, graphs, run, batches=BATCHES):
    for ids in batches:
        found = run(inputs_of(program, graphs, ids))
        if len(ids):
            assert_as_expected(found, expected(program, graphs, ids))
        else:
            assert all(len(values) == 0 for values in found.values())


def check_traced(program, graphs):
    """What torch makes of the program, which is compared with the models."""
    with exporting._quiet():
        exported = trace(program, CPU)
    check(program, graphs, partial(as_numpy, exported.module()))
    return exported


def check_torch_and_onnx(program, graphs, path, optimize=False):
    exported = check_traced(program, graphs)
    session = onnx_session(exported, program, path / "model.onnx", optimize)
    check(program, graphs, partial(by_onnx, session))


def operators(exported):
    return {
        str(node.target)
        for module in exported.graph_module.modules()
        if isinstance(module, torch.fx.GraphModule)
        for node in module.graph.nodes
        if node.op == "call_function"
    }


def a_run(folder, convolution="gin", **settings):
    graphs, model = molecules(), {"hidden": 4, "layers": 1}
    kind = model_for(graphs, convolution, model, LOSSES)
    return train(graphs, folder, kind, Settings(epochs=1, **settings), loss=LOSSES, device="cpu")


def as_predicted(run, member=None):
    """The predictions of a run for all its graphs, with the probabilities of classes together."""
    found = pna.train.predict(run, molecules(), member, device="cpu").graph
    classes = [found.pop(f"kind={c}") for c in range(3)]
    return {**found, "kind": np.stack(classes, 1)}


def all_inputs(device="cpu"):
    """Those of all graphs."""
    batch = molecules().batch()
    given = {
        "x": batch.x,
        "edge_index": batch.adjacency.edge_index,
        "sizes": batch.sizes,
        "edge_attr": batch.edge_attr,
    }
    return {name: tensor.long().to(device) for name, tensor in given.items()}


def command(*arguments):
    done = CliRunner().invoke(app, ["export", *map(str, arguments)])
    return done.exit_code, " ".join(done.output.split())


def test_torch_program(tmp_path, monkeypatch):
    """A file that torch can load alone. Tracing takes seconds: torch reasons about sizes."""
    monkeypatch.setattr(torch.fx.config, "do_not_emit_stack_traces", False)  # as for users
    run = a_run(tmp_path / "run")
    code, printed = command(run.folder, "--format", "torch")
    path = run.folder / "model.pt2"
    assert code == 0 and printed.startswith("tracing the models … writing the program … wrote ")
    described = {"pna.json": ""}
    exported = torch.export.load(path, extra_files=described)
    assert not [name for name in operators(exported) if "pna" in name]
    about = json.loads(described["pna.json"])
    assert about["members"] == [0] and [*about["outputs"]] == ["active", "kind", "size"]
    assert str(Path(pna.__file__).parent).encode() not in path.read_bytes()
    assert_as_expected(as_numpy(exported.module(), all_inputs()), as_predicted(run))
    code, printed = command(run.folder, "--format", "torch")
    assert code == 1 and "model.pt2, which exists, expected a new file" in printed


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("onxn",), "unknown format of export 'onxn'; did you mean 'onnx'?"),
        (("torch", "--out", "a.onnx"), "got a.onnx, expected the name of a file that ends in .pt2"),
        (("torch", "--out", "gone/a.pt2"), "got gone/a.pt2, but there is no folder gone; make it"),
        (("torch", "--member", 3), "got member 3 of"),
        (("torch", "--max-nodes", 9), "expected none; leave it out"),
        (("torch", "--device", "nowhere"), "got --device nowhere, which cannot be used"),
    ],
)
def test_errors_of_the_command(arguments, message, trained):
    code, printed = command(trained.folder, "--format", *arguments)
    assert code == 1 and message in printed


def test_a_folder_without_a_run(tmp_path):
    """The error must not ask for a folder to write to."""
    for folder in (tmp_path, tmp_path / "gone"):
        code, printed = command(folder, "--format", "torch")
        assert code == 1 and "which has no config.json, expected the folder of a run" in printed


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return a_run(tmp_path_factory.mktemp("runs") / "run", members=2)


def test_what_onnx_needs(trained, monkeypatch):
    monkeypatch.setattr(exporting, "find_spec", lambda package: None)
    with pytest.raises(ModuleNotFoundError, match=r"got no onnx and no onnxscript.*pna\[onnx\]"):
        export(trained, "onnx")


def test_onnx_is_for_all_devices(trained, monkeypatch):
    monkeypatch.setattr(exporting, "find_spec", lambda package: package)
    with pytest.raises(ValueError, match="got device cuda for a file that is for all devices"):
        export(trained, "onnx", device="cuda")


def test_a_file_is_written_completely_or_not_at_all(trained, tmp_path, monkeypatch):
    def write(exported, about, path):
        path.write_text("half")
        raise OSError("no space left")

    monkeypatch.setattr(exporting, "trace", lambda program, device: None)
    monkeypatch.setitem(FORMATS, "torch", replace(FORMATS["torch"], write=write))
    path = tmp_path / "model.pt2"
    path.write_text("before")
    with pytest.raises(OSError, match="no space left"):
        export(trained, "torch", path, force=True)
    assert path.read_text() == "before" and [*tmp_path.iterdir()] == [path]


#: One convolution of every kind of layer and readout: `test_every_aggregator` has the rest.
KINDS = {(e.layer, e.pooled, e.gated): name for name, e in reversed(CONVOLUTIONS.items())}
#: Those that can be layers of one model: they take the same features of edges.
TOGETHER = defaultdict(list)
for name in sorted(KINDS.values(), key=lambda name: CONVOLUTIONS[name].gated):
    entry = CONVOLUTIONS[name]
    TOGETHER[entry.edges, entry.carries, entry.pooled].append(name)


@pytest.mark.slow
@pytest.mark.parametrize("convolutions", TOGETHER.values(), ids=", ".join)
def test_every_convolution(convolutions, tmp_path):
    """A model with a layer of each, and a virtual node between layers. It has the readout of the
    last. Torch reasons about the sizes of every operation, twice for ONNX. ONNX Runtime can read
    DiffPool only as it is optimised."""
    *others, last = convolutions
    model = settings(last, "stacked", graph_norm=True, layers=len(convolutions), virtual_node=True)
    program, graphs = made(model)
    for layer, name in enumerate(others):
        one = made(settings(name, "stacked", layers=1))[0].models[0]
        program.models[0].convolutions[layer] = one.convolutions[0]
    check_torch_and_onnx(program, graphs, tmp_path, optimize=last == "diffpool")


@pytest.mark.slow
@pytest.mark.parametrize("architecture", sorted({*ARCHITECTURES} - {"stacked"}))
def test_every_other_architecture(architecture, tmp_path):
    """With the longest of small loops: steps of Set2Set and of a recurrent model are unrolled."""
    program, graphs = made(settings("gin", architecture), MAX_NODES[architecture])
    check_torch_and_onnx(program, graphs, tmp_path)


@pytest.mark.slow
def test_every_aggregator(tmp_path):
    """All in one layer."""
    given = {Moment: Moment(3), KthSmallest: KthSmallest(2)}
    every = [given.get(kind, kind) for kind in BUILT_IN]
    model = settings("pna", "stacked", layers=1, aggregators=every)
    check_torch_and_onnx(*made(model), tmp_path)


class Largest(Aggregator):
    """By an operation that ONNX does not have."""

    shift = "unknown"

    def aggregate(self, hood):
        return hood.max(torch.special.i0e(hood.messages) + hood.messages)


class Watchful(Aggregator):
    """Reads a value, which an exported program cannot."""

    shift = "unknown"

    def aggregate(self, hood):
        return hood.sum(hood.messages) * float(hood.messages.sum() > 0)


@pytest.mark.slow
def test_aggregators_of_your_own(tmp_path):
    """One that torch can export and ONNX cannot express, and one that neither can."""
    pytest.importorskip("onnxruntime", reason="needs pna[onnx]")
    program, graphs = made(settings("pna", "stacked", layers=1, aggregators=[Largest]))
    exported = check_traced(program, graphs)
    with pytest.raises(ValueError, match=r"no ONNX form .*i0e.*choose another format"):
        onnx_session(exported, program, tmp_path / "model.onnx")
    program, _ = made(settings("pna", "stacked", layers=1, aggregators=[Watchful]))
    with pytest.raises(ValueError, match="got models that torch cannot export"):
        trace(program, CPU)


_ALONE = """
import sys, torch
inputs, found = torch.load(sys.argv[2], weights_only=True), torch.export.load(sys.argv[1]).module()
torch.save(found(**inputs), sys.argv[2])
assert "pna" not in sys.modules
"""


@pytest.mark.slow
def test_torch_alone(trained, tmp_path):
    """A process that never imports this package."""
    path = export(trained, "torch", tmp_path / "one.pt2", member=1)
    data = tmp_path / "data.pt"
    torch.save(all_inputs(), data)
    subprocess.run([sys.executable, "-c", _ALONE, path, data], check=True)
    found = {name: tensor.numpy() for name, tensor in torch.load(data, weights_only=True).items()}
    assert_as_expected(found, as_predicted(trained, 1))


@pytest.mark.slow
def test_onnx_file(trained, tmp_path, monkeypatch):
    """Names, named axes and the description are in the file; both members are averaged."""
    monkeypatch.setattr(torch.fx.config, "do_not_emit_stack_traces", False)  # as for users
    runtime = pytest.importorskip("onnxruntime", reason="needs pna[onnx]")
    path = export(trained, "onnx", tmp_path / "model.onnx")
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    shapes = {given.name: given.shape for given in session.get_inputs()}
    assert shapes == {
        "x": ["nodes", 2],
        "edge_index": [2, "edges"],
        "sizes": ["graphs"],
        "edge_attr": ["edges", 1],
    }
    about = json.loads(session.get_modelmeta().custom_metadata_map["pna"])
    assert {name: field["shape"] for name, field in about["inputs"].items()} == shapes
    assert str(Path(pna.__file__).parent).encode() not in path.read_bytes()
    assert_as_expected(by_onnx(session, all_inputs()), as_predicted(trained))


_CRASHES = "torch 2.11 crashes when it loads the package"


def compiled_example(folder):
    """The program of examples/run_package.cpp; skips without a compiler."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    libraries = ["torch", "torch_cpu", "c10"]
    if torch.cuda.is_available():
        libraries += ["torch_cuda", "c10_cuda"]
    flags = [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    flags += [f"-isystem{path}" for path in cpp_extension.include_paths()]
    found = [f"-L{path}" for path in cpp_extension.library_paths()]
    found += [f"-Wl,-rpath,{path}" for path in cpp_extension.library_paths()]
    program, source = folder / "run_package", EXAMPLES / "run_package.cpp"
    linked = [f"-l{name}" for name in libraries]
    subprocess.run(
        [compiler, "-std=c++20", *flags, source, "-o", program, "-Wl,--no-as-needed", *found,
         *linked],
        check=True,
    )  # fmt: skip
    return program


def as_text(given):
    tensors = [str(len(given))]
    for tensor in given.values():
        numbers = [tensor.dim(), *tensor.shape, *tensor.flatten().tolist()]
        tensors.append(" ".join([str(tensor.dtype).removeprefix("torch."), *map(str, numbers)]))
    return "\n".join(tensors)


def from_text(text, names):
    """The outputs of batches, one dictionary each."""
    lines, batches = iter(text.splitlines()), []
    for count in lines:
        assert int(count) == len(names)
        batches.append({})
        for name in names:
            _, axes, *rest = next(lines).split()
            shape, values = [*map(int, rest[: int(axes)])], rest[int(axes) :]
            batches[-1][name] = np.array(values, float).reshape(shape)
    return batches


def check_package(path, program, graphs, device, folder):
    """The package in Python, and in C++."""
    loaded = torch._inductor.aoti_load_package(str(path))
    check(
        program,
        graphs,
        lambda given: as_numpy(loaded, {n: t.to(device) for n, t in given.items()}),
    )
    runner = compiled_example(folder)
    text = "\n".join(as_text(inputs_of(program, graphs, ids)) for ids in BATCHES)
    done = subprocess.run(
        [runner, path, device.type], input=text, capture_output=True, text=True, check=True
    )
    about = json.loads(done.stderr.splitlines()[-1])
    assert about["outputs"] == program.description()["outputs"]
    found = iter(from_text(done.stdout, [*program.outputs]))
    check(program, graphs, lambda given: next(found))


def packaged(convolution, device, folder):
    program, graphs = made(settings(convolution, "stacked", layers=1))
    path = folder / "model.pt2"
    with exporting._quiet():
        FORMATS["aoti"].write(trace(program, device), program.description(), path)
    return path, program.to("cpu"), graphs


@pytest.mark.slow
def test_package_in_cpp(tmp_path):
    """The model compiled by Inductor, and a C++ program with torch's headers: half a minute. The
    code around the kernels is compiled quickly, not for speed."""
    with inductor.patch(QUICKLY):
        path, program, graphs = packaged("mpnn-max", CPU, tmp_path)
    check_package(path, program, graphs, CPU, tmp_path)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize(
    "convolution",
    ["pna", pytest.param("gat", marks=pytest.mark.xfail(run=False, reason=_CRASHES))],
)
def test_package_in_cpp_on_a_gpu(convolution, tmp_path):
    """As above. The program has plain operations only, no Triton kernel of this package."""
    device = torch.device("cuda")
    path, program, graphs = packaged(convolution, device, tmp_path)
    check_package(path, program, graphs, device, tmp_path)


@pytest.mark.slow
def test_a_package_needs_a_compiler(tmp_path):
    exported = torch.export.export(torch.nn.Linear(2, 1), (torch.ones(1, 2),))
    absent = inductor.patch("cpp.cxx", ("no-such-compiler",))
    with absent, pytest.raises(ValueError, match="expected a machine with a C\\+\\+ compiler"):
        FORMATS["aoti"].write(exported, {}, tmp_path / "model.pt2")
