"""Training, evaluation and prediction with populations of models."""

from pna.train.evaluation import Evaluation as Evaluation
from pna.train.evaluation import TaskScores as TaskScores
from pna.train.evaluation import evaluate as evaluate
from pna.train.explanation import Explanation as Explanation
from pna.train.explanation import explain as explain
from pna.train.exporting import export as export
from pna.train.fingerprints import fingerprint as fingerprint
from pna.train.fold_scores import FoldScores as FoldScores
from pna.train.fold_scores import evaluate_folds as evaluate_folds
from pna.train.folds import cross_validate as cross_validate
from pna.train.loop import Interrupted as Interrupted
from pna.train.loop import Report as Report
from pna.train.loop import train as train
from pna.train.prediction import Predictions as Predictions
from pna.train.prediction import predict as predict
from pna.train.run import Run as Run
from pna.train.run import load as load
from pna.train.settings import ModelSettings as ModelSettings
from pna.train.settings import Settings as Settings
from pna.train.table_prediction import predict_table as predict_table
