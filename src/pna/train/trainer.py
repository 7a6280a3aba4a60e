"""Training of a population: its steps, its validation and its checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast
from weakref import WeakKeyDictionary

import torch
import torch.distributed as distributed
from torch import Tensor

from pna import fast_paths
from pna.data.batch import Batch
from pna.data.graphset import GraphSet
from pna.data.neighbours import NeighbourBatches, check_alone
from pna.nn.architectures import Prediction
from pna.nn.architectures.base import Architecture
from pna.ops.precision import multiplied
from pna.ops.streams import SideStream
from pna.population.all_reduce import all_reduce_sum, world_size
from pna.torch_internals import add_lists_, run_backward
from pna.train.average import MovingAverage, Snapshot
from pna.train.batches import Batches, Execution, OneBatch, SampledBatches
from pna.train.capture import Captured, Memory
from pna.train.layerwise import is_at_once, layerwise_outputs, without_edges
from pna.train.member_state import MemberState
from pna.train.optimiser import Adam
from pna.train.population import Population
from pna.train.selection import selection_of
from pna.train.settings import OPTIMISERS, PRECISIONS, Settings
from pna.train.tasks import (
    LEAST,
    BatchTargets,
    Task,
    are_complete,
    column_of,
    count_graphs,
    count_targets,
    sampled_level,
    summed_errors,
    summed_losses,
    targets_of,
    with_relative_weights,
)
from pna.train.threads import one_thread, takes_one_thread
from pna.train.weights import LossWeights
from pna.waiting import waiting_for

#: Validation batches are captured one by one up to this number; more of them are batched in
#: padded shapes, in an order drawn once.
_MOST_ALONE = 16


class Trainer:
    """Trains a population on one graph set and validates it on another, epoch by epoch.

    Tensors of `member_state` and `best` have a row for every member of the run. Tensors of the
    population and its optimiser have a row for the members `ids` that are still in training.
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
        self._precision = PRECISIONS[settings.precision]
        device, dtype = population.device, population.flat.dtype
        self._dtype = dtype
        self.member_state = MemberState.at_start(settings, device, dtype)
        self.ids = torch.arange(settings.members, device=device)
        self.adam = Adam(population.flat, settings.clip, OPTIMISERS[settings.optimiser])
        self._decay = torch.tensor(settings.of_members("weight_decay"), dtype=dtype, device=device)
        training, validation = map(with_relative_weights, (training, validation))
        self.weights = LossWeights(self.tasks, settings, training, device, dtype)
        self._complete = [are_complete(self.tasks, graphs) for graphs in (training, validation)]
        decay = settings.average
        self.average = None if decay is None else MovingAverage(population, decay)
        self.best = Snapshot(population)
        self.final = Snapshot(population) if settings.keep_last else None
        self._selection = selection_of(
            settings.select, self.tasks, validation, self.weights.is_learned, dtype
        )
        self.begun: dict[str, Tensor] = {}  # the state before the present epoch
        self.sums = torch.zeros(2, settings.members, len(self.tasks), dtype=dtype, device=device)
        self.losses = torch.zeros_like(self.sums)
        self.counts = torch.zeros(2, len(self.tasks), dtype=dtype, device=device)
        self._known: WeakKeyDictionary[Batch, tuple[list[BatchTargets], Tensor]] = (
            WeakKeyDictionary()
        )
        rank = distributed.get_rank() if world_size() > 1 else 0
        if capture is None:
            alone = device.type == "cuda" and world_size() == 1
            capture = alone and fast_paths.is_on("capture")
        self._memory = Memory() if capture else None
        self._conclude = self._captured_conclusion()
        at_once = 1 if population.is_apart else len(population)
        self._one_thread = takes_one_thread(training, settings.batch_size, at_once, device)
        levels = getattr(population.model, "levels", None)
        execution = Execution(self._memory, pad, levels, rank, world_size())
        of_training, of_validation = diameters or (None, None)
        size = settings.batch_size
        self.training: Batches | SampledBatches
        if settings.sample:
            self.training = self._sampled(training, execution)
        else:
            self.training = Batches(
                training, self._train, size, shuffle=settings.shuffle, seed=settings.data_seed,
                diameters=of_training, execution=execution,
            )  # fmt: skip
        drawn = self._memory is not None and len(validation) > size * _MOST_ALONE
        self.validation: Batches | OneBatch
        self._in_slices: GraphSet | None = None  # if validation does not fit into memory at once
        if is_at_once(population, validation):
            like = self.training if _is_same_graph(training, validation) else None
            self.validation = Batches(
                validation, self._validate, size, shuffle=drawn, diameters=of_validation,
                execution=execution, like=like if isinstance(like, Batches) else None,
            )  # fmt: skip
        else:
            # the other processes have no share of the only graph
            self._in_slices = validation if rank == 0 else None
            batch = without_edges(validation) if rank == 0 else validation.batch([])
            self.validation = OneBatch(batch, self._validate)

    def _sampled(self, training: GraphSet, execution: Execution) -> SampledBatches:
        """Batches of the nodes or edges with a known target; raises if the model needs whole
        graphs."""
        settings, model = self.settings, cast(Architecture, self.population.model)
        check_alone(training)
        model.check_sample(len(settings.sample))
        level = sampled_level(self.tasks)
        columns = [column_of(training, level, task.column) for task in self.tasks]
        known = ~torch.stack(columns, 1).isnan().all(1)
        batches = NeighbourBatches(
            training, settings.sample, settings.batch_size, seed=settings.data_seed,
            shuffle=settings.shuffle, **{f"{level}s": known},
        )  # fmt: skip
        return SampledBatches(batches, self._train, execution)

    def run_epoch(self, epoch: int) -> tuple[Tensor, Tensor]:
        """Train and validate once; returns training and validation losses, (members, tasks) each.

        The losses of members that are not in training any more are NaN.
        """
        with multiplied(exactly=not self._precision.tf32), one_thread(self._one_thread):
            self.population.train()
            self.training.run(epoch)
            self.population.train(False)
            self.validation.run(0)
        self._conclude()
        training, validation = self.losses.clone()
        return training, validation

    @torch.no_grad()
    def _conclude_epoch(self) -> None:
        """Compute the losses of an epoch from their sums, and update the state of every member."""
        losses = self.sums / self.counts.clamp(min=LEAST)[:, None]
        total = self.weights.total(losses[1])
        score = total if self._selection is None else self._selection.score()
        self.weights.update(losses[0])
        if self.final is not None:
            self.final.copy_from(*self._validated, self.ids, self.member_state.alive)
        better = self.member_state.after_epoch(self.settings, score)
        self.best.copy_from(*self._validated, self.ids, better)
        gone = torch.ones_like(total, dtype=torch.bool).index_fill(0, self.ids, False)
        self.losses.copy_(losses.masked_fill(gone[:, None], torch.nan))
        self.sums.zero_()
        self.counts.zero_()

    def _captured_conclusion(self) -> Callable[[], None]:
        if self._memory is None or (self._selection is not None and self._selection.on_host):
            return self._conclude_epoch
        return Captured(self._conclude_epoch, self._memory)

    def _train(self, batch: Batch) -> None:
        population, state = self.population, self.member_state
        side = SideStream(population.device, 2)  # the model does not need the targets
        with side:
            targets, counts = self._targets(batch, self._complete[0])
            shares = self._of_those_left(self.weights.shares) / counts.clamp(min=LEAST)

        def losses(prediction: Prediction) -> Tensor:
            side.join()
            return summed_losses(self.tasks, prediction, targets, batch)

        with self._precision.context(self.population.device):
            sums = population.apply(batch, losses)
        if sums.shape[1] > len(self.tasks):  # the model has a loss of its own
            of_graph = 1 / all_reduce_sum(count_graphs(batch)).clamp(min=1).to(shares.dtype)
            shares = torch.cat([shares, of_graph.expand(len(shares), 1)], 1)
        (grad,) = run_backward(
            (sums,), grad_tensors=(shares,), keep_graph=False, create_graph=False,
            inputs=(population.flat,), allow_unreachable=False, accumulate_grad=False,
        )  # fmt: skip
        with torch.no_grad():
            grad, sums = self._reduced(grad, sums)
            of_members = (state.lr, self._decay, state.alive, state.broken)
            lr, decay, alive, broken = map(self._of_those_left, of_members)
            self.adam.step(population.flat, grad, lr, decay, sums, alive, broken)
            if not self._has_all_members:
                state.alive.index_copy_(0, self.ids, alive)
                state.broken.index_copy_(0, self.ids, broken)
            if self.average is not None:
                self.average.update(population, self.adam.steps, alive)
            self._add_up(0, sums[:, : len(self.tasks)], counts)

    @torch.no_grad()
    def _validate(self, batch: Batch) -> None:
        targets, counts = self._targets(batch, self._complete[1])
        with self._precision.context(self.population.device):
            if self._in_slices is None:
                found = self.population.apply(
                    batch, lambda p: self._seen(p, targets), *self._validated
                )
            else:
                waiting_for("validating the nodes of the graph in slices")
                outputs = layerwise_outputs(
                    self.population, self._in_slices, None, *self._validated
                )
                found = torch.stack([self._seen(of_member, targets) for of_member in outputs])
        sums, columns = found[:, : len(self.tasks)], found[:, len(self.tasks) :]
        if self._selection is not None:
            self._selection.keep(self.ids, batch, columns)
        self._add_up(1, all_reduce_sum(sums), counts)

    @property
    def _validated(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Weights and buffers that are validated and saved: the population's, or their average."""
        if self.average is None:
            return self.population.flat.detach(), self.population.buffers
        return self.average.weights, self.average.buffers

    @property
    def _has_all_members(self) -> bool:
        """Whether all members are still in training, so that `ids` need not be looked up."""
        return len(self.ids) == self.settings.members

    def _of_those_left(self, tensor: Tensor) -> Tensor:
        """The rows of the members that are still in training."""
        return tensor if self._has_all_members else tensor[self.ids]

    def _add_up(self, part: int, sums: Tensor, counts: Tensor) -> None:
        """Add to the sums of training (part 0) or validation (part 1) of an epoch."""
        if self._has_all_members:  # one kernel for both
            add_lists_([self.sums[part], self.counts[part]], [sums, counts])
            return
        self.sums[part].index_add_(0, self.ids, sums)
        self.counts[part].add_(counts)

    def _seen(self, prediction: Prediction, targets: list[BatchTargets]) -> Tensor:
        """The summed errors (tasks,) of one model, followed by the outputs that `select` needs."""
        errors = summed_errors(self.tasks, prediction, targets)
        if self._selection is None:
            return errors
        return torch.cat([errors, self._selection.columns(prediction).to(errors.dtype)])

    def _targets(self, batch: Batch, complete: bool) -> tuple[list[BatchTargets], Tensor]:
        """The targets of a batch, and their number over all processes; cached by batch."""
        known = self._known.get(batch)
        if known is None:
            targets = targets_of(self.tasks, batch, self._dtype, complete)
            known = (targets, all_reduce_sum(count_targets(targets, len(self.tasks))))
            self._known[batch] = known
        return known

    def _reduced(self, *tensors: Tensor) -> list[Tensor]:
        """Tensors summed over all processes, with one all-reduce."""
        if world_size() == 1:
            return list(tensors)
        flat = all_reduce_sum(torch.cat([t.flatten() for t in tensors]))
        parts = flat.split([t.numel() for t in tensors])
        return [part.view_as(t) for part, t in zip(parts, tensors, strict=True)]

    def compact(self) -> bool:
        """Drop the members that have stopped, once they are half; returns whether it did."""
        alive = self.member_state.alive[self.ids]
        count = int(alive.sum())
        if count == 0 or 2 * count > len(self.ids):
            return False
        self._choose(alive.nonzero()[:, 0])
        return True

    def _choose(self, rows: Tensor) -> None:
        self.ids = self.ids[rows].clone()
        self.population.keep(rows)
        for name, tensor in self.adam.state_dict().items():
            setattr(self.adam, name, tensor[rows].clone())
        if self.average is not None:
            self.average.keep(rows)
        self.training.forget()
        self.validation.forget()
        self._conclude = self._captured_conclusion()

    @torch.no_grad()
    def remember(self) -> None:
        """Copy the state, for a checkpoint if the epoch that begins now cannot be finished."""
        state = self.state_dict()
        if {n: t.shape for n, t in state.items()} == {n: t.shape for n, t in self.begun.items()}:
            for name, tensor in state.items():
                self.begun[name].copy_(tensor)
        else:
            self.begun = {name: tensor.clone() for name, tensor in state.items()}

    def state_dict(self) -> dict[str, Tensor]:
        """Every tensor of a checkpoint, without copying."""
        tensors = {f"standing.{name}": t for name, t in self.member_state.state_dict().items()}
        tensors |= {f"adam.{name}": t for name, t in self.adam.state_dict().items()}
        tensors |= {f"buffer.{name}": t for name, t in self.population.buffers.items()}
        tensors |= self.weights.state_dict() | self.best.state_dict("best")
        tensors |= {"ids": self.ids, "weights": self.population.flat.detach()}
        for name, copy in (("average", self.average), ("final", self.final)):
            if copy is not None:
                tensors |= copy.state_dict(name)
        return tensors

    @torch.no_grad()
    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Continue from a checkpoint of `state_dict`."""
        ids = tensors["ids"].to(self.ids.device)
        if len(ids) != len(self.ids):
            self._choose(ids)
        own = self.state_dict()
        if set(own) != set(tensors) or any(own[n].shape != tensors[n].shape for n in own):
            odd = [n for n in sorted(set(own) | set(tensors)) if n not in own or n not in tensors]
            raise ValueError(
                f"holds tensors of another model or other settings ({', '.join(odd) or 'sizes'})"
            )
        for name, tensor in own.items():
            tensor.copy_(tensors[name])


def _is_same_graph(one: GraphSet, other: GraphSet) -> bool:
    """Whether two sets have the same graph alone, in the same memory, and differ in targets."""

    def edges(graphs: GraphSet) -> list[tuple[int, torch.Size] | None]:
        tensors = (graphs.senders, graphs.label_ends)
        return [None if t is None else (t.data_ptr(), t.shape) for t in tensors]

    return len(one) == len(other) == 1 and edges(one) == edges(other)
