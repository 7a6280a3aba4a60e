"""The paper's main comparison: six tasks at once, on graphs of the sizes that were trained on."""

from pna.data.multitask.tasks import SIX
from pna.paper.claims import Claim, best, best_everywhere, less, on_average, on_task, overall
from pna.paper.experiment import Experiment
from pna.paper.models import LABELS, variants

MULTITASK = Experiment(
    "multitask",
    "Six tasks at once: every model beside the paper's numbers",
    variants(),
    protocols=("paper", "published"),
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
    ),
)  # fmt: skip
