"""The folder of a cross-validation: a run for each fold."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from pna.stored import check, made, read_json
from pna.train.disk_errors import disk_errors
from pna.train.run import FOLDS, Run, write_json

_VERSION = 1


@dataclass(frozen=True)
class FoldParts:
    """One division: its number in its repeat, and the numbers of graphs of its parts."""

    repeat: int
    fold: int
    train: int
    validation: int
    test: int


@dataclass(frozen=True)
class FoldRuns:
    """The folds of a cross-validation. ``folds.json`` in its folder lists them."""

    folder: Path
    folds: list[FoldParts]

    @classmethod
    def load(cls, folder: str | Path) -> FoldRuns:
        """The cross-validation in a folder."""
        path = Path(folder) / FOLDS
        try:
            content = read_json(path)
            check(content, {"version": int, "folds": list})
            if content["version"] > _VERSION:
                raise ValueError(f"it has version {content['version']}; upgrade pna")
            folds = [made(FoldParts, entry, "a fold") for entry in content["folds"]]
            if not folds:
                raise ValueError("it has no folds")
        except ValueError as error:
            raise ValueError(
                f"got {path}, which cannot be used ({error}), expected what pna train --folds "
                "wrote; restore the file, or start again in another folder"
            ) from error
        return cls(Path(folder), folds)

    def save(self) -> None:
        content = {"version": _VERSION, "folds": [asdict(fold) for fold in self.folds]}
        with disk_errors(self.folder):
            write_json(self.folder / FOLDS, content)

    @property
    def runs(self) -> list[Run]:
        return [Run(self.folder / f"fold-{number}") for number in range(len(self.folds))]

    def check_finished(self) -> None:
        """Raise unless every fold is trained."""
        ended = [run.exists and run.summary is not None for run in self.runs]
        if not all(ended):
            raise ValueError(
                f"got {self.folder}, of which {sum(ended)} of {len(ended)} folds are trained, "
                f"expected all; continue it: pna train --resume {self.folder}, or use one of them, "
                f"such as {self.runs[ended.index(True) if any(ended) else 0].folder}"
            )


def is_folds(folder: str | Path) -> bool:
    """Whether this is the folder of a cross-validation."""
    return (Path(folder) / FOLDS).is_file()


def runs_of(run: Run | str | Path) -> list[Run]:
    """The runs of a cross-validation, which must be finished; or the one run."""
    run = run if isinstance(run, Run) else Run(run)
    if not is_folds(run.folder):
        return [run]
    found = FoldRuns.load(run.folder)
    found.check_finished()
    return found.runs
