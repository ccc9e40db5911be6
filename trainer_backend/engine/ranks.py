"""Several processes that train one model: who they are, what they tell each other, what they add up.

Gradients travel in a data group, numbers and short texts in a control group, which may be the same.
Every call that says so is collective: all ranks make it, in the same order, whatever happened to one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from trainer_backend.errors import GradaccError, RankFailedError, RankLostError, WindowLeft


def sentence_of_error(error: BaseException) -> str:
    """The least that other ranks are told of an error."""
    return str(error) if isinstance(error, GradaccError) else f"{type(error).__name__}: {error}"


class Ranks:
    """The ranks of one run, or one rank alone.

    describe    what other ranks are told of an error, instead of its one line; it is pickled
    """

    def __init__(
        self,
        process_group: Any | None,  # noqa: ANN401 - torch's own type
        device: torch.device,
        *,
        control_group: Any | None = None,  # noqa: ANN401 - likewise
        describe: Callable[[BaseException], Any] = sentence_of_error,
    ) -> None:
        self.group = process_group
        self._control = process_group if control_group is None else control_group
        self.size: int = 1 if process_group is None else dist.get_world_size(process_group)
        self.rank: int = 0 if process_group is None else dist.get_rank(process_group)
        on_device = self._control is not None and dist.get_backend(self._control) == "nccl"
        self._device = device if on_device else torch.device("cpu")
        self._describe = describe
        self.are_lost = False
        """Whether a collective failed: none may be tried again."""
        self.bring: Callable[[], Sequence[float]] = tuple
        """What else each rank tells after each attempt at a window: as many numbers on all ranks."""

    @contextmanager
    def talking(self) -> Iterator[None]:
        """Around a collective: raises `RankLostError` where it fails."""
        if self.are_lost:
            raise RankLostError("Another rank was lost before.")
        try:
            yield
        except RuntimeError as error:  # torch's DistBackendError is one
            self.are_lost = True
            message = f"Another rank's process has ended, or does not answer any more ({_first_line(error)})."
            raise RankLostError(message) from error

    def sum(self, values: Sequence[float]) -> list[float]:
        """Element-wise sum over ranks, in fp64. Collective."""
        return self._reduced(values, dist.ReduceOp.SUM) if self.size > 1 else list(values)

    def max(self, values: Sequence[float]) -> list[float]:
        """Element-wise maximum over ranks. Collective."""
        return self._reduced(values, dist.ReduceOp.MAX) if self.size > 1 else list(values)

    def add(self, tensor: torch.Tensor) -> Any:  # noqa: ANN401 - torch's own handle
        """Begin to sum a tensor over the ranks, in place; gives what is to be waited for. Collective."""
        with self.talking():
            return dist.all_reduce(tensor, op=dist.ReduceOp.SUM, group=self.group, async_op=True)

    def gather(self, mine: Any) -> list[Any]:  # noqa: ANN401 - anything that can be pickled
        """What every rank brings, by rank. Collective."""
        if self.size == 1:
            return [mine]
        gathered: list[Any] = [None] * self.size
        with self.talking():
            dist.all_gather_object(gathered, mine, group=self._control)
        return gathered

    def settle(self, error: BaseException | None) -> None:
        """Raise this rank's error, or another rank's; nothing when all went well. Collective.

        Another's exception of the kind that asks for a stop becomes `WindowLeft`.
        """
        if isinstance(error, RankLostError):
            raise error
        anyone = self.max([float(error is not None)])[0]
        if anyone:
            self.raise_one(error)

    def raise_one(self, error: BaseException | None) -> None:
        """Raise this rank's error, else that of the first rank that has one. Collective."""
        told = None if error is None else (isinstance(error, Exception), self._describe(error))
        gathered = self.gather(told)
        if error is not None:
            raise error
        failed = [(rank, each) for rank, each in enumerate(gathered) if each is not None]
        errors = [(rank, description) for rank, (is_error, description) in failed if is_error]
        if errors:
            raise RankFailedError(*errors[0])
        raise WindowLeft

    def names(self, mine: Sequence[str]) -> tuple[str, ...]:
        """All ranks' names in one order: rank 0's, then what each further rank adds. Collective."""
        gathered = self.gather(list(dict.fromkeys(mine)))
        return tuple(dict.fromkeys(name for names in gathered for name in names))

    def compare_weights(self, leaves: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Raises `GradaccError` where the ranks do not begin with the same weights. Collective."""
        if self.size == 1:
            return
        sums = [(name, float(leaf.detach().double().sum())) for name, leaf in leaves]
        many = self.max([float(len(sums)), -float(len(sums))])
        if many[0] != -many[1]:
            counts = f"{int(-many[1])} to {int(many[0])}"
            message = f"The ranks train {counts} parameters. Build one model on all ranks."
            raise GradaccError(message)
        high, low = self.max([value for _, value in sums]), self.max([-value for _, value in sums])
        for (name, _), most, least in zip(sums, high, low, strict=True):
            if most != -least and not (math.isnan(most) and math.isnan(least)):
                message = (
                    f"{name} differs between the ranks at the start. Use the same seed on every rank"
                    " before the model is built, or broadcast rank 0's weights."
                )
                raise GradaccError(message)

    def _reduced(self, values: Sequence[float], operation: Any) -> list[float]:  # noqa: ANN401 - torch's enum
        vector = torch.tensor(list(values), dtype=torch.float64, device=self._device)
        with self.talking():
            dist.all_reduce(vector, op=operation, group=self._control)
        return [float(value) for value in vector.tolist()]


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
