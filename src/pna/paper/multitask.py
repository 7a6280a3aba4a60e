"""The paper's main comparison: six tasks at once, on graphs of the sizes that were trained on."""

from pna.data.multitask.labels import SIX
from pna.paper.claims import Claim, best, best_everywhere, less, on_average, on_task, overall
from pna.paper.experiment import Experiment
from pna.paper.models import LABELS, variants
from pna.paper.published import published
from pna.paper.scores import BASELINE
from pna.paper.thresholds import learns_every_task, median_within, within

_STATISTICS = {"average of logs": ("average", on_average), "log of the mean": ("overall", overall)}


def _bar(statistic: str) -> float:
    """PNA's ratio to predicting the mean in the paper, in log10."""
    ours, mean = (published("multitask").get(row, statistic) for row in ("pna", BASELINE))
    assert ours is not None and mean is not None
    return ours - mean


MULTITASK = Experiment(
    "multitask",
    "Six tasks at once: every model beside the paper's numbers",
    variants(),
    protocols=("paper", "published"),
    recipes=("tuned", "redrawn", "steady", "plain"),
    claims=(
        Claim("PNA has the least error on the average of the tasks",
              best("pna", list(LABELS), on_average())),
        Claim("PNA has the least mean error, as the paper's box plots show it",
              best("pna", list(LABELS), overall())),
        Claim("PNA has the least error on every task",
              best_everywhere("pna", list(LABELS), {task: on_task(task) for task in SIX})),
        Claim("Scalers help: PNA is ahead of PNA without scalers",
              less("pna", "pna-no-scalers", on_average())),
        Claim("Several aggregators help: PNA without scalers is ahead of every model with one",
              best("pna-no-scalers", [n for n in LABELS if n != "pna"], on_average())),
        Claim("The best five runs of PNA are at or below the published ratio to predicting the "
              "mean",
              within("pna", {what: (_bar(name), measured(ratio=True))
                             for what, (name, measured) in _STATISTICS.items()})),
        *(Claim(f"Ours, not the paper's: so is the median of all runs of PNA, {what}",
                median_within("pna", _bar(name), measured(top=None, ratio=True)))
          for what, (name, measured) in _STATISTICS.items()),
        Claim("Ours, not the paper's: no run of PNA is stuck on a task",
              learns_every_task("pna")),
    ),
)  # fmt: skip
