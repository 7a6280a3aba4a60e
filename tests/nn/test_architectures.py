"""Whole models: parameters of the paper, and graphs in a batch as they are alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from pna.data.walks import with_walks
from pna.degree import DegreeStats
from pna.nn.architectures import Prediction, Recurrent, Stacked, Standard
from pna.nn.depth import depth_of
from pna.nn.readout import Set2Set
from pna.train.models import count_parameters
from tests.nn.graph_cases import SIZES, batch_of, graphs, rows_of

DEG = DegreeStats.from_histogram(torch.tensor([2, 6, 5, 1, 1]))
RULES = ["N", "N/2", "4log2N", "2log2N", "3sqrtN", 4, "diameter", "adaptive"]


def made(kind, convolution="pna", *, hidden=8, inputs=2, **arguments):
    torch.manual_seed(0)
    if convolution.startswith(("pna", "mpnn")):
        arguments.setdefault("towers", 2)
    model = kind(convolution, inputs, hidden, 3, 3, deg=DEG, **arguments)
    return model.double()


def assert_same(got, expected, tolerance=1e-12):
    if isinstance(got, Prediction):
        got, expected = vars(got), vars(expected)
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("convolution", "hidden", "count"),
    [
        ("pna", 16, 8350),
        ("mpnn-sum", 16, 7294),
        ("mpnn-max", 16, 7294),
        ("mpnn-sum", 20, 11186),
        ("mpnn-max", 20, 11186),
        ("gin", 20, 11168),
        ("gat", 20, 10286),
        ("gcn", 20, 10246),
    ],
)
def test_parameters_are_those_of_the_paper(convolution, hidden, count):
    towers = {"towers": 4} if hidden in (16, 20) else {}
    model = Recurrent(convolution, 2, hidden, 3, 3, deg=DEG, **towers)
    assert count_parameters(model) == count


@pytest.mark.parametrize("hidden", [1, 2, 3, 4])
def test_heads_of_narrow_models_have_features(hidden):
    """A quarter of 3 features is none: only the last bias would be left of a model."""
    model = made(Stacked, hidden=hidden, towers=1)
    heads = [part for name, part in model.named_modules() if isinstance(part, torch.nn.Linear)]
    assert all(part.weight.numel() for part in heads)


#: Layers, hidden, out, and width of edges; as the paper's settings have them.
PUBLISHED = {
    ("zinc", "pna", False): (4, 75, 70, 0, 94_995),
    ("zinc", "pna", True): (4, 70, 60, 50, 95_111),
    ("zinc", "pna-no-scalers", False): (4, 95, 90, 0, 94_910),
    ("zinc", "pna-no-scalers", True): (4, 90, 80, 50, 101_721),
    ("zinc", "mpnn-sum", False): (4, 110, 80, 0, 89_341),
    ("zinc", "mpnn-max", True): (4, 100, 70, 50, 93_695),
    ("zinc deep", "pna", True): (16, 70, 70, 40, 369_235),
    ("zinc deep", "mpnn-sum", True): (16, 110, 110, 40, 438_565),
    ("mnist", "pna", False): (4, 75, 70, 0, 93_357),
    ("mnist", "pna", True): (4, 75, 70, 50, 108_457),
    ("mnist", "pna-no-scalers", False): (4, 95, 90, 0, 92_837),
    ("mnist", "pna-no-scalers", True): (4, 95, 90, 50, 111_937),
    ("mnist", "mpnn-sum", False): (4, 110, 90, 0, 90_137),
    ("mnist", "mpnn-max", True): (4, 110, 90, 20, 98_977),
}


MODELS = {
    **{f"recurrent {rule}": (Recurrent, {"depth": rule}) for rule in RULES},
    "recurrent loose": (Recurrent, {"depth": "adaptive", "tolerance": 0.3}),
    "recurrent swapped": (Recurrent, {"swap_gru": True}),
    "recurrent gin": (Recurrent, {"convolution": "gin", "depth": "N"}),
    "recurrent gat": (Recurrent, {"convolution": "gat"}),
    "recurrent gcn": (Recurrent, {"convolution": "gcn"}),
    "recurrent mean": (Recurrent, {"readout": "mean"}),
    **{
        f"recurrent {name} without a GRU": (Recurrent, {"convolution": name, "gru": False})
        for name in ("pna", "gin", "gat")
    },
    "standard": (Standard, {"layers": 3}),
    "standard gin max": (Standard, {"layers": 2, "convolution": "gin", "readout": "max"}),
    "stacked": (Stacked, {"graph_norm": True}),
    "stacked, norm before mixing": (Stacked, {"graph_norm": True, "norm_before_mixing": True}),
    "stacked gated-gcn": (Stacked, {"convolution": "gated-gcn"}),
    "stacked, virtual node": (Stacked, {"virtual_node": True, "layers": 3, "out_channels": 6}),
    "stacked, layer norm": (Stacked, {"norm": "layer", "feed_forward": 1.5}),
    "stacked, deep": (
        Stacked,
        {
            **dict(layers=3, out_channels=6, feed_forward=1.5, edge_updates=True),
            **dict(signs=(1,), dropout_first=True, stochastic_depth=0.5),
        },
    ),
    "stacked simple": (Stacked, {"convolution": "pna-simple"}),
    "stacked mean": (Stacked, {"readout": "mean", "out_channels": 6, "residual": False}),
    **{
        f"{kind.__name__.lower()} {name}": (kind, {"convolution": name})
        for kind in (Recurrent, Standard, Stacked)
        for name in ("mlp-gated", "diffpool")
    },
}


@pytest.mark.parametrize("name", MODELS)
def test_a_graph_is_in_a_batch_what_it_is_alone(name):
    """Of any size and depth, with nodes of degree 0 and of one node, and with others' statistics
    left behind by training."""
    kind, arguments = MODELS[name]
    model = made(kind, **arguments, dropout=0.2)
    model(batch_of(graphs()))
    model.eval()
    together = model(batch_of(graphs(), [3, 0, 4, 1, 2]))
    nodes = rows_of(batch_of(graphs(), [3, 0, 4, 1, 2]), together.node)
    for place, graph in enumerate([3, 0, 4, 1, 2]):
        alone = model(batch_of(graphs(), [graph]))
        assert_same(nodes[place], alone.node)
        assert_same(together.graph[place], alone.graph[0])
        if "diffpool" in name:
            assert_same(together.own_loss[place], alone.own_loss[0])
        else:
            assert together.own_loss is None


@pytest.mark.parametrize("kind", [Recurrent, Standard, Stacked])
def test_a_gate_is_what_a_gated_mlp_has_beside_an_mlp(kind):
    """Its last states, each feature multiplied by what the gate says, before all heads."""
    gated, plain = made(kind, "mlp-gated").eval(), made(kind, "mlp").eval()
    own = {name: p for name, p in gated.state_dict().items() if not name.startswith("gate.")}
    plain.load_state_dict(own)
    seen = []
    plain.gate.register_forward_hook(lambda module, inputs, out: seen.append(out) or gate(out))

    def gate(states):
        weight, bias = gated.gate.lin.weight, gated.gate.lin.bias
        return states * torch.sigmoid(states @ weight.t() + bias)

    batch = batch_of(graphs())
    assert_same(gated(batch), plain(batch))
    assert len(seen) == 1 and seen[0].shape[0] == batch.num_nodes


@pytest.mark.parametrize("kind", [Recurrent, Standard, Stacked])
def test_diffpool_reads_clusters_beside_nodes(kind):
    """The head of graphs is given both, and the pooling's losses are told."""
    model = made(kind, "diffpool", clusters=3).eval()
    given = []
    model.graph_head.register_forward_pre_hook(lambda module, inputs: given.append(inputs[0]))
    states = []
    model.gate.register_forward_hook(lambda module, inputs, out: states.append(out))
    batch = batch_of(graphs())
    got = model(batch)
    pooled, loss = model.clusters(states[0], batch)
    assert_same(given[0][:, -pooled.shape[1] :], pooled)
    assert_same(got.own_loss, loss)
    assert model.clusters.pool.assign.out_channels == 3
    sage = made(kind, "sage").eval()
    shared = {n: p for n, p in model.state_dict().items()
              if not n.startswith(("clusters.", "graph_head."))}  # fmt: skip
    sage.load_state_dict(shared, strict=False)
    assert_same(sage(batch).node, got.node)  # which are read before pooling
    if kind is not Recurrent:
        assert_same(given[0][:, : -pooled.shape[1]], sage.readout(states[0], batch.sizes))


def test_clusters_are_of_diffpool_and_of_graphs_alone():
    with pytest.raises(ValueError, match="got clusters=3 for 'sage', which does not cluster"):
        made(Stacked, "sage", clusters=3)
    with pytest.raises(ValueError, match=r"got no graph targets for 'diffpool'.*use 'sage'"):
        Stacked("diffpool", 2, 4, 3, 0)


@pytest.mark.parametrize("kind", [Recurrent, Standard])
def test_heads_of_graphs_are_normalised_over_graphs(kind):
    assert [norm.level for norm in made(kind).graph_head.norms] == ["graph", "graph"]


@pytest.mark.covering(2, always=True)
def test_layer_norm_in_the_head_of_graphs_by_definition():
    """A graph is then in training what it is alone; with BatchNorm it is not."""
    model = made(Recurrent, "gcn", head_norm="layer").train()
    first, other = batch_of(graphs(), [0, 3]), batch_of(graphs(), [0, 4])
    with torch.no_grad():
        assert_same(model(first).graph[0], model(other).graph[0])
        by_batch = made(Recurrent, "gcn").train()
        assert not torch.allclose(by_batch(first).graph[0], by_batch(other).graph[0])
    x = torch.randn(3, 16, dtype=torch.float64)
    hidden = x
    for linear in model.graph_head.layers[:2]:
        hidden = F.relu(F.linear(hidden, linear.weight, linear.bias))
        centred = hidden - hidden.mean(1, keepdim=True)
        hidden = centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt()
    last = model.graph_head.layers[2]
    assert_same(model.graph_head(x), F.leaky_relu(F.linear(hidden, last.weight, last.bias)))
    with pytest.raises(ValueError, match="unknown norm 'instance'"):
        made(Recurrent, "gcn", head_norm="instance")


@pytest.mark.parametrize("convolution", ["pna", "gin"])
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("swap", [False, True], ids=["", "swapped"])
def test_recurrence_by_definition(convolution, rule, swap):
    """Convolution, GRU, and so on, as often as the rule says of each graph by itself."""
    tolerance = 0.2  # reached at different steps
    model = made(Recurrent, convolution, depth=rule, tolerance=tolerance, swap_gru=swap).eval()
    made_graphs = graphs()
    for graph in range(len(SIZES)):
        batch = batch_of(made_graphs, [graph])
        depth = depth_of(batch, rule)
        steps = depth.most if depth.steps is None else int(depth.steps[0])

        def gru(state, result):
            cell = torch.nn.GRUCell(8, 8).double()
            cell.load_state_dict(model.gru.state_dict())
            state = F.pad(state, (0, 8 - state.shape[1]))
            return cell(state, result) if swap else cell(result, state)

        state = gru(batch.x, model.first(batch.x, batch.adjacency))
        for _ in range(steps - 1):
            new = gru(state, model.again(state, batch.adjacency))
            moved = float((new - state).detach().abs().max())
            state = new
            if rule == "adaptive" and moved <= tolerance:
                break
        got = model(batch)
        assert_same(got.node, model.node_head(state), 1e-10)
        read = model.set2set(state, batch.sizes, SIZES[graph])
        assert_same(got.graph, model.graph_head(read), 1e-10)


@pytest.mark.parametrize("convolution", ["pna", "gin"])
@pytest.mark.parametrize("rule", ["N/2", "adaptive"])
def test_recurrence_without_its_parts_by_definition(convolution, rule):
    """Without a GRU results are the next states; a mean is read instead of what Set2Set reads."""
    tolerance = 0.2
    model = made(Recurrent, convolution, depth=rule, tolerance=tolerance, gru=False, readout="mean")
    model.eval()
    for graph in range(len(SIZES)):
        batch = batch_of(graphs(), [graph])
        depth = depth_of(batch, rule)
        state = model.first(batch.x, batch.adjacency)
        for _ in range((depth.most if depth.steps is None else int(depth.steps[0])) - 1):
            new = model.again(state, batch.adjacency)
            moved = float((new - state).detach().abs().max())
            state = new
            if rule == "adaptive" and moved <= tolerance:
                break
        got = model(batch)
        assert_same(got.node, model.node_head(state), 1e-10)
        assert_same(got.graph, model.graph_head(state.mean(0, keepdim=True)), 1e-10)
    assert not any(name.startswith(("gru", "set2set")) for name, _ in model.named_parameters())


def test_the_standard_model_by_definition():
    model = made(Standard, layers=3).eval()
    batch = batch_of(graphs())
    states = [batch.x]
    for convolution in model.convolutions:
        states.append(convolution(states[-1], batch.adjacency))
    seen = torch.cat(states, 1)
    got = model(batch)
    assert_same(got.node, model.node_head(seen))
    mean = torch.stack([part.mean(0) for part in rows_of(batch, seen)])
    assert_same(got.graph, model.graph_head(mean))
    assert seen.shape[1] == 2 + 3 * 8


@pytest.mark.parametrize("graph_norm", [False, True])
@pytest.mark.parametrize("residual", [False, True])
def test_the_stacked_model_by_definition(residual, graph_norm):
    model = made(Stacked, layers=3, out_channels=6, residual=residual, graph_norm=graph_norm)
    model.eval()
    batch = batch_of(graphs())
    x = F.linear(batch.x, model.embed.weight, model.embed.bias)
    for convolution, norm in zip(model.convolutions, model.norms, strict=True):
        new = convolution(x, batch.adjacency)
        if graph_norm:
            new = new / batch.sizes[batch.graph_of_node, None].sqrt()
        new = torch.relu(norm(new))
        x = new + x if residual and new.shape == x.shape else new
    got = model(batch)
    assert_same(got.node, model.node_head(x))
    summed = torch.stack([part.sum(0) for part in rows_of(batch, x)])
    assert_same(got.graph, model.graph_head(summed))
    assert [layer.weight.shape[0] for layer in model.graph_head.layers] == [3, 1, 3]


@pytest.mark.parametrize("convolution", ["gcn", "gat"])
@pytest.mark.parametrize("batch_norm", [False, True])
def test_activations_of_the_stacked_model(convolution, batch_norm):
    """ELU after the norm of attention, ReLU after all others; with or without batch norm."""
    model = made(Stacked, convolution, layers=2, batch_norm=batch_norm, residual=False)
    batch = batch_of(graphs())
    got = model(batch)
    x = F.linear(batch.x, model.embed.weight, model.embed.bias)
    for convolve in model.convolutions:
        x = convolve(x, batch.adjacency)
        if batch_norm:
            x = F.batch_norm(x, None, None, training=True)
        x = F.elu(x) if convolution == "gat" else F.relu(x)
    assert_same(got.node, model.node_head(x))
    assert (x < 0).any() == (convolution == "gat")


@pytest.mark.parametrize(("norm", "inner"), [("layer", 12), ("batch", 8), ("none", 20)])
def test_feed_forward_blocks_and_norms(norm, inner):
    model = made(Stacked, "gcn", layers=2, norm=norm, feed_forward=inner / 8)
    for parameter in model.parameters():  # weights of norms are 1 and 0 at first
        torch.nn.init.uniform_(parameter, -0.5, 0.5)
    batch = batch_of(graphs())
    got = model(batch)

    def normalised(x, by):
        if norm == "batch":
            return F.batch_norm(x, None, None, by.weight, by.bias, training=True)
        if norm == "none":
            return x
        centred = x - x.mean(1, keepdim=True)
        variance = centred.square().mean(1, keepdim=True)
        return centred / (variance + 1e-5).sqrt() * by.weight + by.bias

    x = F.linear(batch.x, model.embed.weight, model.embed.bias)
    for layer, convolve in enumerate(model.convolutions):
        x = x + F.relu(normalised(convolve(x, batch.adjacency), model.norms[layer]))
        by, mlp = model.feed_forward[layer]
        first, second = mlp.layers
        assert first.weight.shape == (inner, 8)
        hidden = F.relu(F.linear(normalised(x, by), first.weight, first.bias))
        x = x + F.linear(hidden, second.weight, second.bias)
    assert_same(got.node, model.node_head(x))


def test_dropout_of_feed_forward_blocks():
    """Is another draw than that of the layer, and leaves the sum before the block alone."""
    model = made(Stacked, "gcn", layers=1, feed_forward=1, dropout=0.5, residual=False)
    seen = []
    model.dropout.register_forward_hook(lambda *given: seen.append(given))
    batch = batch_of(graphs())
    got = model(batch)
    (_, (_, time), of_layer), (_, (inner, later), dropped) = seen
    assert (time, later) == (0, 1)
    assert 0.2 < ((dropped == 0) & (inner != 0)).double().mean() < 0.8
    assert not torch.equal(dropped == 0, of_layer == 0)
    assert_same(got.node, model.node_head(of_layer + dropped))


@pytest.mark.parametrize("convolution", ["sage", "gat"])
def test_activations_before_the_norm(convolution):
    model = made(Stacked, convolution, layers=2, act_before_norm=True, residual=False)
    batch = batch_of(graphs())
    got = model(batch)
    x = F.linear(batch.x, model.embed.weight, model.embed.bias)
    for convolve in model.convolutions:
        x = convolve(x, batch.adjacency)
        x = F.elu(x) if convolution == "gat" else F.relu(x)
        x = F.batch_norm(x, None, None, training=True)
    assert_same(got.node, model.node_head(x))
    assert (x < 0).any()
    with pytest.raises(ValueError, match="got act_before_norm with norm_before_mixing"):
        made(Stacked, "pna", act_before_norm=True, norm_before_mixing=True)


@pytest.mark.parametrize("case", PUBLISHED, ids=str)
def test_parameters_are_those_of_the_real_world_rows(case):
    data, convolution, edges = case
    layers, hidden, out, edge_width, count = PUBLISHED[case]
    molecules = data.startswith("zinc")
    edge_arguments = {"edge_columns": 1, "edge_width": edge_width, "encode_edges": False,
                      "edge_values": [4] if molecules else []}  # fmt: skip
    model = Stacked(
        convolution, 1 if molecules else 3, hidden, 0, 1 if molecules else 10, deg=DEG,
        node_values=[28] if molecules else [], layers=layers, out_channels=out, towers=5,
        divide_input=True, norm_before_mixing=True, **(edge_arguments if edges else {}),
    )  # fmt: skip
    assert count_parameters(model) == count


def test_parameters_are_those_of_molhiv():
    atoms = [119, 4, 12, 12, 10, 6, 6, 2, 2]  # what OGB's encoder had then
    model = Stacked("pna-simple", 9, 80, 0, 1, deg=DEG, node_values=atoms, readout="mean")
    assert count_parameters(model) == 326_081


def test_norm_before_mixing_by_definition():
    """The authors' layer: towers, graph norm, batch norm, mixing, LeakyReLU, residual."""
    model = made(Stacked, layers=3, out_channels=6, graph_norm=True, norm_before_mixing=True,
                 divide_input=True, edge_columns=2, edge_width=3, encode_edges=False)  # fmt: skip
    batch = batch_of(graphs(edge_columns=2))
    model(batch)  # leaves statistics behind
    model.eval()
    x = F.linear(batch.x, model.embed.weight, model.embed.bias)
    edges = F.linear(batch.edge_attr, model.embed_edges.weight, model.embed_edges.bias)
    layers = zip(model.convolutions, model.norms, model.mixing, strict=True)
    for convolution, norm, mixing in layers:
        assert convolution.conv.lin is None and convolution.conv.edge_encoder is None
        towers = convolution(x, batch.adjacency, edges)
        new = mixing(norm(towers / batch.sizes[batch.graph_of_node, None].double().sqrt()))
        new = F.leaky_relu(new)
        x = new + x if new.shape == x.shape else new
    assert_same(model(batch).node, model.node_head(x))


def test_dropout_comes_before_mixing():
    """So that what is dropped is mixed with the rest, and no state is cut to 0."""
    batch = batch_of(graphs())
    given = []
    model = made(Stacked, layers=1, norm_before_mixing=True, dropout=0.5)
    model.mixing[0].register_forward_pre_hook(lambda module, inputs: given.append(inputs[0]))
    model(batch)
    assert 0.2 < float((given[0] == 0).double().mean()) < 0.8
    with pytest.raises(ValueError, match=r"norm_before_mixing for 'gcn', which has no towers"):
        made(Stacked, "gcn", norm_before_mixing=True)


@pytest.mark.parametrize("kind", [Recurrent, Standard, Stacked])
@pytest.mark.parametrize(("node", "graph"), [(2, 0), (0, 1), (1, 4)])
def test_predictions_are_of_what_was_asked(kind, node, graph):
    model = kind("pna", 2, 4, node, graph, deg=DEG)
    got = model(batch_of(graphs()))
    assert (got.node is None) == (node == 0) and (got.graph is None) == (graph == 0)
    if node:
        assert got.node.shape == (sum(SIZES), node)
    if graph:
        assert got.graph.shape == (len(SIZES), graph)


@pytest.mark.parametrize("kind", [Recurrent, Standard, Stacked])
def test_the_final_activation(kind):
    """Is the last thing done to a prediction."""
    batch = batch_of(graphs())
    plain = made(kind, final="none").eval()(batch)
    for name, function in (("leaky_relu", F.leaky_relu), ("sigmoid", torch.sigmoid)):
        got = made(kind, final=name).eval()(batch)
        assert_same(got.node, function(plain.node))
        assert_same(got.graph, function(plain.graph))
    usual = made(kind).eval()(batch)
    expected = plain if kind is Stacked else made(kind, final="leaky_relu").eval()(batch)
    assert_same(usual, expected)


@pytest.mark.parametrize("convolution", ["pna", "gin", "gat"])
@pytest.mark.parametrize("kind", [Recurrent, Standard])
def test_edge_features_reach_the_predictions(kind, convolution):
    """And each graph sees its own."""
    model = made(kind, convolution, edge_dim=2).eval()
    batch = batch_of(graphs(edge_columns=2))
    got = model(batch)
    other = model(replace(batch, edge_attr=batch.edge_attr + 1))
    assert not torch.allclose(got.graph, other.graph)
    assert_same(got.graph[1:3], other.graph[1:3])  # which have no edges
    alone = model(batch_of(graphs(edge_columns=2), [3]))
    assert_same(got.graph[3], alone.graph[0])
    single = made(kind, convolution, edge_dim=2).float().eval()(batch)  # of features of float64
    torch.testing.assert_close(single.graph, got.graph.float(), rtol=1e-3, atol=1e-3)
    with pytest.raises(ValueError, match="got a batch without edge features"):
        model(replace(batch, edge_attr=None))


@pytest.mark.parametrize("convolution", ["pna", "gin", "gat"])
@pytest.mark.parametrize("columns", [1, 3], ids=["a table", "several columns"])
def test_kinds_of_edges_are_embedded(convolution, columns):
    """One column is a table with a place for each edge; several are summed for each edge."""
    made_graphs = graphs(edge_columns=columns, whole=True)
    model = made(
        Stacked, convolution, node_values=[3, 3], edge_columns=columns, edge_values=[3] * columns,
        edge_width=4,
    ).eval()  # fmt: skip
    batch = batch_of(made_graphs)
    got = model(batch)
    # by definition: the same layers with every edge's features made
    tables = model.embed_edges.weight.split([3] * columns)
    edges = sum(t[batch.edge_attr[:, i].long()] for i, t in enumerate(tables))
    nodes = model.embed.weight.split([3, 3])
    x = sum(t[batch.x[:, i].long()] for i, t in enumerate(nodes))
    act = F.elu if convolution == "gat" else F.relu
    for convolution_, norm in zip(model.convolutions, model.norms, strict=True):
        x = act(norm(convolution_(x, batch.adjacency, edges))) + x
    assert_same(got.node, model.node_head(x))


@pytest.mark.parametrize("kinds", [3, 14], ids=["few", "many"])
def test_numbers_stand_beside_kinds(kinds):
    """Of nodes and of edges, whether or not the layer can take the edges' vectors as a basis."""
    made_graphs = with_walks(graphs(edge_columns=1, whole=True, columns=1), 3, edge_steps=2)
    model = made(
        Stacked, inputs=4, node_values=[3, 0, 0, 0], edge_columns=3, edge_values=[kinds, 0, 0],
        edge_width=4, layers=2,
    ).eval()  # fmt: skip
    batch = batch_of(made_graphs)
    got = model(batch)
    x = model.embed.weight[batch.x[:, 0].long()] + batch.x[:, 1:].double() @ model.embed.weight[3:]
    vectors = model.embed_edges.weight
    edges = (
        vectors[batch.edge_attr[:, 0].long()] + batch.edge_attr[:, 1:].double() @ vectors[kinds:]
    )
    for convolution, norm in zip(model.convolutions, model.norms, strict=True):
        x = norm(convolution(x, batch.adjacency, edges)) + x
    assert_same(got.node, model.node_head(x))


def test_the_virtual_node_is_heard_between_layers():
    model = made(Stacked, layers=3, out_channels=6, virtual_node=True)
    batch = batch_of(graphs())
    model(batch)  # leaves statistics behind
    model.eval()
    x, state = F.linear(batch.x, model.embed.weight, model.embed.bias), None
    assert len(model.virtual_nodes) == 2
    for layer, (convolution, norm) in enumerate(zip(model.convolutions, model.norms, strict=True)):
        conv_input = x
        if layer:
            conv_input, state = model.virtual_nodes[layer - 1](x, state, batch)
        new = norm(convolution(conv_input, batch.adjacency))
        x = new + x if new.shape == x.shape else new
    assert_same(model(batch).node, model.node_head(x))


def test_flips_come_first():
    """And out of use when not training."""
    model, batch = made(Stacked, flip=((1, 1.0),)), batch_of(graphs())
    given = []
    model.embed.register_forward_pre_hook(lambda module, inputs: given.append(inputs[0]))
    for _ in range(8):
        model(batch)
    assert all(torch.equal(x[:, 0], batch.x[:, 0]) for x in given)
    assert any(not torch.equal(x, batch.x) for x in given)
    model.eval()(batch)
    assert torch.equal(given[-1], batch.x)
    with pytest.raises(ValueError, match="got flip for nodes with categorical"):
        made(Stacked, node_values=[3, 0], flip=((1, 1.0),))


def test_rotations_come_first():
    """And not when not training."""
    model, batch = made(Stacked, rotate=20.0, centre=((0, 0.0), (1, 0.0))), batch_of(graphs())
    given = []
    model.embed.register_forward_pre_hook(lambda module, inputs: given.append(inputs[0]))
    model(batch)
    assert not torch.equal(given[0], batch.x)
    torch.testing.assert_close(given[0].norm(dim=1), batch.x.norm(dim=1))
    model.eval()(batch)
    assert torch.equal(given[-1], batch.x)
    with pytest.raises(ValueError, match="got rotate for nodes with categorical"):
        made(Stacked, node_values=[3, 0], rotate=20.0, centre=((0, 0.0), (1, 0.0)))
    with pytest.raises(ValueError, match=r"got centre=.* without rotate, expected both or neither"):
        made(Stacked, centre=((0, 0.0), (1, 0.0)))


def test_scales_and_shifts_come_first():
    """And not when not training."""
    model, batch = made(Stacked, scale_shift=[[[1], 0.0, 0.1, 0.1]]), batch_of(graphs())
    given = []
    model.embed.register_forward_pre_hook(lambda module, inputs: given.append(inputs[0]))
    model(batch)
    assert torch.equal(given[0][:, 0], batch.x[:, 0])
    assert not torch.isclose(given[0][:, 1], batch.x[:, 1]).all()
    model.eval()(batch)
    assert torch.equal(given[-1], batch.x)
    with pytest.raises(ValueError, match="got scale_shift for nodes with categorical"):
        made(Stacked, node_values=[3, 0], scale_shift=[[[1], 0.0, 0.1, 0.1]])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"mirror": ((1, 1.0),)}, {"flip": ((1, 1.0),)}),
        (
            {"turn": 20.0, "centre": ((0, 0.0), (1, 0.0))},
            {"rotate": 20.0, "centre": ((0, 0.0), (1, 0.0))},
        ),
        ({"vary": [[[1], 0.0, 0.1, 0.1]]}, {"scale_shift": [[[1], 0.0, 0.1, 0.1]]}),
    ],
)
def test_former_names_of_augmentations(old, new):
    """They work, with a warning, and give the same model."""
    [name] = old.keys() - {"centre"}
    with pytest.warns(DeprecationWarning, match=f"argument {name} of Stacked is now called"):
        model = made(Stacked, **old)
    assert repr(model) == repr(made(Stacked, **new))


@pytest.mark.parametrize("graph_norm", [False, True])
@pytest.mark.parametrize("columns", [0, 2], ids=["none", "features"])
def test_edges_of_gated_gcn_have_states(columns, graph_norm):
    """Which begin as their features, or a 1, and go from layer to layer as those of nodes do."""
    model = made(
        Stacked, "gated-gcn", layers=3, out_channels=6, edge_columns=columns, graph_norm=graph_norm
    )
    batch = batch_of(graphs(edge_columns=columns))
    of_edge = batch.graph_of_node[batch.adjacency.receivers.long()]
    shrink = {
        "node": batch.sizes[batch.graph_of_node, None].double() ** -0.5,
        "edge": torch.bincount(of_edge)[of_edge, None].double() ** -0.5,
    } if graph_norm else {"node": 1.0, "edge": 1.0}  # fmt: skip
    model(batch)  # leaves statistics behind
    model.eval()
    x = F.linear(batch.x, model.embed.weight, model.embed.bias)
    given = batch.edge_attr if columns else torch.ones(batch.adjacency.num_edges, 1).double()
    e = F.linear(given, model.embed_edges.weight, model.embed_edges.bias)
    e = e[batch.adjacency.edge_ids.long()]
    assert len(model.edge_norms) == 2
    for layer, (convolution, norm) in enumerate(zip(model.convolutions, model.norms, strict=True)):
        new, states = convolution.conv.update(x, batch.adjacency, e)
        new = torch.relu(norm(new * shrink["node"]))
        x = new + x if new.shape == x.shape else new
        if layer < 2:
            e = e + torch.relu(model.edge_norms[layer](states * shrink["edge"]))
    assert_same(model(batch).node, model.node_head(x))


def test_edges_of_real_features():
    model = made(Stacked, edge_columns=2, edge_width=3).eval()
    batch = batch_of(graphs(edge_columns=2))
    assert model(batch).graph.isfinite().all()
    with pytest.raises(ValueError, match="got a batch without edge features"):
        model(batch_of(graphs()))


def test_what_is_refused():
    with pytest.raises(ValueError, match="got layers=0"):
        made(Stacked, layers=0)
    with pytest.raises(ValueError, match="unknown norm 'lair'; did you mean 'layer'"):
        made(Stacked, norm="lair")
    with pytest.raises(ValueError, match=r"got feed_forward=-1, expected a width.*such as 2"):
        made(Stacked, feed_forward=-1)
    with pytest.raises(ValueError, match="unknown readout 'men'"):
        made(Standard, readout="men")
    with pytest.raises(ValueError, match="unknown readout 'men'"):
        made(Recurrent, readout="men")
    with pytest.raises(ValueError, match="got swap_gru=True with gru=False"):
        made(Recurrent, gru=False, swap_gru=True)
    with pytest.raises(ValueError, match="got graphs without node features"):
        made(Stacked)(replace(batch_of(graphs()), x=None))


def test_no_graphs_and_no_nodes():
    """An empty share of a batch goes through all models, in training too."""
    empty = batch_of(graphs(), [])
    for kind in (Recurrent, Standard, Stacked):
        got = made(kind)(empty)
        assert got.node.shape == (0, 3) and got.graph.shape == (0, 3)


def test_set2set_takes_as_many_steps_as_nodes():
    assert isinstance(made(Recurrent).set2set, Set2Set) and made(Recurrent).set2set.steps is None


def test_gradients_of_graphs_that_have_come_to_rest():
    """Of a batch they are the sums of those of each alone: none flows through steps not taken."""
    model = made(Recurrent, depth="N/2").eval()
    batch = batch_of(graphs())
    parameters = list(model.parameters())
    loss = model(batch).graph.square().sum()
    got = torch.autograd.grad(loss, parameters, materialize_grads=True, allow_unused=True)
    parts = [
        torch.autograd.grad(
            model(batch_of(graphs(), [g])).graph.square().sum(), parameters,
            materialize_grads=True, allow_unused=True,
        )
        for g in range(len(SIZES))
    ]  # fmt: skip
    for i, gradient in enumerate(got):
        assert_same(gradient, sum(part[i] for part in parts), 1e-10)
