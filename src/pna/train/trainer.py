"""A population being trained: its steps, its validation, and all that a checkpoint must hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as distributed
from torch import Tensor

from pna import fast_paths
from pna.data.batch import Batch
from pna.data.graphset import GraphSet
from pna.nn.architectures import Prediction
from pna.ops.precision import multiplied
from pna.ops.streams import Beside
from pna.population.all_reduce import processes, sum_of_all
from pna.train.average import Average
from pna.train.batches import Batches
from pna.train.capture import Captured, Memory
from pna.train.judging import RocAuc
from pna.train.optimiser import Adam
from pna.train.population import Population
from pna.train.progress import Standing
from pna.train.settings import OPTIMISERS, Settings
from pna.train.tasks import (
    Target,
    Task,
    are_complete,
    count_graphs,
    count_targets,
    summed_errors,
    summed_losses,
    targets_of,
)
from pna.train.weights import LossWeights

#: Batches of validation, at most, that are captured each by itself; the graphs of more are put
#: together in padded shapes, in an order drawn once.
_MOST_ALONE = 16


class Trainer:
    """Trains a population on one graph set and validates it on another, epoch by epoch.

    Tensors of `standing` and `best` have a row for every member there ever was; those of the
    population and its optimiser for the members `ids` that are still in it.
    """

    def __init__(
        self,
        population: Population,
        tasks: Sequence[Task],
        settings: Settings,
        training: GraphSet,
        validation: GraphSet,
        *,
        capture: bool | None = None,
        pad: bool = False,
        diameters: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        self.population, self.tasks, self.settings = population, tuple(tasks), settings
        device, dtype = population.device, population.flat.dtype
        self._dtype = dtype
        self.standing = Standing.at_start(settings, device, dtype)
        self.ids = torch.arange(settings.members, device=device)
        self.adam = Adam(population.flat, settings.clip, OPTIMISERS[settings.optimiser])
        self._decay = torch.tensor(settings.of_members("weight_decay"), dtype=dtype, device=device)
        self.weights = LossWeights(self.tasks, settings, training, device, dtype)
        self._complete = [are_complete(self.tasks, graphs) for graphs in (training, validation)]
        decay = settings.average
        self.average = None if decay is None else Average(population, decay)
        self.best = population.flat.detach().clone()
        self.best_buffers = {name: b.clone() for name, b in population.buffers.items()}
        self.final = self.best.clone() if settings.keep_last else None
        self.final_buffers = {name: b.clone() for name, b in self.best_buffers.items()}
        self._judge = None
        if settings.select == "roc_auc":
            self._judge = RocAuc(self.tasks, validation, settings.members, dtype)
        self.sums = torch.zeros(2, settings.members, len(self.tasks), dtype=dtype, device=device)
        self.losses = torch.zeros_like(self.sums)
        self.counts = torch.zeros(2, len(self.tasks), dtype=dtype, device=device)
        self._known: WeakKeyDictionary[Batch, tuple[list[Target], Tensor]] = WeakKeyDictionary()
        rank = distributed.get_rank() if processes() > 1 else 0
        if capture is None:
            alone = device.type == "cuda" and processes() == 1
            capture = alone and fast_paths.is_on("capture")
        self._memory = Memory() if capture else None
        self._conclude = self._captured_conclusion()
        shared: dict[str, Any] = {
            "capture": self._memory, "pad": pad, "rank": rank, "processes": processes(),
            "levels": getattr(population.model, "levels", None),
        }  # fmt: skip
        of_training, of_validation = (None, None) if diameters is None else diameters
        size = settings.batch_size
        self.training = Batches(
            training, self._train, size, shuffle=settings.shuffle, seed=settings.data_seed,
            diameters=of_training, **shared,
        )  # fmt: skip
        drawn = self._memory is not None and len(validation) > size * _MOST_ALONE
        self.validation = Batches(
            validation, self._validate, size, shuffle=drawn, diameters=of_validation, **shared
        )

    def run_epoch(self, epoch: int) -> tuple[Tensor, Tensor]:
        """Train and validate once; losses of training and validation, (members, tasks) each.

        Members that are not in the population any more have NaN.
        """
        with multiplied(exactly=self.settings.precision != "tf32"):
            self.population.train()
            self.training.run(epoch)
            self.population.train(False)
            self.validation.run(0)
        self._conclude()
        training, validation = self.losses.clone()
        return training, validation

    @torch.no_grad()
    def _conclude_epoch(self) -> None:
        """From the sums of an epoch to losses, and to what they mean for every member."""
        losses = self.sums / self.counts.clamp(min=1)[:, None]
        total = self.weights.judge(losses[1])
        judged = total if self._judge is None else self._judge.score()
        self.weights.follow(losses[0])
        if self.final is not None:
            self._keep(self.standing.alive, self.final, self.final_buffers)
        better = self.standing.after_epoch(self.settings, judged)
        self._keep(better, self.best, self.best_buffers)
        gone = torch.ones_like(total, dtype=torch.bool).index_fill(0, self.ids, False)
        self.losses.copy_(losses.masked_fill(gone[:, None], torch.nan))
        self.sums.zero_()
        self.counts.zero_()

    def _captured_conclusion(self) -> Callable[[], None]:
        if self._memory is None:
            return self._conclude_epoch
        return Captured(self._conclude_epoch, self._memory)

    @torch.no_grad()
    def _keep(self, which: Tensor, into: Tensor, buffers: dict[str, Tensor]) -> None:
        """Copy weights and buffers of these members (members,) as they are now."""
        weights, now_buffers = self._validated
        rows = which[self.ids]

        def keep(held: Tensor, now: Tensor) -> None:
            mask = rows.view(-1, *[1] * (now.dim() - 1))
            held.index_copy_(0, self.ids, torch.where(mask, now, held[self.ids]))

        keep(into, weights)
        for name, buffer in now_buffers.items():
            keep(buffers[name], buffer)

    def _train(self, batch: Batch) -> None:
        population, standing = self.population, self.standing
        beside = Beside(population.device, 2)  # the model has no need of targets
        with beside:
            targets, counts = self._targets(batch, self._complete[0])
            shares = self._of_those_left(self.weights.shares) / counts.clamp(min=1)

        def losses(prediction: Prediction) -> Tensor:
            beside.join()
            return summed_losses(self.tasks, prediction, targets, batch)

        with self._autocast():
            sums = population.apply(batch, losses)
        if sums.shape[1] > len(self.tasks):  # and the model's own loss
            of_graph = 1 / sum_of_all(count_graphs(batch)).clamp(min=1).to(shares.dtype)
            shares = torch.cat([shares, of_graph.expand(len(shares), 1)], 1)
        (grad,) = torch.autograd.grad(sums, population.flat, shares)
        with torch.no_grad():
            grad, sums = self._reduced(grad, sums)
            lr, decay = self._of_those_left(standing.lr), self._of_those_left(self._decay)
            stand = (standing.alive, standing.broken)
            alive, broken = map(self._of_those_left, stand)
            self.adam.step(population.flat, grad, lr, decay, sums, alive, broken)
            if not self._is_whole:
                for held, now in zip(stand, (alive, broken), strict=True):
                    held.index_copy_(0, self.ids, now)
            if self.average is not None:
                self.average.follow(population, self.adam.steps, alive)
            self._add_up(0, sums[:, : len(self.tasks)], counts)

    @torch.no_grad()
    def _validate(self, batch: Batch) -> None:
        targets, counts = self._targets(batch, self._complete[1])
        with self._autocast():
            found = self.population.apply(batch, lambda p: self._seen(p, targets), *self._validated)
        sums, columns = found[:, : len(self.tasks)], found[:, len(self.tasks) :]
        if self._judge is not None:
            self._judge.keep(self.ids, batch, columns)
        self._add_up(1, sum_of_all(sums), counts)

    @property
    def _validated(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Weights and buffers that are validated and kept: the population's, or their average."""
        if self.average is None:
            return self.population.flat, self.population.buffers
        return self.average.weights, self.average.buffers

    @property
    def _is_whole(self) -> bool:
        """Whether no member has been left out, so that `ids` need not be looked up."""
        return len(self.ids) == self.settings.members

    def _of_those_left(self, tensor: Tensor) -> Tensor:
        """The rows of the members that are in the population."""
        return tensor if self._is_whole else tensor[self.ids]

    def _add_up(self, part: int, sums: Tensor, counts: Tensor) -> None:
        """Add to the sums of an epoch's training, 0, or validation, 1."""
        if self._is_whole:  # both in one kernel
            torch._foreach_add_([self.sums[part], self.counts[part]], [sums, counts])
            return
        self.sums[part].index_add_(0, self.ids, sums)
        self.counts[part].add_(counts)

    def _seen(self, prediction: Prediction, targets: list[Target]) -> Tensor:
        """What validation takes from the predictions of one model: summed errors (tasks,), and
        after them what it is judged by."""
        errors = summed_errors(self.tasks, prediction, targets)
        if self._judge is None:
            return errors
        return torch.cat([errors, self._judge.columns(prediction).to(errors.dtype)])

    def _targets(self, batch: Batch, complete: bool) -> tuple[list[Target], Tensor]:
        """What a batch is compared with, and how much of it there is in all processes.

        Remembered for batches that come again.
        """
        known = self._known.get(batch)
        if known is None:
            targets = targets_of(self.tasks, batch, self._dtype, complete)
            known = (targets, sum_of_all(count_targets(targets, len(self.tasks))))
            self._known[batch] = known
        return known

    def _reduced(self, *tensors: Tensor) -> list[Tensor]:
        """Summed over all processes, in one buffer."""
        if processes() == 1:
            return list(tensors)
        flat = sum_of_all(torch.cat([t.flatten() for t in tensors]))
        parts = flat.split([t.numel() for t in tensors])
        return [part.view_as(t) for part, t in zip(parts, tensors, strict=True)]

    def _autocast(self) -> Any:
        if self.settings.precision != "bfloat16":
            return nullcontext()
        return torch.autocast(self.population.device.type, torch.bfloat16)

    def compact(self) -> bool:
        """Leave out the members that have stopped, once they are half; says whether it did."""
        alive = self.standing.alive[self.ids]
        count = int(alive.sum())
        if count == 0 or 2 * count > len(self.ids):
            return False
        self._choose(alive.nonzero()[:, 0])
        return True

    def _choose(self, places: Tensor) -> None:
        self.ids = self.ids[places].clone()
        self.population.keep(places)
        for name, tensor in self.adam.state().items():
            setattr(self.adam, name, tensor[places].clone())
        if self.average is not None:
            self.average.keep(places)
        self.training.forget()
        self.validation.forget()
        self._conclude = self._captured_conclusion()

    def state(self) -> dict[str, Tensor]:
        """Every tensor that training goes on from, in its own memory."""
        held = {f"standing.{name}": t for name, t in self.standing.state().items()}
        held |= {f"adam.{name}": t for name, t in self.adam.state().items()}
        held |= {f"buffer.{name}": t for name, t in self.population.buffers.items()}
        held |= {f"best.buffer.{name}": t for name, t in self.best_buffers.items()}
        held |= self.weights.state()
        held |= {"ids": self.ids, "weights": self.population.flat.detach(), "best": self.best}
        if self.average is not None:
            held |= self.average.state()
        if self.final is not None:
            held["final"] = self.final
            held |= {f"final.buffer.{name}": t for name, t in self.final_buffers.items()}
        return held

    @torch.no_grad()
    def load_state(self, held: dict[str, Tensor]) -> None:
        """Go on from what `state` gave."""
        ids = held["ids"].to(self.ids.device)
        if len(ids) != len(self.ids):
            self._choose(ids)
        own = self.state()
        if set(own) != set(held) or any(own[n].shape != held[n].shape for n in own):
            odd = [n for n in sorted(set(own) | set(held)) if n not in own or n not in held]
            raise ValueError(
                f"holds tensors of another model or other settings ({', '.join(odd) or 'sizes'})"
            )
        for name, tensor in own.items():
            tensor.copy_(held[name])
