"""Every set of features of molecules: RDKit's own numbers, under the names that were said."""

import warnings

import numpy as np
import pytest

from pna.data.laplacian import heat_kernels, laplacian_eigenvectors, with_laplacian
from pna.data.molecule_features import DESCRIPTORS, FEATURES, OGB, RECORD, MoleculeFeatures
from pna.data.molecule_table import from_table
from pna.data.molecules import from_smiles
from pna.data.table import Table
from pna.data.walks import arrival_probabilities, return_probabilities, with_walks
from pna.train import ModelSettings, Settings, predict, predict_table, train

Chem = pytest.importorskip("rdkit.Chem", reason="reading molecules needs pna[chem]")

SMILES = [
    *("CCO", "c1ccccc1", "[Na+].[Cl-]", "CC(=O)Nc1ccc(O)cc1", "N[C@@H](C)C(=O)O", "C1CC2CCC1C2"),
    *("FC(F)(F)c1ccncc1", "[Al](O)(O)(O)(O)(O)(O)O", "O=S(=O)(N)c1ccccc1Cl", "C", "CCCCCC", "CC#N"),
]
TABLE = Table("my.csv", ("smiles", "y"), [[s, str(len(s))] for s in SMILES], [*range(2, 14)])
EVERY = [OGB, "descriptors", "morgan=64", "walks=3", "bond-walks=2", "laplacian=2", "bond-heat=1"]


def graphs_with(*features):
    return from_table(TABLE, ["y"], split="random", features=features)


@pytest.mark.parametrize("name", FEATURES)
def test_every_entry_has_the_columns_that_it_names(name):
    given = [OGB] if name == OGB else [OGB, name]
    graphs, own = graphs_with(*given), MoleculeFeatures.parse(given)
    for level, columns, names in (
        ("node", graphs.x, graphs.node_features),
        ("edge", graphs.edge_attr, graphs.edge_features),
        ("graph", graphs.x_graph, graphs.graph_features),
    ):
        assert own.names(level) == names
        assert len(names) == len({*names}) == (0 if columns is None else columns.shape[1])
    plain = graphs_with(OGB)
    assert (graphs.x[:, :9] == plain.x).all() and (graphs.edge_attr[:, :3] == plain.edge_attr).all()
    size = FEATURES[name].size
    written = name if size is None else f"{name}={size}"
    assert graphs.metadata[RECORD]["features"] == list(dict.fromkeys([OGB, written]))
    if name != OGB:
        more = [len(own.names(level)) for level in ("node", "edge", "graph")]
        assert more != [9, 3, 0]
    assert size is None or MoleculeFeatures.parse([OGB, f"{name}=5"]).chosen[1] == (name, 5)


def test_fingerprints_are_those_of_rdkit():
    from rdkit.Chem import rdMolDescriptors

    found = graphs_with(OGB, "morgan=64").x_graph
    for row, text in zip(found.tolist(), SMILES, strict=True):
        molecule = Chem.MolFromSmiles(text)
        if molecule is not None:
            expected = rdMolDescriptors.GetHashedMorganFingerprint(molecule, 2, 64)
            assert row == [expected[i] for i in range(64)]
    assert found.dtype.itemsize == 1


def test_walks_are_those_of_the_graphs():
    graphs = graphs_with(*EVERY)
    assert (graphs.x[:, 9:12] == return_probabilities(graphs, 3)).all()
    assert (graphs.edge_attr[:, 3:5] == arrival_probabilities(graphs, 2)).all()
    assert (graphs.x[:, 12:] == laplacian_eigenvectors(graphs, 2)).all()
    assert (graphs.edge_attr[:, 5:] == heat_kernels(graphs, 1)).all()


def test_how_a_molecule_is_written_does_not_matter():
    """The order of atoms is another."""
    one, other = (
        from_table(
            Table("t", ("smiles",), [[text]], [2]), features=[OGB, "descriptors", "morgan"]
        ).x_graph.numpy()
        for text in ("CC(=O)Nc1ccc(O)cc1", "Oc1ccc(cc1)NC(C)=O")
    )
    np.testing.assert_allclose(one, other, rtol=1e-5)


def test_workers_compute_them_too(monkeypatch):
    from pna.data import molecules
    from pna.data.molecules import Wanted

    monkeypatch.setattr(molecules, "_BLOCK", 5)
    wanted = Wanted(MoleculeFeatures.parse(EVERY))
    one, two = (from_smiles(SMILES, wanted=wanted, workers=n).x_graph for n in (1, 2))
    assert np.array_equal(one, two) and one.shape == (len(SMILES), len(DESCRIPTORS) + 64)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["morgan"], "got the features morgan of molecules, expected ogb first"),
        ([], "got the features none"),
        ([OGB, "morgan=0"], "'morgan=0' of molecules, expected a whole number of 1 to 65,536"),
        ([OGB, "descriptors=3"], "'descriptors=3' of molecules, expected no number after"),
        ([OGB, "morgan", "morgan=4"], "morgan"),
        ([OGB, "morgen"], "morgen"),
    ],
)
def test_what_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        from_table(TABLE, features=given)


def trained(graphs, folder, **arguments):
    model = ModelSettings("gin", "stacked", 8, arguments={"layers": 1, **arguments})
    return train(graphs, folder, model, Settings(epochs=1), device="cpu")


def predicted(run):
    return [float(cell) for cell in predict_table(run, Table("new", ("smiles",), *_ROWS)).column(
        "y predicted"
    )]  # fmt: skip


_ROWS = [[s] for s in SMILES], [*range(len(SMILES))]


def test_tables_are_predicted_with_the_features_of_the_training(tmp_path):
    graphs = graphs_with(*EVERY)
    run = trained(graphs, tmp_path / "run")
    assert run.config.data[RECORD]["features"] == EVERY
    expected = predict(run, graphs, device="cpu").graph["y"]
    np.testing.assert_allclose(predicted(run), expected, rtol=1e-6)


def test_walks_that_were_added_later_are_computed_too(tmp_path):
    graphs = with_laplacian(with_walks(graphs_with(OGB), 4, 2), 3)
    run = trained(graphs, tmp_path / "run")
    expected = predict(run, graphs, device="cpu").graph["y"]
    np.testing.assert_allclose(predicted(run), expected, rtol=1e-6)


def test_features_that_a_model_does_not_use_are_not_computed(tmp_path, monkeypatch):
    run = trained(graphs_with(OGB, "descriptors"), tmp_path / "run", graph_features=False)
    monkeypatch.setattr("pna.data.molecule_features.descriptors", None)
    assert len(predicted(run)) == len(SMILES)


def test_other_features_are_refused():
    data = {"features": {"node": [*MoleculeFeatures().names("node"), "mine"], "edge": []}}
    with pytest.raises(ValueError, match=r"other node features .* \(mine\); make a graph set"):
        MoleculeFeatures.of_run(data)


def test_another_version_of_rdkit_is_said():
    record = graphs_with(OGB).metadata
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        MoleculeFeatures.of_run(record)
    with pytest.warns(UserWarning, match=r"read by RDKit 2019\.03\.1, and this is RDKit 20"):
        MoleculeFeatures.of_run({RECORD: {"features": [OGB], "rdkit": "2019.03.1"}})
