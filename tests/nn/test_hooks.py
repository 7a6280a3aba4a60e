"""Layers in other people's hands: hooks, pruning, parametrisations and replaced parts."""

from __future__ import annotations

import copy
import importlib.machinery
import sys
import types
import warnings

import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state
from torch.nn.modules import module as for_all
from torch.nn.utils import parametrizations, parametrize, prune

import pna
from pna.nn import (
    PNA,
    GATConv,
    GatedGCNConv,
    GCNConv,
    GINConv,
    MLPConv,
    MoNetConv,
    PNAConv,
    PNASimpleConv,
    Recurrent,
    SAGEConv,
    Stacked,
)
from pna.nn.hooks import is_hooked, may_be_read
from pna.nn.towers import TowerLinear
from tests.nn.cases import DEG, PAPER, SCALERS, assert_equal_in_norm, numbers, outcome
from tests.nn.graph_cases import batch_of, graphs

SLOWER = pytest.mark.filterwarnings("ignore:.*parts are now called as modules:UserWarning")
EDGE_INDEX = torch.tensor([[0, 1, 2, 3, 0, 2, 4, 0], [1, 1, 0, 2, 2, 4, 4, 1]])
NODES, EDGES = 6, EDGE_INDEX.shape[1]
PARTS = ["pre.0", "pre.1", "post.0", "post.1", "edge_encoder", "lin", "act"]


def deep(**arguments) -> PNAConv:
    """A layer with every part there can be, of 6 features to 4, with 2 towers."""
    torch.manual_seed(0)
    given = dict(towers=2, edge_dim=3, pre_layers=2, post_layers=2, act="tanh") | arguments
    return PNAConv(6, 4, PAPER, SCALERS, DEG, **given).double()


def usual(**arguments) -> PNAConv:
    return deep(**dict(pre_layers=1, post_layers=1, towers=1) | arguments)


def inputs(layer) -> tuple:
    x = numbers(NODES, layer.in_channels, dtype=torch.float64, device="cpu", seed=1)
    edge = numbers(EDGES, 3, dtype=torch.float64, device="cpu", seed=2)
    return (x, EDGE_INDEX, edge) if getattr(layer, "edge_dim", None) else (x, EDGE_INDEX)


def everything(layer) -> dict[str, torch.Tensor]:
    x, edges, *edge = inputs(layer)
    leaves = {"x": x} | dict(zip(["edge_attr"], edge, strict=False))
    parameters = {n.replace("_orig", ""): p for n, p in layer.named_parameters()}
    return outcome(lambda: layer(x, edges, *edge), leaves | parameters)


# What counts as hooked


#: How hooks are registered for every module, by what `torch.nn.Module` calls the same for one.
FOR_ALL = {
    "forward_hook": for_all.register_module_forward_hook,
    "forward_pre_hook": for_all.register_module_forward_pre_hook,
    "full_backward_hook": for_all.register_module_full_backward_hook,
    "full_backward_pre_hook": for_all.register_module_full_backward_pre_hook,
}


@pytest.mark.parametrize(
    "register",
    [
        *(lambda m, name=name: getattr(m, f"register_{name}")(lambda *_: None) for name in FOR_ALL),
        *(lambda m, register=register: register(lambda *_: None) for register in FOR_ALL.values()),
    ],
    ids=[*FOR_ALL, *(f"{name} of all modules" for name in FOR_ALL)],
)
def test_hooked_until_the_hook_is_removed(register):
    module = TowerLinear(1, 2, 2)
    assert not is_hooked(module)
    with register(module):
        assert is_hooked(module) and not may_be_read(module, TowerLinear)
    assert not is_hooked(module) and may_be_read(module, TowerLinear)


def test_modules_whose_weights_say_it_all():
    class Louder(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    class Named(nn.Linear):
        pass

    assert may_be_read(nn.Linear(2, 2), nn.Linear) and may_be_read(Named(2, 2), nn.Linear)
    assert may_be_read(parametrizations.weight_norm(nn.Linear(2, 2)), nn.Linear)
    assert not may_be_read(Louder(2, 2), nn.Linear) and not may_be_read(nn.ReLU(), nn.Linear)
    own = nn.Linear(2, 2)
    own.forward = lambda x: x
    assert not may_be_read(own, nn.Linear)


# PNAConv with hooks


@SLOWER
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("make", [deep, usual])
def test_forward_hooks_see_what_the_part_was_given_and_gave(make, part):
    layer = make()
    if part.endswith(".1") and make is usual:
        pytest.skip("a part of the deep layer")
    expected = everything(layer)
    seen = []
    module = layer.get_submodule(part)
    handle = module.register_forward_hook(lambda m, given, out: seen.append((given[0], out)))
    assert_equal_in_norm(everything(layer), expected, 1e-12)
    handle.remove()
    assert seen or (part == "act" and make is usual)
    for given, out in seen:
        assert len(given) in (NODES, EDGES)
        torch.testing.assert_close(module(given), out)


@SLOWER
@pytest.mark.parametrize("part", PARTS[:-1])
def test_forward_hooks_may_change_the_result(part):
    layer = deep()
    expected = layer(*inputs(layer))
    layer.get_submodule(part).register_forward_hook(lambda m, given, out: 2 * out)
    assert (layer(*inputs(layer)) - expected).abs().max() > 1e-3


@SLOWER
@pytest.mark.parametrize("part", PARTS)
def test_full_backward_hooks_see_gradients(part):
    """The gradient of what the part gave, summed over rows, is that of its bias."""
    layer = deep()
    expected = everything(layer)
    seen = []
    module = layer.get_submodule(part)
    module.register_full_backward_hook(lambda m, given, out: seen.append((given[0], out[0])))
    assert_equal_in_norm(everything(layer), expected, 1e-12)
    assert seen and all(t is not None for pair in seen for t in pair)
    if part != "act":
        torch.testing.assert_close(seen[0][1].sum(0), expected[f"{part}.bias"])


def test_warns_once_and_names_the_part():
    layer = usual()
    layer.pre[0].register_forward_hook(lambda *_: None)
    with pytest.warns(UserWarning, match=r"pre\[0\] of PNAConv\(6, 4.*slower") as caught:
        layer(*inputs(layer))
    assert len(caught) == 1 and caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(*inputs(layer))
        usual()(*inputs(layer))  # and nothing is said where there are no hooks


@SLOWER
@pytest.mark.parametrize("name", FOR_ALL)
def test_hooks_for_every_module_see_every_part(name):
    layer = deep()
    expected = everything(layer)
    seen = []
    with FOR_ALL[name](lambda module, *_: seen.append(module)):
        assert_equal_in_norm(everything(layer), expected, 1e-12)
    assert {part for part in PARTS if layer.get_submodule(part) in seen} == set(PARTS)
    seen.clear()
    assert_equal_in_norm(everything(layer), expected, 1e-12)
    assert seen == []


def test_hooks_for_every_module_are_what_the_warning_names():
    layer = usual()
    said = r"every module has hooks, including the parts of PNAConv\(6, 4.*slower.*remove the hooks"
    hooked = for_all.register_module_forward_hook(lambda *_: None)
    with hooked, pytest.warns(UserWarning, match=said) as caught:
        layer(*inputs(layer))
    assert len(caught) == 1 and caught[0].filename == __file__


@SLOWER
def test_a_forward_that_one_module_was_given_is_called():
    """As libraries that move weights between devices do."""
    layer = usual()
    expected = layer(*inputs(layer))
    own, calls = layer.post[0].forward, []
    layer.post[0].forward = lambda h: calls.append(h) or own(h)
    torch.testing.assert_close(layer(*inputs(layer)), expected)
    assert len(calls) == 1


@SLOWER
def test_a_population_with_hooks():
    """vmap over narrow layers, which would otherwise have their weights rearranged."""
    layers = [usual(edge_dim=None) for _ in range(2)]
    expected = torch.stack([layer(*inputs(layer)) for layer in layers])
    parameters, buffers = stack_module_state(layers)
    seen = []
    layers[0].pre[0].register_forward_hook(lambda m, given, out: seen.append(out.shape))
    x, edges = inputs(layers[0])
    adjacency = pna.Adjacency.from_edge_index(edges, NODES)
    got = torch.vmap(lambda p, b: functional_call(layers[0], (p, b), (x, adjacency)))(
        parameters, buffers
    )
    assert seen == [(EDGES, 1, 6)]
    torch.testing.assert_close(got, expected)


@pytest.mark.slow
def test_compiled_whole():
    """Without hooks: `test_pna_torch.py`. Takes seconds, as the first that compiles does."""
    torch._dynamo.reset()
    layer = deep()
    x, edges, edge = inputs(layer)
    adjacency = pna.Adjacency.from_edge_index(edges, NODES)
    expected = layer(x, adjacency, edge)
    layer.pre[0].register_forward_hook(lambda m, given, out: out + 0)
    whole = torch.compile(layer, fullgraph=True, backend="eager")
    torch.testing.assert_close(whole(x, adjacency, edge), expected)
    torch._dynamo.reset()


@SLOWER
def test_pyg_summary(monkeypatch):
    """A layer in one row, as PyG's; with `leaf_module=None` every part with its shapes."""
    table = types.ModuleType("tabulate")  # which PyG wants, and need not be here
    table.__spec__ = importlib.machinery.ModuleSpec("tabulate", None)
    table.tabulate = lambda content, **_: content
    from torch_geometric.nn import summary

    monkeypatch.setitem(sys.modules, "tabulate", table)
    torch.manual_seed(0)
    model = PNA(6, 6, 2, aggregators=["mean", "max"], scalers=["identity"], deg=None, towers=2)
    _, *rows = summary(model, torch.randn(NODES, 6), EDGE_INDEX, max_depth=4)
    assert sum("PNAConv" in row[0] for row in rows) == 2
    assert not any("TowerLinear" in row[0] for row in rows)
    _, *rows = summary(model, torch.randn(NODES, 6), EDGE_INDEX, max_depth=4, leaf_module=None)
    seen = {row[0].split(")", 1)[1]: row[1:] for row in rows if "TowerLinear" in row[0]}
    assert sum("TowerLinear" in row[0] for row in rows) == 4
    assert seen == {"TowerLinear": ["[6, 2, 18]", "[6, 2, 3]", "114"]}  # the last one, U
    given = [row[1] for row in rows if "TowerLinear" in row[0]]
    assert given[0] == f"[{EDGES}, 2, 12]"
    assert not is_hooked(model.convs[0].pre[0])


# Pruning and parametrisations


def with_masks(layer, masks) -> nn.Module:
    """A copy without hooks, its weights set to 0 where they are pruned."""
    plain = copy.deepcopy(layer)
    with torch.no_grad():
        for name, mask in masks.items():
            plain.get_parameter(name).mul_(mask)
    return plain


@SLOWER
@pytest.mark.parametrize("make", [deep, usual, lambda: usual(towers=2)])
def test_pruned_parts(make):
    """Masks take effect in the result, in gradients, and after the weights have changed."""
    layer = make()
    whole = copy.deepcopy(layer)
    modules = {n: m for n, m in layer.named_modules() if isinstance(m, TowerLinear | nn.Linear)}
    for module in modules.values():
        prune.random_unstructured(module, "weight", amount=0.5)
    masks = {f"{n}.weight": m.weight_mask for n, m in modules.items()}
    for _ in range(2):
        got, expected = everything(layer), everything(with_masks(whole, masks))
        expected |= {name: expected[name] * mask for name, mask in masks.items()}
        assert_equal_in_norm(got, expected, 1e-12)
        with torch.no_grad():  # as an optimiser does
            for model in (layer, whole):
                for parameter in model.parameters():
                    parameter += 0.1
    result = layer(*inputs(layer))
    for module in modules.values():
        prune.remove(module, "weight")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(layer(*inputs(layer)), result)


@pytest.mark.parametrize("make", [deep, usual, lambda: usual(towers=2)])
@pytest.mark.parametrize("part", PARTS[:-1])
def test_weight_norm(make, part):
    """The weight is computed where it is read, so no part need be called, and nothing is said."""
    layer = make()
    if part.endswith(".1") and make is not deep:
        pytest.skip("a part of the deep layer")
    plain = copy.deepcopy(layer)
    module = parametrizations.weight_norm(layer.get_submodule(part))
    scale = module.parametrizations.weight.original0
    with torch.no_grad():
        scale *= 2
        plain.get_submodule(part).weight *= 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = layer(*inputs(layer))
    torch.testing.assert_close(out, plain(*inputs(layer)))
    out.square().sum().backward()
    assert scale.grad.abs().max() > 0


def test_spectral_norm_takes_one_step_a_call():
    layer = usual()
    module = parametrizations.spectral_norm(layer.edge_encoder)
    alone = copy.deepcopy(module)
    layer(*inputs(layer))
    alone(inputs(layer)[2])
    for name, buffer in module.named_buffers():
        torch.testing.assert_close(buffer, alone.get_buffer(name))


@SLOWER
def test_the_old_weight_norm_by_hooks():
    layer = usual()
    plain = copy.deepcopy(layer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        module = nn.utils.weight_norm(layer.pre[0])
    with torch.no_grad():
        module.weight_g *= 2
        plain.pre[0].weight *= 2
    torch.testing.assert_close(layer(*inputs(layer)), plain(*inputs(layer)))


def test_any_parametrisation():
    class Doubled(nn.Module):
        def forward(self, weight):
            return 2 * weight

    layer, plain = usual(), usual()
    parametrize.register_parametrization(layer.lin, "weight", Doubled())
    with torch.no_grad():
        plain.lin.weight *= 2
    torch.testing.assert_close(layer(*inputs(layer)), plain(*inputs(layer)))


# Replaced parts


@SLOWER
def test_parts_may_be_replaced_by_what_fits():
    layer, plain = usual(towers=2), usual(towers=2)
    layer.pre[0] = nn.Sequential(layer.pre[0], nn.Tanh())
    plain.pre[0].register_forward_hook(lambda m, given, out: out.tanh())
    layer.edge_encoder = nn.Sequential(layer.edge_encoder, nn.ReLU())
    plain.edge_encoder.register_forward_hook(lambda m, given, out: out.relu())
    layer.post[0] = nn.Sequential(layer.post[0], nn.Sigmoid())
    plain.post[0].register_forward_hook(lambda m, given, out: out.sigmoid())
    torch.testing.assert_close(layer(*inputs(layer)), plain(*inputs(layer)))
    layer.reset_parameters()
    assert layer.memory(10, 10) > 0


@SLOWER
def test_one_linear_layer_for_all_towers():
    layer, plain = usual(towers=2), usual(towers=2)
    shared = nn.Linear(18, 6).double()
    layer.pre[0] = shared
    with torch.no_grad():
        plain.pre[0].weight.copy_(shared.weight.expand(2, -1, -1))
        plain.pre[0].bias.copy_(shared.bias.expand(2, -1))
    torch.testing.assert_close(layer(*inputs(layer)), plain(*inputs(layer)))


def test_another_layer_in_m():
    """Added to the list, it is part of M."""
    layer, plain = usual(edge_dim=None, act="tanh"), deep(towers=1, post_layers=1, edge_dim=None)
    layer.load_state_dict(plain.state_dict(), strict=False)
    layer.pre.append(copy.deepcopy(plain.pre[1]))
    torch.testing.assert_close(layer(*inputs(layer)), plain(*inputs(layer)))


def replace(layer, part, module):
    owner, _, name = part.rpartition(".")
    owner = layer.get_submodule(owner)
    if name.isdecimal():
        owner[int(name)] = module
    else:
        setattr(owner, name, module)


@SLOWER
@pytest.mark.parametrize(
    "part, module, message",
    [
        ("pre.0", nn.Linear(12, 6), r"pre\[0\] = Linear.*\(8, 1, 18\) to \(8, 1, 6\)"),
        ("pre.0", nn.Linear(18, 5), r"pre\[0\].*gives \(8, 1, 5\).*to \(8, 1, 6\)"),
        ("pre.0", TowerLinear(1, 18, 5), r"pre\[0\].*\(1, 5, 18\), expected \(1, 6, 18\)"),
        ("pre.0", nn.Sequential(TowerLinear(1, 9, 6)), r"pre\[0\].*fails.*\(8, 1, 18\)"),
        ("pre.0", nn.GRU(18, 6), r"pre\[0\] = GRU.*gives a tuple"),
        ("pre.1", TowerLinear(1, 6, 5), r"pre\[1\].*gives \(8, 1, 5\)"),
        ("pre.1", nn.Flatten(0), r"pre\[1\].*gives \(48,\).*\(8, 1, 6\) to \(8, 1, 6\)"),
        ("post.0", nn.Linear(78, 3), r"post\[0\].*gives \(6, 1, 3\).*\(6, 1, 4\)"),
        ("post.0", TowerLinear(1, 77, 4), r"post\[0\].*\(1, 4, 77\), expected \(1, 4, 78\)"),
        ("post.1", nn.Linear(5, 4), r"post\[1\] = Linear.*\(6, 1, 4\) to \(6, 1, 4\)"),
        ("edge_encoder", nn.Linear(4, 6), r"edge_encoder.*\(6, 4\), expected \(6, 3\)"),
        ("edge_encoder", nn.ReLU(), r"edge_encoder = ReLU.*gives \(8, 3\).*\(8, 6\)"),
        ("lin", nn.Linear(5, 4), r"lin = Linear.*fails.*\(6, 4\) to \(6, …\)"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(part, module, message):
    layer = deep(towers=1) if part.endswith(".1") else usual()
    replace(layer, part, module.double())
    with pytest.raises(ValueError, match=message):
        layer(*inputs(layer))


def set_to_none(name, k):
    def change(layer):
        getattr(layer, name)[k] = None

    return change


def delete_all(name):
    def change(layer):
        del getattr(layer, name)[:]

    return change


NO_ENCODER = r"got edge_encoder = None, expected .*\(edges, 3\) to \(edges, 6\).*encode_edges=False"


@pytest.mark.parametrize(
    "change, message",
    [
        (set_to_none("pre", 0), r"got pre\[0\] = None, expected a module; put one"),
        (set_to_none("pre", 1), r"got pre\[1\] = None.*or remove it with del pre\[1\]"),
        (set_to_none("post", 0), r"got post\[0\] = None, expected a module; put one"),
        (set_to_none("post", 1), r"got post\[1\] = None.*or remove it with del post\[1\]"),
        (delete_all("pre"), r"got pre without a layer, expected at least one; .*pre\[0\] = "),
        (delete_all("post"), r"got post without a layer, expected at least one; .*post\[0\] = "),
        (lambda layer: setattr(layer, "edge_encoder", None), NO_ENCODER),
    ],
    ids=["pre 0", "pre 1", "post 0", "post 1", "no pre", "no post", "no encoder"],
)
def test_what_is_missing_is_named(change, message):
    layer = deep(towers=1)
    change(layer)
    with pytest.raises(ValueError, match=message):
        layer(*inputs(layer))


def test_an_encoder_that_is_missing_is_named_on_every_backend(backend):
    """Kernels would have read beyond the edge features."""
    layer = usual().float().to(backend.device)
    layer.edge_encoder = None
    x, edges, edge = (t.to(backend.device) for t in inputs(layer))
    with pytest.raises(ValueError, match=NO_ENCODER):
        layer(x.float(), edges, edge.float())


def test_an_encoder_may_be_missing_where_edge_features_fit_as_they_are():
    layer, plain = usual(edge_dim=6), usual(edge_dim=6, encode_edges=False)
    plain.load_state_dict(layer.state_dict(), strict=False)
    layer.edge_encoder = None
    x, edges, _ = inputs(layer)
    edge = numbers(EDGES, 6, dtype=torch.float64, device="cpu", seed=2)
    torch.testing.assert_close(layer(x, edges, edge), plain(x, edges, edge))


@pytest.mark.parametrize(
    "change, message",
    [
        (set_to_none("post", 0), r"got post\[0\] = None"),
        (set_to_none("post", 1), r"got post\[1\] = None"),
        (delete_all("post"), "got post without a layer"),
    ],
    ids=["post 0", "post 1", "no post"],
)
def test_what_is_missing_of_the_simple_layer_is_named(change, message):
    layer = simple(4).double()
    change(layer)
    with pytest.raises(ValueError, match=message):
        layer(*inputs(layer))


def test_errors_of_hooks_are_their_own():
    class StopError(RuntimeError):
        pass

    def stop(*_):
        raise StopError

    layer = usual()
    layer.pre[0].register_forward_hook(stop)
    with pytest.raises(StopError), pytest.warns(UserWarning, match="slower"):
        layer(*inputs(layer))


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("pre_nns", nn.ModuleList(), r"got pre_nns = ModuleList.*replace one of them: pre\[0\]"),
        ("post_nns", nn.ModuleList(), r"got post_nns = ModuleList.*replace one of them: post\[0\]"),
        ("pre", nn.Linear(4, 4), r"got pre = Linear, expected a torch\.nn\.ModuleList"),
    ],
)
def test_layers_under_other_names_are_refused(name, value, message):
    """As PyG's, where they would do nothing."""
    with pytest.raises(TypeError, match=message):
        setattr(usual(), name, value)


# The other layers


def simple(width):
    return PNASimpleConv(6, width, ["mean", "std"], SCALERS, DEG, post_layers=2)


LAYERS = {
    "simple": simple,
    "gat": lambda width: GATConv(6, width, heads=2, edge_dim=3, add_self_loops=True),
    "gcn": lambda width: GCNConv(6, width),
    "gin": lambda width: GINConv(6, width, edge_dim=3),
    "sage": lambda width: SAGEConv(6, width),
    "sage, max": lambda width: SAGEConv(6, width, "max"),
    "monet": lambda width: MoNetConv(6, width),
    "gated-gcn": lambda width: GatedGCNConv(6, width, edge_dim=3),
    "mlp": lambda width: MLPConv(6, width),
}


@SLOWER
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("width", [4, 8], ids=["narrower", "wider"])
def test_parts_of_every_layer_are_called_where_hooked(name, width):
    torch.manual_seed(0)
    layer = LAYERS[name](width).double()
    expected = everything(layer)
    called = set()
    parts = {n for n, m in layer.named_modules() if isinstance(m, nn.Linear | TowerLinear)}
    for part in parts:
        layer.get_submodule(part).register_forward_hook(lambda *_, part=part: called.add(part))
    assert_equal_in_norm(everything(layer), expected, 1e-10)
    assert called == parts


@SLOWER
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("width", [4, 8], ids=["narrower", "wider"])
def test_parts_of_every_layer_are_seen_by_hooks_for_every_module(name, width):
    torch.manual_seed(0)
    layer = LAYERS[name](width).double()
    called = []
    with for_all.register_module_forward_hook(lambda module, *_: called.append(module)):
        layer(*inputs(layer))
    parts = {n: m for n, m in layer.named_modules() if isinstance(m, nn.Linear | TowerLinear)}
    assert [name for name, part in parts.items() if part not in called] == []


@SLOWER
@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_may_be_pruned(name):
    torch.manual_seed(0)
    layer = LAYERS[name](4).double()
    whole = copy.deepcopy(layer)
    parts = {n: m for n, m in layer.named_modules() if isinstance(m, nn.Linear | TowerLinear)}
    for module in parts.values():
        prune.random_unstructured(module, "weight", amount=0.5)
    masks = {f"{n}.weight": m.weight_mask for n, m in parts.items()}
    for model in (layer, whole):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.1
    x, *rest = inputs(layer)
    torch.testing.assert_close(layer(x, *rest), with_masks(whole, masks)(x, *rest))


@SLOWER
@pytest.mark.parametrize("name", ["pna", "gcn", "gat"])
@pytest.mark.parametrize("part", ["again", "again.conv", "again.act", "gru"])
def test_a_recurrent_model_calls_what_is_hooked(name, part):
    torch.manual_seed(0)
    batch = batch_of(graphs())
    stats = pna.DegreeStats.from_graphs([batch])
    model = Recurrent(name, 2, 4, 3, 3, deg=stats, depth=3).eval()
    expected = model(batch)
    calls = []
    model.get_submodule(part).register_forward_hook(lambda *_: calls.append(1))
    got = model(batch)
    assert len(calls) >= 2
    torch.testing.assert_close(got.node, expected.node)


#: Forms in which edge features reach a convolution: its name and arguments of `Stacked`.
EDGE_FEATURES = {
    "a table": ("pna", dict(edge_columns=1, edge_values=[3])),
    "a basis of kinds": ("pna", dict(edge_columns=2, edge_values=[3, 3])),
    "a basis of numbers": ("pna", dict(edge_columns=2)),
    "for every edge": ("gat", dict(edge_columns=2)),
    "states that begin alike": ("gated-gcn", {}),
    "states that begin as kinds": ("gated-gcn", dict(edge_columns=1, edge_values=[3])),
}


@pytest.mark.parametrize("form", EDGE_FEATURES)
def test_the_encoder_of_edge_features_is_called_where_hooked_or_replaced(form):
    name, arguments = EDGE_FEATURES[form]
    torch.manual_seed(0)
    columns = arguments.get("edge_columns", 0)
    batch = batch_of(graphs(columns, whole="edge_values" in arguments))
    stats = pna.DegreeStats.from_graphs([batch])
    model = Stacked(name, 2, 4, 3, 3, deg=stats, layers=2, **arguments).double().eval()
    expected, seen = model(batch).node, []
    embed = model.embed_edges
    handle = embed.register_forward_hook(lambda m, given, out: seen.append(out.shape))
    torch.testing.assert_close(model(batch).node, expected)
    assert [shape[0] for shape in seen] == [batch.adjacency.num_edges]
    handle.remove()
    handle = embed.register_forward_hook(lambda m, given, out: out.tanh())
    changed = model(batch).node
    assert (changed - expected).abs().max() > 1e-4
    handle.remove()
    model.embed_edges = nn.Sequential(embed, nn.Tanh())
    torch.testing.assert_close(model(batch).node, changed)
