"""Programs in eager mode: the models' own predictions, from plain tensors of any size."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from pna.nn.architectures import ARCHITECTURES
from pna.nn.depth import RULES
from pna.nn.registry import CONVOLUTIONS
from pna.train.models import build
from pna.train.program import Program
from pna.train.settings import ModelSettings
from tests.train.programs import (
    BATCHES,
    assert_as_expected,
    configured,
    expected,
    inputs_of,
    lone_node,
    made,
)

#: Recurrent models read out by Set2Set, whose steps depend on the graph as well.
MAX_NODES = {"recurrent": 5, "standard": None, "stacked": None}


def settings(convolution, architecture, **arguments):
    if architecture != "recurrent":
        arguments = {"layers": 2, **arguments}
    if architecture == "stacked" and not CONVOLUTIONS[convolution].edges:
        arguments["edges"] = False
    return ModelSettings(convolution, architecture, 8, arguments=arguments)


def outputs(program, given):
    with torch.no_grad():
        return {name: found.numpy() for name, found in program(**given).items()}


@pytest.mark.covering(1, always=True)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("convolution", CONVOLUTIONS)
def test_of_every_model(convolution, architecture):
    program, graphs = made(settings(convolution, architecture), MAX_NODES[architecture])
    for some, ids in [(graphs, ids) for ids in BATCHES] + [(lone_node(graphs), [0])]:
        found = outputs(program, inputs_of(program, some, ids))
        if len(ids):
            assert_as_expected(found, expected(program, some, ids))
        else:
            assert all(len(values) == 0 for values in found.values())


@pytest.mark.parametrize("depth", RULES)
def test_of_every_rule_of_depth(depth):
    model = settings("mpnn-max", "recurrent", depth=depth, readout="sum")
    program, graphs = made(model, max_nodes=6)
    assert ("diameter" in program.inputs) == (depth == "diameter")
    ids = [0, 31, 5]
    found = outputs(program, inputs_of(program, graphs, ids))
    assert_as_expected(found, expected(program, graphs, ids))


def test_a_larger_graph_gets_nan():
    """And no other: neither its nodes nor the graph may look predicted."""
    program, graphs = made(settings("gin", "recurrent", readout="sum"), max_nodes=4)
    sizes = graphs.sizes[[0, 31]].tolist()
    assert sizes == [4, 5]
    found, wanted = (
        outputs(program, inputs_of(program, graphs, [0, 31])),
        expected(program, graphs, [0]),
    )
    for name, values in wanted.items():
        np.testing.assert_allclose(found[name][: len(values)], values, rtol=2e-4, atol=2e-5)
        assert np.isnan(found[name][len(values) :]).all()
        assert len(found[name]) in (2, 9)


def test_members_are_averaged_in_units():
    """Probabilities are averaged, not the outputs that they are made of."""
    program, graphs = made(settings("gin", "stacked"), members=2)
    found = outputs(program, inputs_of(program, graphs, [0, 1]))
    assert_as_expected(found, expected(program, graphs, [0, 1]))
    with torch.no_grad():
        each = [model(graphs.batch([0, 1])).graph[:, 0].tolist() for model in program.models]
    mean = [sum(1 / (1 + math.exp(-p)) for p in pair) / 2 for pair in zip(*each, strict=True)]
    np.testing.assert_allclose(found["active"], mean, rtol=1e-5)


def test_description():
    program, _ = made(settings("gin", "stacked"))
    assert program.description() == {
        "inputs": {
            "x": {
                "dtype": "int64",
                "shape": ["nodes", 2],
                "meaning": "features of each node",
                "categories": [4, 4],
            },
            "edge_index": {
                "dtype": "int64",
                "shape": [2, "edges"],
                "meaning": "sender and receiver of each edge, counted over all graphs",
            },
            "sizes": {
                "dtype": "int64",
                "shape": ["graphs"],
                "meaning": "number of nodes of each graph; the nodes of a graph are consecutive",
            },
            "edge_attr": {
                "dtype": "int64",
                "shape": ["edges", 1],
                "meaning": "features of each edge",
                "categories": [3],
            },
        },
        "outputs": {
            "active": {
                "dtype": "float32",
                "shape": ["graphs"],
                "meaning": "the probability of a 1",
            },
            "kind": {
                "dtype": "float32",
                "shape": ["graphs", 3],
                "meaning": "the probability of every class",
            },
            "size": {
                "dtype": "float32",
                "shape": ["graphs"],
                "meaning": "in the units of the target",
            },
        },
        "max_nodes": None,
    }


@pytest.mark.parametrize(
    "architecture, arguments, max_nodes, message",
    [
        ("recurrent", {"readout": "sum"}, None, "whose depth is N/2, so that its number of steps"),
        ("standard", {"readout": "set2set"}, None, "whose readout is set2set"),
        ("recurrent", {"depth": 2, "readout": "sum"}, 9, "got max_nodes=9 for a model whose"),
        ("recurrent", {}, 0, "got max_nodes=0, expected at least 1"),
    ],
)
def test_steps_that_depend_on_the_graph(architecture, arguments, max_nodes, message):
    with pytest.raises(ValueError, match=message):
        made(settings("gin", architecture, **arguments), max_nodes)


def test_a_target_with_the_name_of_an_input():
    config = configured(settings("gin", "stacked"))
    renamed = replace(config, tasks=(replace(config.tasks[0], name="x"),))
    assert [*Program([build(config.model)], renamed).outputs] == ["x predicted"]
