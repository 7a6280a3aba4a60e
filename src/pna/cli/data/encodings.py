"""`pna data walks` and `pna data laplacian`: features of structure."""

from __future__ import annotations

from pna.cli.data.shared import File, Out, save
from pna.cli.options import AtLeast0, Force, explained
from pna.cli.shared import check_target, errors


@explained
def walks(
    file: File, *, out: Out, steps: AtLeast0 = 16, edge_steps: AtLeast0 = 0, force: Force = False
) -> None:
    """Add random-walk features to a graph set. They show in which rings a node or edge lies.

    Args:
        steps: Node features: the probability to return after 1 to this many steps.
        edge_steps: Edge features: the probability to reach the other end in 1 to this many steps.
    """
    from pna.data.graphset import GraphSet
    from pna.data.walks import with_walks

    with errors() as console:
        check_target(out, force)
        graphs = with_walks(GraphSet.load(file), steps, edge_steps)
        save(graphs, out, force, console)


@explained
def laplacian(
    file: File, *, out: Out, vectors: AtLeast0 = 8, edge_times: AtLeast0 = 0, force: Force = False
) -> None:
    """Add Laplacian features to a graph set. They show where in its graph a node lies.

    Args:
        vectors: Node features: so many eigenvectors. Training flips their signs at random.
        edge_times: Edge features: the heat kernel at so many times, 1, 2, 4, …
    """
    from pna.data.graphset import GraphSet
    from pna.data.laplacian import with_laplacian

    with errors() as console:
        check_target(out, force)
        graphs = with_laplacian(GraphSet.load(file), vectors, edge_times)
        save(graphs, out, force, console)
