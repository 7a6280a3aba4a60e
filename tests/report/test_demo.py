import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Annotation

from pna.data.multitask.labels import SIX
from pna.paper.demo import MODELS
from pna.paper.scores import Member, ScoredPopulation, Scores
from pna.report.demo import draw_comparison


def made(spread: float) -> Scores:
    """Models 0.1 apart, each with two runs; predicting the mean is far behind."""
    members = tuple(Member(k, k, 0.01, 0.0, 0.1 + k, 60) for k in range(2))
    runs = np.array([[-spread], [spread]])
    populations = {
        model: ScoredPopulation(
            members, {"test": 10.0 ** (-2.6 + 0.1 * k + runs + np.zeros(len(SIX)))}
        )
        for k, model in enumerate(MODELS)
    }
    return Scores(SIX, ("test",), populations, {"test": np.full(len(SIX), 10.0**-1.5)})


def test_no_dot_of_the_comparison_hides_a_number() -> None:
    for spread in (0.0, 0.01, 0.1):
        figure = draw_comparison(made(spread))
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        (axes,) = figure.axes
        numbers = [text for text in axes.texts if isinstance(text, Annotation)]
        assert [number.get_text()[:2] for number in numbers] == ["−2"] * len(MODELS)
        dots = np.concatenate([axes.transData.transform(line.get_xydata()) for line in axes.lines])
        radius = 3 * figure.dpi / 72  # of a dot of 4 points, with its edge
        inside = axes.get_window_extent()
        for number in numbers:
            box = number.get_window_extent(canvas.get_renderer())
            assert not any(box.padded(radius).contains(x, y) for x, y in dots)
            assert inside.x1 >= box.x1
