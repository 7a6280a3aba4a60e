"""The real-world experiments: their rows, settings and graphs, and a run of each on few graphs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pna.data.graphset import GraphSet
from pna.data.walks import with_walks
from pna.paper import real_world
from pna.paper.experiment import Variant
from pna.paper.published import published
from pna.paper.real_world import LABELS, Benchmark, RealWorld, first_of_splits
from pna.paper.registry import EXPERIMENTS
from pna.paper.reproduce import Options, reproduce
from pna.paper.results import load
from pna.report.read import ExperimentResult
from pna.report.results import tables
from pna.train.models import build, count_parameters, fitted
from pna.train.tasks import tasks_of

pytestmark = pytest.mark.filterwarnings("ignore:.*no score will be the benchmark's:UserWarning")

NAMES = [n for n, e in EXPERIMENTS.items() if isinstance(e, RealWorld) and not e.benchmark]
#: Columns of nodes and of edges, values of nodes and edges where these are whole, classes.
SHAPES = {
    "zinc": (1, 1, [28], [4], 0),
    "molhiv": (9, 3, [119, 4, 12, 12, 10, 6, 6, 2, 2], [5, 6, 2], 2),
    "mnist": (3, 1, None, None, 10),
    "cifar10": (5, 1, None, None, 10),
}


def made(name: str, train: int = 12, others: int = 12) -> GraphSet:
    """Random graphs with the columns of a benchmark."""
    columns, edge_columns, values, edge_values, classes = SHAPES[name]
    rng = np.random.default_rng(0)
    count = train + 2 * others
    sizes = rng.integers(4, 9, count)
    index = [np.stack(np.nonzero(~np.eye(n, dtype=bool) & (rng.random((n, n)) < 0.5)))
             for n in sizes]  # fmt: skip
    edges = [part.shape[1] for part in index]
    y = rng.standard_normal(count) if classes == 0 else np.arange(count) % classes

    def features(rows: int, width: int, kinds: list[int] | None) -> np.ndarray:
        if kinds is None:
            return rng.random((rows, width)).astype(np.float32)
        return np.stack([rng.integers(0, k, rows) for k in kinds], 1)

    held = {} if values is None else {"node_values": values, "edge_values": edge_values}
    return GraphSet.from_arrays(
        sizes, np.concatenate(index, 1), edges,
        x=features(int(sizes.sum()), columns, values),
        edge_attr=features(sum(edges), edge_columns, edge_values),
        y_graph=y.astype(np.float64), graph_targets=["target"],
        split=["train"] * train + ["validation"] * others + ["test"] * others,
        metadata={"benchmark": name} | held,
    )  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_parameters(name: str) -> None:
    """As published where we know how many, else about 100,000; of MolHIV, about as PNA's."""
    experiment, graphs, paper = EXPERIMENTS[name], made(name), published(name)
    tasks = tasks_of(graphs, experiment.loss)
    for trial in experiment.trials(members=1):
        if is_ours(trial.variant):
            continue
        model = fitted(trial.model, graphs, tasks)
        count = count_parameters(build(model))
        wanted = paper.get(trial.variant.name, "parameters")
        if wanted is not None:
            assert count == wanted, trial.variant.name
        elif name == "molhiv":
            assert 315_000 < count < 335_000, trial.variant.name
        else:
            assert 88_000 < count < 113_000, trial.variant.name


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_those_of_the_paper(name: str) -> None:
    experiment, paper = EXPERIMENTS[name], published(name)
    names = [variant.name for variant in experiment.variants]
    assert len(set(names)) == len(names)
    assert set(paper.rows) <= set(names)
    ours = {variant.name for variant in experiment.variants if is_ours(variant)}
    assert set(names) - set(paper.rows) - ours <= {"pna-no-scalers"}  # no number on MolHIV
    rows = {variant.row for variant in experiment.variants if not is_ours(variant)}
    assert rows <= set(LABELS)
    if name != "molhiv":
        assert rows == set(LABELS)


def is_ours(variant: Variant) -> bool:
    return any(word in variant.row.split() for word in ("improved", "authors-weights"))


@pytest.mark.parametrize("name", NAMES)
def test_improved_rows_stay_within_the_parameters_of_the_plain_ones(name: str) -> None:
    """And are told what they need: with all their ingredients, and without each."""
    experiment, graphs = EXPERIMENTS[name], made(name)
    trials = {trial.variant.name: trial for trial in experiment.trials(members=4)}
    every = [trial for trial in trials.values() if "improved" in trial.variant.row.split()]
    ours = [trial for trial in every if trial.model.convolution.startswith("pna")]
    for trial in every:
        group = trial.variant.group
        plain, counts = trials[f"{trial.variant.row.split()[0]} {group}".strip()], []
        for one in (plain, trial):
            seen = with_walks(graphs, *one.variant.walks) if any(one.variant.walks) else graphs
            model = fitted(one.model, seen, tasks_of(graphs, experiment.loss))
            counts.append(count_parameters(build(model)))
        assert 0.8 * counts[0] < counts[1] <= counts[0], (trial.variant.name, counts)
        ends = trial.settings.schedule == "plateau"  # of itself, at its least rate
        assert trial.settings.patience is None and (ends or trial.settings.epochs <= 300)
    names = [trial.variant.name for trial in ours]
    assert names[0] == ("pna improved" if name == "molhiv" else "pna improved edges")
    assert len(names) == {"zinc": 9, "molhiv": 5, "mnist": 8, "cifar10": 9}[name]
    assert (names[1:2] == ["pna improved deep"]) == (name == "zinc")
    whole = ours[0]
    for trial in ours[2 if name == "zinc" else 1 :]:  # each is another in one respect
        changed = [
            trial.graphs != whole.graphs,
            trial.settings != whole.settings,
            trial.model != whole.model,
        ]
        assert sum(changed) == 1, trial.variant.name


def test_other_models_get_the_ingredients_of_the_improved_one() -> None:
    """MPNN (sum) all of them; GIN and GCN those that need no edge features."""
    trials = {trial.variant.name: trial for trial in EXPERIMENTS["zinc"].trials()}
    ours = trials["pna improved edges"]
    for name in ("mpnn-sum improved edges", "gin improved", "gcn improved"):
        other = trials[name]
        assert other.settings == ours.settings
        assert other.model.arguments["layers"] == ours.model.arguments["layers"] == 5
        assert other.variant.walks == ((16, 8) if "edges" in name else (16, 0))
        words = "random walks, a fifth layer, AdamW, cosine, averaging"
        assert other.variant.label.endswith(f" + {words}")
    assert trials["mpnn-sum improved edges"].model.arguments["edge_width"] == 8


def test_rows_with_the_authors_weights_are_the_plain_ones_otherwise() -> None:
    trials = {trial.variant.name: trial for trial in EXPERIMENTS["zinc"].trials()}
    for name in ("pna", "pna edges", "mpnn-sum", "mpnn-sum edges"):
        row, *group = name.split()
        other = trials[" ".join([row, "authors-weights", *group])]
        assert other.model == replace(trials[name].model, init="published-layers")
        assert other.settings == trials[name].settings and other.graphs == trials[name].graphs


def test_a_row_is_tested_with_the_features_it_is_trained_with() -> None:
    experiment = EXPERIMENTS["zinc"]
    for trial in experiment.trials(quick=True):
        assert experiment.tests_of(trial, "benchmark", True) == trial.graphs
        assert trial.graphs.walks == trial.variant.walks and trial.graphs.quick


def test_graphs_with_walks(tmp_path) -> None:
    """Have a file of their own, made from that without."""
    made("zinc").save(tmp_path / "zinc.safetensors")
    path = Benchmark("zinc", walks=(3, 2)).made(tmp_path)
    assert path.name == "zinc-walks-3-2.safetensors"
    found, expected = GraphSet.load(path), with_walks(made("zinc"), 3, 2)
    np.testing.assert_array_equal(found.x, expected.x)
    assert found.metadata["node_values"] == [28, 0, 0, 0]
    few = Benchmark("zinc", quick=True, walks=(3, 0)).made(tmp_path)
    assert few.name == "zinc-walks-3-0-quick.safetensors"
    assert (tmp_path / "zinc-quick.safetensors").is_file()


#: Learning rate, its least, epochs of a plateau, weight decay, dropout; spec's facts.
SETTINGS = {
    ("zinc", "pna"): (1e-3, 1e-5, 6, 3e-6, 0.0),
    ("zinc", "pna edges"): (1e-3, 1e-5, 21, 3e-6, 0.0),
    ("zinc", "pna deep"): (1e-3, 1e-5, 21, 3e-6, 0.0),
    ("zinc", "mpnn-sum"): (1e-3, 1e-5, 6, 1e-5, 0.0),
    ("zinc", "mpnn-max edges"): (1e-3, 1e-5, 21, 3e-6, 0.0),
    ("cifar10", "pna"): (1e-3, 1e-5, 6, 3e-6, 0.1),
    ("mnist", "pna edges"): (1e-3, 1e-5, 6, 3e-6, 0.3),
    ("mnist", "mpnn-sum edges"): (1e-3, 1e-5, 6, 3e-6, 0.2),
    ("molhiv", "pna"): (1e-2, 1e-4, 21, 3e-6, 0.3),
}


@pytest.mark.parametrize("case", SETTINGS, ids=" ".join)
def test_settings(case: tuple[str, str]) -> None:
    name, row = case
    (trial,) = [t for t in EXPERIMENTS[name].trials() if t.variant.name == row]
    settings = trial.settings
    lr, least, plateau, decay, dropout = SETTINGS[case]
    assert settings.schedule == "plateau" and settings.decay == 0.5
    assert (settings.lr, settings.min_lr, settings.plateau) == ((lr,), least, plateau)
    assert settings.weight_decay == (decay,) and settings.batch_size == 128
    assert trial.model.arguments["dropout"] == dropout
    hiv = name == "molhiv"
    assert settings.epochs == (200 if hiv else 1000)
    assert settings.select == ("roc_auc" if hiv else "loss")
    assert trial.model.arguments["graph_norm"] == (not hiv)


def test_mlps_are_those_of_the_benchmark() -> None:
    """Whose parameters are known, of ZINC; they have no norm that would tell a graph's size."""
    graphs = made("zinc")
    trials = {trial.variant.name: trial.model for trial in EXPERIMENTS["zinc"].trials(members=1)}
    for row, count, readout in (("mlp", 108_975, "mean"), ("mlp-gated", 106_970, "sum")):
        model = fitted(trials[row], graphs, tasks_of(graphs, "mae_in_units"))
        assert count_parameters(build(model)) == count
        assert trials[row].arguments["readout"] == readout


def test_some_rows_alone() -> None:
    zinc = EXPERIMENTS["zinc"]
    assert [v.name for v in zinc.chosen(["pna"])] == ["pna", "pna edges", "pna deep"]
    assert [v.name for v in zinc.chosen(["pna edges", "gcn"])] == ["gcn", "pna edges"]
    with pytest.raises(ValueError, match="unknown model 'pnaa'"):
        zinc.chosen(["pnaa"])


def test_graphs_are_found_or_made_and_the_first_of_them_taken(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(real_world, "QUICK_GRAPHS", 5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pna.data.zinc.zinc", lambda: made("zinc"))
        path = Benchmark("zinc", quick=True).made(tmp_path)
    few, whole = GraphSet.load(path), made("zinc")
    assert len(few) == 15 and all(len(few.split(s)) == 5 for s in ("train", "validation", "test"))
    expected = first_of_splits(whole, 5)
    np.testing.assert_array_equal(few.y_graph, expected.y_graph)
    np.testing.assert_array_equal(few.split("test").y_graph, whole.split("test").y_graph[:5])
    assert (tmp_path / "zinc.safetensors").is_file()
    assert Benchmark("zinc").made(tmp_path) == tmp_path / "zinc.safetensors"  # and not made again


def test_a_part_of_the_graphs_is_told_of(tmp_path) -> None:
    made("zinc").save(tmp_path / "zinc.safetensors")
    with pytest.warns(UserWarning, match=r"12, 12 and 12 .* zinc has 10,000, 1,000 and 1,000"):
        Benchmark("zinc").made(tmp_path)


def test_a_file_of_other_graphs_is_refused(tmp_path) -> None:
    """By its name alone it would be taken for the benchmark."""
    made("zinc").save(tmp_path / "mnist.safetensors")
    with pytest.raises(ValueError, match=r"graphs of zinc, .* expected mnist, \(0, 0\)"):
        Benchmark("mnist").made(tmp_path)
    with_walks(made("zinc"), 3, 2).save(tmp_path / "zinc.safetensors")
    with pytest.raises(ValueError, match=r"walks of \(3, 2\) steps .* expected zinc, \(0, 0\)"):
        Benchmark("zinc").made(tmp_path)
    replace(made("zinc"), metadata={}).save(tmp_path / "zinc-walks-3-2.safetensors")
    with pytest.raises(ValueError, match="graphs of no benchmark"):
        Benchmark("zinc", walks=(3, 2)).made(tmp_path)
    bare = replace(made("mnist"), split_of_graph=None, splits=())
    bare.save(tmp_path / "mnist.safetensors", force=True)
    with pytest.raises(ValueError, match="without splits"):
        Benchmark("mnist").made(tmp_path)


ROWS = {
    "zinc": ["pna", "gated-gcn", "pna improved"],
    "molhiv": ["pna improved", "gin"],
    "mnist": ["pna"],
    "cifar10": ["gat", "pna improved"],
}


def narrow(name: str) -> RealWorld:
    """An experiment with models of two narrow layers."""
    experiment = EXPERIMENTS[name]
    variants = tuple(
        replace(v, hidden=20 if v.convolution != "gat" else 16,
                arguments={n: a for n, a in v.arguments.items() if n != "out_channels"}
                | {"layers": 2})
        for v in experiment.variants
    )  # fmt: skip
    return replace(experiment, variants=variants)


@pytest.mark.parametrize(
    "name",
    [name if name == "molhiv" else pytest.param(name, marks=pytest.mark.slow) for name in NAMES],
)
def test_from_graphs_to_tables(name: str, tmp_path) -> None:
    experiment = narrow(name)
    runs = tmp_path / "runs"
    runs.mkdir()
    made(name).save(runs / f"{name}.safetensors")
    options = Options(members=2, quick=True, models=ROWS[name], device="cpu")
    scores = reproduce(experiment, tmp_path / "results", runs, options)
    assert scores.metric == experiment.metric and scores.tasks == ("target",)
    assert scores.splits[:2] == ("test, last epoch", "test, best epoch")
    for population in scores.populations.values():
        best, last = (population.errors[f"validation, {e} epoch"] for e in ("best", "last"))
        if name == "zinc":
            validation = [member.validation for member in population.members]
            np.testing.assert_allclose(best[:, 0], validation, rtol=1e-5)  # loss is the metric
            assert (best <= last + 1e-6).all()
        if name == "molhiv":
            validation = [1 - member.validation for member in population.members]
            np.testing.assert_allclose(best[:, 0], validation, rtol=1e-5)
    again, facts = load(tmp_path / "results")
    assert again.metric == experiment.metric
    np.testing.assert_array_equal(
        again.baseline[scores.splits[0]], scores.baseline[scores.splits[0]]
    )
    result = ExperimentResult.read(tmp_path / "results")
    assert all([row["epoch"] for row in result.curves[n]] == [1, 2] for n in scores.populations)
    table, costs = tables(result)
    assert len(costs.rows) == len(scores.populations) and facts["recipe"] == "published"
    assert any("not run here" in row[1] for row in table.rows)


def test_the_baseline_predicts_the_mean_of_training(tmp_path) -> None:
    """MAE in the units of the target; of classes the most frequent; no order for ROC curves."""
    from pna.paper.reproduce import baseline_errors

    for name, expected in (("zinc", None), ("mnist", None), ("molhiv", 0.5)):
        graphs = made(name)
        graphs.save(tmp_path / f"{name}.safetensors")
        measured, metric = EXPERIMENTS[name].measured, EXPERIMENTS[name].metric
        _, found = baseline_errors(tmp_path / f"{name}.safetensors", measured, metric)
        train, test = (graphs.split(s).y_graph[:, 0].numpy() for s in ("train", "test"))
        if name == "zinc":
            expected = np.abs(test - train.mean()).mean()
        if name == "mnist":
            expected = (test == np.bincount(train.astype(int)).argmax()).mean()
        assert found["test, last epoch"][0] == pytest.approx(expected)


def test_pna_and_its_nearest_rivals_have_more_runs_than_the_rest() -> None:
    def counts(name: str, **given: int) -> dict[str, int]:
        return {t.variant.name: t.settings.members for t in EXPERIMENTS[name].trials(**given)}

    close = {"pna", "pna edges", "pna-no-scalers", "pna-no-scalers edges", "mpnn-sum",
             "mpnn-sum edges"}  # fmt: skip
    for name, count in counts("zinc").items():
        assert count == (8 if name.replace(" authors-weights", "") in close else 4)
    for name, count in counts("molhiv").items():
        assert count == (30 if name == "pna" else 10)
    assert set(counts("zinc", members=2).values()) == {2}
