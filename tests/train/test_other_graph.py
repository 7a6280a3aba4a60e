"""A model meets another graph than that of its training: features are encoded as in training."""

from __future__ import annotations

import csv

import pytest

from pna.data import NodeGraph
from pna.train import Settings, evaluate, predict, train
from pna.train.settings import ModelSettings

SMALL = ModelSettings("pna", "stacked", 8, arguments=dict(layers=2, final="none"))
HEADER = ["name", "age", "town", "label", "part"]
PARTS = ["train", "train", "validation", "test"]


def rows():
    """Three components of eight nodes, each in a town of its own; some ages are missing."""
    return [
        [f"n{i}", str(20 + i * i % 37) if i % 5 else "", ["Bergen", "Oslo", "Rome"][i // 8]]
        + ["cba"[(i + i // 8) % 3], PARTS[i % 4]]
        for i in range(24)
    ]


def made(folder, name, nodes, header=HEADER):
    known = {row[0] for row in nodes}
    ends = [(i, i + 1 + k) for i in range(24) for k in range(3) if (i + 1 + k) // 8 == i // 8]
    edges = [[f"n{a}", f"n{b}", a % 3] for a, b in ends if {f"n{a}", f"n{b}"} <= known]
    for path, content in (("n.csv", [header, *nodes]), ("e.csv", [["a", "b", "w"], *edges])):
        with (folder / path).open("w", newline="") as file:
            csv.writer(file).writerows(content)
    graph = NodeGraph.from_tables(
        folder / "e.csv", folder / "n.csv", targets=["label"], split="part"
    )
    graph.save(path := folder / f"{name}.safetensors", force=True)
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    data = made(folder, "g", rows())
    return train(data, folder / "run", SMALL, Settings(epochs=2, lr=0.01), device="cpu")


def by_name(predictions):
    columns = [predictions.node[f"label={c}"] for c in "abc"]
    return {name: of for name, *of in zip(predictions.names, *columns, strict=True)}


def test_predictions_do_not_depend_on_the_other_rows_of_the_file(run, tmp_path):
    """Without Bergen, with other parts and in another order, means and codes would differ."""
    expected = by_name(predict(run, run.config.data["path"], device="cpu"))
    kept = [[*row[:4], PARTS[i % 3 + 1]] for i, row in enumerate(rows()) if row[2] != "Bergen"]
    found = predict(run, made(tmp_path, "h", kept[::-1]), device="cpu")
    assert found.names == [row[0] for row in kept[::-1]]
    for name, of_node in by_name(found).items():
        assert of_node == pytest.approx(expected[name], abs=1e-6)


def test_columns_in_another_order_and_without_a_missing_number(run, tmp_path):
    kept = [row for row in rows() if row[1] and row[2] != "Rome"]
    names = [row[0] for row in kept]
    swapped = [[row[0], row[2], row[1], *row[3:]] for row in kept]
    header = ["name", "town", "age", "label", "part"]
    one = predict(run, made(tmp_path, "one", kept), device="cpu")
    two = predict(run, made(tmp_path, "two", swapped, header), device="cpu")
    assert one.names == names and by_name(one) == by_name(two)


def test_classes_are_compared_by_name(run, tmp_path):
    """Without class a, c would be class 1 of the file, but it is class 2 of the run."""
    kept = [row for row in rows() if row[3] != "a"]
    path = made(tmp_path, "h", kept)
    found = evaluate(run, path, None, device="cpu").tasks[0].metrics["accuracy"]
    predicted = predict(run, path, device="cpu").node["label"].tolist()
    right = [guess == row[3] for guess, row in zip(predicted, kept, strict=True)]
    assert found == [pytest.approx(sum(right) / len(right))]
    kept[2][3] = kept[4][3] = "z"
    with pytest.raises(ValueError, match=r"got 'z' as label in the graphs.*classes of the run: a"):
        evaluate(run, made(tmp_path, "h", kept), None, device="cpu")


def test_other_columns_and_categories(run, tmp_path):
    unseen = rows()
    unseen[3][2] = "Paris"
    with pytest.raises(
        ValueError, match=r"h.*: got 'Paris' as town of the node 'n3', expected one"
    ):
        predict(run, made(tmp_path, "h", unseen), device="cpu")
    more = [[*row, i] for i, row in enumerate(rows())]
    with pytest.raises(ValueError, match=r"with the node feature 'more', .*--ignore more"):
        predict(run, made(tmp_path, "h", more, [*HEADER, "more"]), device="cpu")
    text = [[row[0], f"x{row[1]}", *row[2:]] for row in rows()]
    with pytest.raises(ValueError, match="without the node feature 'age', with another kind"):
        predict(run, made(tmp_path, "h", text), device="cpu")


def test_rows_without_a_part_are_in_no_split(run, tmp_path):
    nodes = rows()
    for row in nodes[8:12]:
        row[4] = ""
    path, names = made(tmp_path, "h", nodes), {}
    for part in ("train", "validation", "test"):
        names[part] = predict(run, path, split=part, device="cpu").names
    assert names == {part: [row[0] for row in nodes if row[4] == part] for part in names}
    with pytest.raises(ValueError, match="unknown split 'none'"):
        predict(run, path, split="none", device="cpu")


def test_targets_whose_names_are_taken_in_the_file(tmp_path):
    """A target called node must not replace the names of the nodes, nor y=b a probability."""
    header = ["name", "age", "node", "y", "y=b", "part"]
    nodes = [
        [f"n{i}", i % 7, "pq"[i % 2], "abc"[i % 3], i / 4, PARTS[i // 3 % 4]] for i in range(24)
    ]
    made(tmp_path, "h", [[*row[:2], "", "ab"[i % 2], row[5]] for i, row in enumerate(nodes)])
    with (tmp_path / "n.csv").open("w", newline="") as file:
        csv.writer(file).writerows([header, *nodes])
    targets = dict(targets=["node", "y", "y=b"], split="part")
    NodeGraph.from_tables(tmp_path / "e.csv", tmp_path / "n.csv", **targets).save(tmp_path / "g")
    trained = train(tmp_path / "g", tmp_path / "run", SMALL, Settings(epochs=1), device="cpu")
    (path,) = predict(trained, tmp_path / "g", device="cpu").save(tmp_path / "p.csv")
    with path.open(newline="") as file:
        found = [*csv.DictReader(file)]
    expected = ["node", "node predicted", "node=q", "y", "y=a", "y=b", "y=c", "y=b predicted"]
    assert [*found[0]] == expected and [row["node"] for row in found] == [row[0] for row in nodes]
