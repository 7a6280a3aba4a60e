import pytest

from pna.bench.beside_pyg import Row, beside_pyg

pytest.importorskip("torch_geometric", reason="needs PyG: pip install 'pna[pyg]'")


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return beside_pyg(num_nodes=1000, num_edges=10_000, num_features=16, seconds=0.01)


def test_both_compute_the_same_function(rows: list[Row]) -> None:
    assert [row.name for row in rows] == ["pna", "PyG", "PyG, edges sorted"]
    for row in rows:
        assert max(row.output_errors) < 1e-4
        assert row.gradient_error < 1e-2  # PyG's variance cancels where neighbours are close
        assert 0 < row.forward_bytes <= row.both_bytes


def test_no_statistic_is_less_accurate_than_pyg(rows: list[Row]) -> None:
    ours, pyg = rows[0], rows[1]
    slack = 1.5  # the largest of many roundings; another order of summation moves it this much
    for own, peer in zip(ours.output_errors, pyg.output_errors, strict=True):
        assert own <= slack * peer
    assert ours.gradient_error <= slack * pyg.gradient_error
