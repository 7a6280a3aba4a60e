"""The nodes, or the edges, of one graph: their features, targets, splits and names."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pna.data.columns import Categories, Numbers, Where
from pna.data.texts import Texts
from pna.names import lookup, unique

#: The parts of a split, by the numbers that stand for them. Rows in "none" are not predicted.
PARTS = ("none", "train", "validation", "test")
_TRAIN, _VALIDATION, _TEST = 1, 2, 3

_SHOWN = 5  # names that a note or a summary lists
_COMPARED = 10_000  # rows that are compared first, to find a feature that equals a target


@dataclass(frozen=True, eq=False)
class GraphTarget:
    """A target of every node or edge: a class or a number, which may be missing."""

    name: str
    values: Tensor  # (count,) int64 indices in `classes`, -1 if missing; or float32, NaN if missing
    classes: tuple[str, ...] = ()  # names of the classes; none for numbers

    @property
    def kind(self) -> str:
        """ "class" or "number"."""
        return "class" if self.classes else "number"

    @property
    def loss(self) -> str:
        """The usual loss: of numbers, of two classes, or of several."""
        return {0: "mse", 2: "bce"}.get(len(self.classes), "cross_entropy")

    @property
    def known(self) -> Tensor:
        """Whether a target is known, (count,) bool."""
        return self.values >= 0 if self.classes else ~self.values.isnan()


@dataclass(frozen=True, eq=False)
class GraphElements:
    """The nodes, or the edges, of a `NodeGraph`, a row for each. All tensors are on the CPU."""

    count: int
    x: Tensor  # (count, features) float32: numbers as given; missing ones are filled
    mean: Tensor  # (splits or 1, features) float32: over the training rows of each split
    std: Tensor  # (splits or 1, features) float32, over the same rows; 1 if all are equal there
    codes: Tensor  # (count, categorical columns) int32: indices in their categories
    features: tuple[str, ...] = ()  # names of the columns of x
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of codes; "": missing
    targets: tuple[GraphTarget, ...] = ()
    split: Tensor | None = None  # (count, splits) int8: indices in "none, train, validation, test"
    names: Texts | None = None  # None: the names are the row numbers

    def name(self, row: int) -> str:
        """The name of a row."""
        return str(row) if self.names is None else self.names[row]

    def columns(self, split: int) -> tuple[Tensor, list[int]]:
        """All features as columns: categories, then numbers, which are standardised as in this
        split; and for each the number of categories, 0 for a number."""
        row = split if len(self.mean) > 1 else 0
        numbers = (self.x - self.mean[row]) / self.std[row]
        values = [len(names) for names in self.categories.values()] + [0] * len(self.features)
        if not self.features:
            return self.codes, values
        return torch.cat([self.codes.float(), numbers], 1), values

    def target(self, name: str) -> GraphTarget:
        """The target of this name."""
        return lookup("target", name, {target.name: target for target in self.targets})

    def part(self, name: str, index: int = 0) -> Tensor:
        """The rows of "train", "validation", "test" or "none", of the split `index`: (count,)."""
        if self.split is None:
            raise ValueError(
                "got a graph without a split of these rows, expected one; make it with a column of "
                "train, validation and test, or with a random split"
            )
        if not 0 <= index < self.split.shape[1]:
            raise IndexError(
                f"got split {index}, expected 0 to {self.split.shape[1] - 1}, as there are "
                f"{self.split.shape[1]}"
            )
        code = lookup("part", name, {part: code for code, part in enumerate(PARTS)})
        return self.split[:, index] == code

    def summary(self, what: str) -> Iterator[str]:
        """Lines about the features, targets and splits of these nodes or edges."""
        if self.features:
            yield f"{what} features: {len(self.features)} numbers{_listed(self.features)}"
        if self.categories:
            sizes = [f"{name} ({len(values):,})" for name, values in self.categories.items()]
            yield f"{what} features: {len(sizes)} categorical{_listed(sizes)}"
        if self.split is not None:
            splits = self.split.shape[1]
            counts = torch.bincount(self.split[:, 0].long(), minlength=len(PARTS)).tolist()
            words = [f"{n:,} {part}" for part, n in zip(PARTS, counts, strict=True) if n]
            several = f" (the first of {splits} splits)" if splits > 1 else ""
            yield f"{what} split: {', '.join(words)}{several}"
        for target in self.targets:
            yield from self._of_target(target, what)

    def _of_target(self, target: GraphTarget, what: str) -> Iterator[str]:
        known = target.values[target.known]
        missing = self.count - len(known)
        rest = f", missing in {missing:,} of {self.count:,}" if missing else ""
        if not target.classes:
            span = f"{known.min():.4g} to {known.max():.4g}, mean {known.double().mean():.4g}"
            yield f"to predict of every {what}: {target.name}, a number, {span}{rest}"
            return
        counts = torch.bincount(known, minlength=len(target.classes))
        order = counts.argsort(descending=True, stable=True).tolist()
        sizes = [f"{target.classes[c]} ({int(counts[c]):,})" for c in order]
        is_clear = target.loss != "bce" or target.classes == ("0", "1")
        positive = "" if is_clear else f"; class 1 is {target.classes[1]}"
        yield (
            f"to predict of every {what}: {target.name}, one of {len(order)} classes"
            f"{_listed(sizes)}{rest}{positive}"
        )


@dataclass(frozen=True)
class ElementColumns:
    """What `make_elements` makes nodes or edges of."""

    what: str  # "node" or "edge"
    count: int
    where: Where
    features: Mapping[str, Numbers | Categories]
    targets: Mapping[str, Numbers | Categories]
    split: NDArray[np.int8] | None = None  # (count, splits)
    names: Texts | None = None


def make_elements(given: ElementColumns) -> tuple[GraphElements, list[str]]:
    """Check and convert nodes or edges; also notes about what was filled or left out.

    Missing numbers become the column's mean over training rows, and a column ``NAME missing`` of 0
    and 1 is added. A missing category becomes the category "". Constant columns are left out.
    """
    targets = tuple(_target(given, name, column) for name, column in given.targets.items())
    if given.split is not None:
        for target in targets:
            _check_split(given, target)
    _warn_of_copies(given)
    numbers, notes = _numbers(given)
    categories = {}
    for name, column in given.features.items():
        if isinstance(column, Categories):
            lost = int((column.codes < 0).sum())
            if len(column.values) + (lost > 0) < 2:
                continue
            if lost:
                notes.append(f"{given.what} column {name}: {lost:,} missing, as a category")
                last = len(column.values)
                codes = np.where(column.codes < 0, last, column.codes).astype(np.int32)
                column = Categories(codes, (*column.values, ""))
            categories[name] = column
    x = np.empty((given.count, len(numbers)), np.float32)
    for index, values in enumerate(numbers.values()):
        x[:, index] = values
    kept = [*numbers, *categories]
    constant = [name for name in given.features if name not in kept]
    if constant:
        notes.append(
            f"{given.what} columns left out, as they are constant: {len(constant)}"
            f"{_listed(constant)}"
        )
    mean, std = _moments(x, given.split)
    made = GraphElements(
        count=given.count,
        x=torch.from_numpy(x),
        mean=mean,
        std=std,
        codes=torch.from_numpy(
            np.stack([c.codes for c in categories.values()], 1)
            if categories
            else np.zeros((given.count, 0), np.int32)
        ),
        features=unique(f"{given.what} features", [*numbers]),
        categories={name: column.values for name, column in categories.items()},
        targets=targets,
        split=None if given.split is None else torch.from_numpy(given.split),
        names=given.names,
    )
    return made, notes


def with_numbers(elements: GraphElements, more: Mapping[str, Tensor]) -> GraphElements:
    """A copy with these columns (count,) appended to x."""
    x = torch.cat([elements.x, *(column[:, None].float() for column in more.values())], 1)
    mean, std = _moments(x.numpy(), None if elements.split is None else elements.split.numpy())
    features = unique("features", [*elements.features, *more])
    return replace(elements, x=x, mean=mean, std=std, features=features)


def _numbers(given: ElementColumns) -> tuple[dict[str, NDArray[np.float32]], list[str]]:
    """The columns of numbers without constant and missing ones, and notes."""
    training = _training_rows(given)
    found: dict[str, NDArray[np.float32]] = {}
    notes = []
    for name, column in given.features.items():
        if not isinstance(column, Numbers):
            continue
        missing = np.isnan(column.values)
        known = column.values[~missing]
        if len(known) == 0:
            continue
        if known.min() < known.max():
            found[name] = column.values
        if missing.any():
            seen = column.values[training & ~missing]
            mean = np.float32((seen if len(seen) else known).mean(dtype=np.float64))
            if name in found:
                found[name] = np.where(missing, mean, column.values)
            marker = marker_of(name)
            if marker in given.features:
                raise ValueError(
                    f"got the {given.what} columns {name!r} with missing numbers and {marker!r}, "
                    "which would be added to mark them, expected another name; rename it"
                )
            found[marker] = missing.astype(np.float32)
            notes.append(
                f"{given.what} column {name}: {int(missing.sum()):,} missing, filled with the mean "
                f"over training rows, {mean:.4g}; the column {marker!r} marks them"
            )
    return found, notes


def marker_of(name: str) -> str:
    """The column that marks the missing numbers of another."""
    return f"{name} missing"


def _training_rows(given: ElementColumns) -> NDArray[np.bool_]:
    """The training rows of the first split; all rows without one."""
    if given.split is None:
        return np.ones(given.count, bool)
    return given.split[:, 0] == _TRAIN


def _moments(x: NDArray[np.float32], split: NDArray[np.int8] | None) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation over the training rows of every split."""
    every = [np.ones(len(x), bool)] if split is None else [part == _TRAIN for part in split.T]
    mean = np.zeros((len(every), x.shape[1]), np.float32)
    std = np.ones_like(mean)
    for index, rows in enumerate(every):
        for column in range(x.shape[1] if rows.any() else 0):
            values = x[rows, column].astype(np.float64)
            mean[index, column] = values.mean()
            if values.min() < values.max():
                std[index, column] = values.std()
    return torch.from_numpy(mean), torch.from_numpy(np.where(std > 0, std, np.float32(1)))


def _target(given: ElementColumns, name: str, column: Numbers | Categories) -> GraphTarget:
    if not _known(column).any():
        raise ValueError(
            f"got the target {name!r}, which is missing in all {given.count:,} rows of "
            f"{given.what}s, expected some values; check the column"
        )
    if isinstance(column, Numbers):
        return GraphTarget(name, torch.from_numpy(column.values))
    if len(column.values) == 1:
        raise ValueError(
            f"got the target {name!r} with the only class {column.values[0]!r}, expected at least "
            "two; check the column"
        )
    return GraphTarget(name, torch.from_numpy(column.codes.astype(np.int64)), column.values)


def _known(column: Numbers | Categories) -> NDArray[np.bool_]:
    return column.codes >= 0 if isinstance(column, Categories) else ~np.isnan(column.values)


def _check_split(given: ElementColumns, target: GraphTarget) -> None:
    """Raise without training or validation rows; warn, once, of what a test or a model lacks."""
    assert given.split is not None
    known = target.known.numpy()
    doubts: dict[str, str] = {}
    for index, parts in enumerate(given.split.T):
        which = f"split {index}" if given.split.shape[1] > 1 else "the split"
        for part in (_TRAIN, _VALIDATION, _TEST):
            if (parts[known] == part).any():
                continue
            text = (
                f"got no {PARTS[part]} {given.what}s with a known {target.name} in {which}, "
                "expected some"
            )
            if part != _TEST:
                raise ValueError(
                    f"{text}; correct the split, label more rows, or use --random-split 0.6,0.2,0.2"
                )
            doubts.setdefault("test", f"{text}; models of it cannot be tested")
        if target.classes and (unseen := _unseen(given, target, parts, which)):
            doubts.setdefault("unseen", unseen)
    for text in doubts.values():
        warnings.warn(text, stacklevel=5)


def _unseen(given: ElementColumns, target: GraphTarget, parts: NDArray[np.int8], which: str) -> str:
    """A warning of classes without training rows; nothing if there are none."""
    codes = target.values.numpy()
    counts = np.bincount(codes[(parts == _TRAIN) & (codes >= 0)], minlength=len(target.classes))
    unseen = (parts > _TRAIN) & (codes >= 0) & (counts[codes] == 0)
    if not unseen.any():
        return ""
    names = [target.classes[code] for code in np.unique(codes[unseen])]
    return (
        f"got classes of {target.name} without a training {given.what} in {which}"
        f"{_listed(names)}, in {int(unseen.sum()):,} rows, the first in "
        f"{given.where(int(unseen.argmax()))}; a model cannot learn them: move some to the "
        "training set"
    )


def _warn_of_copies(given: ElementColumns) -> None:
    """Warn of features from which a target can be read off."""
    some = slice(None, None, max(1, given.count // _COMPARED))
    for name, target in given.targets.items():
        classes = len(target.values) if isinstance(target, Categories) else 0
        if _known(target).sum() <= 2 * classes:
            continue  # any feature may agree with so few
        for other, feature in given.features.items():
            if all(_is_copy(feature, target, rows) for rows in (some, slice(None))):
                warnings.warn(
                    f"got the {given.what} feature {other!r}, which gives the target {name!r} "
                    "exactly, expected features that are known beforehand; leave it out with "
                    f"--ignore {other}",
                    stacklevel=4,
                )


def _is_copy(feature: Numbers | Categories, target: Numbers | Categories, rows: slice) -> bool:
    """Whether a feature equals a target, or its values correspond to the classes one to one."""
    known = _known(target)[rows]
    x, y = feature[0][rows][known], target[0][rows][known]
    if isinstance(target, Numbers):
        return isinstance(feature, Numbers) and np.array_equal(x, y)
    values, codes = np.unique(x, return_inverse=True)
    pairs = len(np.unique(codes * np.int64(len(target.values)) + y))
    return len(values) == len(np.unique(y)) == pairs


def random_parts(
    targets: Sequence[Numbers | Categories],
    fractions: tuple[float, float, float],
    seed: int,
) -> NDArray[np.int8]:
    """A random split (rows, 1) of the rows with a known target, with these fractions in every class
    of the first target that has classes. Every class has a training row."""
    known = [_known(target) for target in targets]
    rows = np.flatnonzero(np.any(known, axis=0))
    stratum = next((t.codes for t in targets if isinstance(t, Categories)), np.zeros_like(known[0]))
    rows = np.random.default_rng(seed).permutation(rows)
    rows = rows[np.argsort(stratum[rows], kind="stable")]
    parts = np.zeros((len(known[0]), 1), np.int8)
    _, counts = np.unique(stratum[rows], return_counts=True)
    begin = 0
    for count in counts.tolist():
        first = max(1, round(fractions[0] * count))
        second = round((fractions[0] + fractions[1]) * count)
        within = np.arange(count)
        part = np.where(within < first, _TRAIN, np.where(within < second, _VALIDATION, _TEST))
        parts[rows[begin : begin + count], 0] = part
        begin += count
    return parts


def _listed(names: Sequence[str]) -> str:
    """ ": a, b, c and 4 more"; nothing without names."""
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return f": {', '.join(names[:_SHOWN])}{more}" if names else ""
