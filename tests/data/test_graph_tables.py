"""Tables of nodes and edges as one graph; what cannot be right is named with its line."""

import gzip
import warnings

import networkx
import numpy as np
import pytest

from pna.data import NodeGraph, elements

NODES = """name,age,town,one,label,score,part
ann,31,Rome,1,yes,0.5,train
bob,,Rome,1,no,,train
cyd,25,Oslo,1,yes,2,val
dan,40,,1,no,3,valid
eve,52,Oslo,1,yes,4,test
fay,18,Rome,1,,5,
"""
EDGES = """from;to;weight;kind
ann;bob;0.5;friend
bob;cyd;1;kin
eve;cyd;2;kin
eve;eve;2.5;friend
"""
USES = {"targets": ["label", "score"], "split": "part"}


@pytest.fixture
def read(tmp_path):
    """Reads these texts; warnings are errors unless they are expected."""

    def made(nodes=NODES, edges=EDGES, **given):
        (tmp_path / "nodes.csv").write_bytes(nodes.encode() if isinstance(nodes, str) else nodes)
        (tmp_path / "edges.csv").write_bytes(edges.encode() if isinstance(edges, str) else edges)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("default", message=given.pop("warns", "^$"))
            return NodeGraph.from_tables(
                tmp_path / "edges.csv", tmp_path / "nodes.csv", **(USES | given)
            )

    return made


def test_nodes(read):
    nodes = read().nodes
    assert [*nodes.names] == ["ann", "bob", "cyd", "dan", "eve", "fay"] and nodes.name(1) == "bob"
    assert nodes.features == ("age", "age missing")
    assert nodes.x.T.tolist() == [[31, 31, 25, 40, 52, 18], [0, 1, 0, 0, 0, 0]]
    assert nodes.mean.tolist() == [[31, 0.5]] and nodes.std.tolist() == [[1, 0.5]]
    assert nodes.categories == {"town": ("Oslo", "Rome", "")}
    assert nodes.codes.T.tolist() == [[1, 1, 0, 2, 0, 1]]
    assert nodes.split.T.tolist() == [[1, 1, 2, 2, 3, 0]]
    assert nodes.part("validation").tolist() == [False, False, True, True, False, False]


def test_targets(read):
    nodes = read().nodes
    label, score = nodes.targets
    assert (label.name, label.kind, label.classes) == ("label", "class", ("no", "yes"))
    assert label.values.tolist() == [1, 0, 1, 0, 1, -1]
    assert label.known.tolist() == [True, True, True, True, True, False]
    assert score.kind == "number" and score.known.tolist() == [True, False, True, True, True, True]
    assert nodes.target("score") is score
    with pytest.raises(ValueError, match="unknown target 'lable'; did you mean 'label'"):
        nodes.target("lable")


def test_edges(read):
    graph = read()
    assert not graph.directed and graph.num_edges == 4
    assert graph.edge_index.tolist() == [[0, 1, 4, 4, 1, 2, 2], [1, 2, 2, 4, 0, 1, 4]]
    assert graph.edge_row.tolist() == [0, 1, 2, 3, 0, 1, 2]
    assert graph.is_reverse.tolist() == [False] * 4 + [True] * 3
    assert graph.edges.x.tolist() == [[0.5], [1], [2], [2.5]] and graph.edges.features == (
        "weight",
    )
    assert graph.edges.categories == {"kind": ("friend", "kin")} and graph.edges.split is None
    as_listed = read(directed=True)
    assert as_listed.directed and as_listed.edge_index.tolist() == [[0, 1, 4, 4], [1, 2, 2, 4]]


def test_what_was_changed_is_noted(read):
    lines = " ".join(read().summary())
    assert "node column age: 1 missing, filled with the mean over training rows, 31" in lines
    assert "node column town: 1 missing, as a category" in lines
    assert "node columns left out, as they are constant: 1: one" in lines
    assert "6 nodes, 4 edges, undirected, stored as 7 directions" in lines
    assert "1 none, 2 train, 2 validation, 1 test" in lines
    assert "of 2 classes: yes (3), no (2), missing in 1 of 6; class 1 is yes" in lines


def test_packed_tables_with_tabs(read):
    tabs = gzip.compress(NODES.replace(",", "\t").encode())
    assert read(tabs, gzip.compress(EDGES.encode())).nodes.x.tolist() == read().nodes.x.tolist()


def test_columns_by_name(read):
    nodes = "town,name,label,part,zip\nRome,ann,3,train,01\nOslo,bob,2,dev,1\nOslo,cyd,2,test,2\n"
    edges = "weight,to,at,sign\n1,ann,bob,1\n2,cyd,cyd,-1\n"
    graph = read(
        nodes, edges, id="name", source="at", dest="to", targets=["label"], split="part",
        categorical=["zip"], numeric=["label"], ignore=["town"],
    )  # fmt: skip
    assert graph.edge_index.tolist() == [[1, 2, 0], [0, 2, 1]]
    assert graph.nodes.categories == {"zip": ("01", "1", "2")} and graph.nodes.features == ()
    assert graph.nodes.target("label").kind == "number"
    assert graph.edges.features == ("weight", "sign")


def test_names_that_are_row_numbers_are_not_stored(read):
    nodes = "id,label,part\n0,a,train\n1,b,train\n2,a,val\n3,a,test\n"
    graph = read(nodes, "a,b\n0,3\n", targets=["label"])
    assert graph.nodes.names is None and graph.nodes.name(3) == "3"


def test_edges_alone(tmp_path):
    path = tmp_path / "edges.csv"
    path.write_text("a,b,sign,part\nx,y,1,train\ny,z,-1,train\nz,w,1,val\nw,x,1,test\nx,z,-1,\n")
    graph = NodeGraph.from_tables(path, edge_targets=["sign"], edge_split="part")
    assert [*graph.nodes.names] == ["x", "y", "z", "w"]
    assert graph.nodes.features == ("log(1 + degree)",)
    np.testing.assert_allclose(graph.nodes.x[:, 0], np.log([4, 3, 4, 3]), rtol=1e-6)
    assert graph.edges.target("sign").classes == ("-1", "1")
    assert graph.edges.split.T.tolist() == [[1, 1, 2, 3, 0]]
    assert graph.edges.features == () and "they get log(1 + degree)" in " ".join(graph.summary())
    both = NodeGraph.from_tables(path, edge_targets=["sign"], edge_split="part", directed=True)
    assert both.nodes.features == ("log(1 + in-degree)", "log(1 + out-degree)")
    np.testing.assert_allclose(both.nodes.x[:, 1], np.log([3, 2, 2, 2]), rtol=1e-6)


def test_ends_that_are_probably_in_other_columns(tmp_path):
    path = tmp_path / "edges.csv"
    path.write_text("key,day,a,b,sign\n" + "".join(f"{k},d{k},x,y{k % 2},{k}\n" for k in range(9)))
    words = "none of which shares a node .* read from 'key' and 'day': if others have them, use --s"
    with pytest.warns(UserWarning, match=words):
        NodeGraph.from_tables(path, directed=True)
    graph = NodeGraph.from_tables(path, source="a", dest="b", ignore=["key", "day"], directed=True)
    assert graph.num_nodes == 3


def test_a_random_split_has_the_same_shares_in_every_class(read):
    rows = [f"n{i},{i * i % 97},{'rare' if i % 10 == 0 else 'usual'}" for i in range(200)]
    nodes = "\n".join(["id,v,label", *rows, "n200,3,"]) + "\n"
    given = {"targets": ["label"], "split": "", "random_split": (0.6, 0.2, 0.2)}
    first, again, other = (
        read(nodes, "a,b\nn1,n2\n", **given, seed=seed).nodes.split[:, 0] for seed in (0, 0, 1)
    )
    rare = np.arange(200) % 10 == 0
    assert np.bincount(first[:200][rare]).tolist() == [0, 12, 4, 4]
    assert np.bincount(first[:200][~rare]).tolist() == [0, 108, 36, 36] and first[200] == 0
    assert (first == again).all() and not (first == other).all()


def changed(old, new):
    assert old in NODES
    return NODES.replace(old, new)


@pytest.mark.parametrize(
    "given, words",
    [
        ({"edges": EDGES + "eve;bbo;1;kin\n"},
         r"got 'bbo' as to in line 6 of .*edges.csv, which no row of .*nodes.csv describes, "
         r"expected the name of a node such as 'bob'; correct the line, or add a row .*; the ends "
         r"of an edge are read from 'from' and 'to': if others have them, use --source COLUMN"),
        ({"nodes": NODES + "bob,1,Rome,1,no,1,train\n"},
         r"got the node 'bob' twice, in line 3 of .*nodes.csv and in line 8 of .*nodes.csv, "
         "expected one row for each node; remove one"),
        ({"edges": EDGES + ";bob;1;kin\n"},
         r"an edge with a missing end in line 6 of .*edges.csv \(the column 'from' is empty\)"),
        ({"nodes": NODES + ",1,Rome,1,no,1,train\n"}, r"a node without a name in line 8 of"),
        ({"nodes": NODES.replace("val\n", "test\n").replace("valid\n", "test\n")},
         "got no validation nodes with a known label in the split, expected some; correct"),
        ({"nodes": NODES.replace(",train\n", ",\n")}, "got no train nodes with a known label"),
        ({"nodes": changed("valid\n", "vlaid\n")},
         r"got 'vlaid' as part in line 5 of .*nodes.csv, expected train, validation or test"),
        ({"nodes": NODES.replace(",yes,", ",,").replace(",no,", ",,")},
         "got the target 'label', which is missing in all 6 rows of nodes"),
        ({"nodes": NODES.replace(",yes,", ",no,")}, "with the only class 'no', expected at least"),
        ({"nodes": changed("cyd,25,", "cyd,")},
         r"got 6 cells in line 4 of .*nodes.csv, expected one for each of the 7 columns"),
        ({"nodes": "\n"}, "nodes.csv without rows, expected a line of names"),
        ({"nodes": NODES[: NODES.index("ann")]}, "nodes.csv without rows, expected a line"),
        ({"edges": "a,b\n"}, "edges.csv without rows, expected a line of names"),
        ({"edges": "a\nann\n"}, "edges.csv with 1 columns, expected at least 2"),
        ({"nodes": changed("cyd,25,", "cyd,inf,")},
         r"got inf as age in line 4 of .*nodes.csv, expected a finite number"),
        ({"targets": ["lable"]}, r"unknown column of .*nodes.csv 'lable'; did you mean 'label'"),
        ({"ignore": ["ages"]}, r"unknown column of .*edges.csv 'ages'; did you mean 'age'"),
        ({"split": ""}, r"got the target 'label' without a split, .*--split, or use "),
        ({"random_split": (0.6, 0.2, 0.2)}, "got a random split, but nothing to split"),
        ({"split": "", "random_split": (0.6, 0.2, 0.3)}, "three fractions above 0 that add up to"),
        ({"split": "", "random_split": (float("nan"), 0.5, 0.5)}, "three fractions above 0 that"),
        ({"ignore": ["label"]}, "'label' of .*nodes.csv as left out and a target, expected one"),
        ({"targets": ["part"]}, "'part' of .*nodes.csv as a target and the split, expected"),
        ({"id": "label"}, "'label' of .*nodes.csv as the name of a node and a target"),
        ({"dest": "from"}, "column 'from' of .*edges.csv for both ends"),
        ({"numeric": ["town"]}, r"got 'Rome' as town in line 2 of .*nodes.csv, expected a number"),
        ({"numeric": ["age"], "categorical": ["age"]}, "'age' as categorical and as numeric"),
        ({"nodes": changed("age,town", "age,age")}, "two columns called 'age' in .*nodes.csv"),
        ({"nodes": changed("town,one", "town,age missing")}, "'age missing', which would be added"),
        ({"nodes": NODES.replace("Rome", "Rom\xe9").encode("latin-1")}, "not UTF-8 in line 2; sav"),
        ({"nodes": gzip.compress(NODES.encode())[:-9]}, "nodes.csv, which gzip cannot unpack"),
    ],
)  # fmt: skip
def test_bad_tables(read, given, words):
    with pytest.raises(ValueError, match=words):
        read(**given)


@pytest.mark.parametrize(
    "given, words",
    [
        ({"nodes": changed("eve,52,Oslo,1,yes", "eve,52,Oslo,1,maybe")},
         r"got classes of label without a training node in the split: maybe, in 1 rows, the "
         r"first in line 6 of .*nodes.csv; a model cannot learn them"),
        ({"edges": EDGES + "cyd;bob;1;kin\n"},
         r"got 1 edges between two nodes that an earlier row joins too, the first in line 6 of .*"
         r"edges.csv; every row is kept .* use --directed"),
        ({"nodes": changed("eve,52,Oslo,1,yes,4,test", "eve,52,Oslo,1,yes,4,")},
         "got no test nodes with a known label in the split"),
    ],
)  # fmt: skip
def test_doubtful_tables(read, given, words):
    with pytest.warns(UserWarning, match=words):
        graph = read(**given, targets=["label"], warns="got")
    assert graph.num_nodes == 6 and graph.num_edges == given.get("edges", EDGES).count("\n") - 1


@pytest.mark.parametrize("feature", ["copy", "as number"])
@pytest.mark.parametrize("in_order", [False, True])
def test_a_feature_that_gives_the_target(read, monkeypatch, feature, in_order):
    monkeypatch.setattr(elements, "_COMPARED", 10)  # rows of one class, if they are in order
    label = [i // 10 if in_order else i * i % 3 for i in range(30)]
    value = [f"c{y}" if feature == "copy" else -2.5 * y for y in label]
    rows = [f"n{i},{v},{y},{i}" for i, (v, y) in enumerate(zip(value, label, strict=True))]
    nodes = "\n".join([f"id,{feature},label,other", *rows]) + "\n"
    given = {"targets": ["label"], "split": "", "random_split": (0.6, 0.2, 0.2)}
    with pytest.warns(UserWarning, match=f"'{feature}', which gives the target 'label' exactly"):
        read(nodes, "a,b\nn1,n2\n", **given, warns="got the node feature")
    read(nodes, "a,b\nn1,n2\n", **given, ignore=[feature])


def test_a_target_of_nodes_without_a_table_of_them(tmp_path):
    (tmp_path / "e.csv").write_text("a,b\nx,y\n")
    with pytest.raises(ValueError, match="without a table of nodes, expected one; pass --nodes"):
        NodeGraph.from_tables(tmp_path / "e.csv", targets=["label"])


def test_progress_goes_from_nodes_to_edges(read, tmp_path):
    seen = []
    read(progress=lambda done, total: seen.append((done, total)))
    assert seen[0][0] == len(NODES) and seen[-1] == (len(NODES + EDGES),) * 2


def test_networkx():
    graph = networkx.Graph(name="towns")
    graph.add_node(("a", 1), pos=[1.0, 2.0], rich=True, label="x", part="train")
    graph.add_node("b", pos=[3.0, 5.0], rich=False, label="y", part="train")
    graph.add_node("c", pos=None, rich=True, label="y", part="val")
    graph.add_node("d", pos=[3, 5], label="x", part="test")
    graph.add_edge("b", ("a", 1), weight=2.5)
    graph.add_edge("c", "c")
    made = NodeGraph.from_networkx(graph, target="label", split="part")
    assert [*made.nodes.names] == ["('a', 1)", "b", "c", "d"]
    assert made.nodes.features == ("pos_0", "pos_0 missing", "pos_1", "pos_1 missing")
    assert made.nodes.x[2].tolist() == [2, 1, 3.5, 1]
    assert made.nodes.categories == {"rich": ("False", "True", "")}
    assert made.edge_index.tolist() == [[0, 2, 1], [1, 2, 0]]
    assert made.edges.features == ("weight missing",)
    directed = NodeGraph.from_networkx(graph.to_directed(), target="label", split="part")
    assert directed.directed and directed.num_edges == 3


def test_networkx_that_cannot_be_read():
    graph = networkx.Graph()
    graph.add_nodes_from([1, "1"])
    with pytest.raises(ValueError, match="two nodes that are written '1', expected different"):
        NodeGraph.from_networkx(graph)
    graph = networkx.Graph()
    graph.add_node("a", v=[1, 2])
    graph.add_node("b", v=[1])
    with pytest.raises(ValueError, match="got v of 1 values in node 'b', expected 2"):
        NodeGraph.from_networkx(graph)
    with pytest.raises(TypeError, match="got dict, expected a networkx graph"):
        NodeGraph.from_networkx({})


@pytest.mark.parametrize("nodes", [None, "name,f\na,1\nb,2\nc,3\n"])
def test_an_edge_in_place_of_the_names_of_columns(tmp_path, nodes):
    """Without a header the first edge would be lost."""
    (tmp_path / "e.csv").write_text("a,b\nb,c\nc,a\na,c\n")
    if nodes:
        (tmp_path / "n.csv").write_text(nodes)
    with pytest.raises(ValueError, match=r"got 'a' and 'b' as names of columns .*e\.csv"):
        NodeGraph.from_tables(tmp_path / "e.csv", tmp_path / "n.csv" if nodes else None)
