"""Fixed logical workers: results depend on their number alone, however many processes compute them. Pure.

Floating-point sums depend on their order. Here the gradients of N logical workers are added up in the order of one
binary tree, whose leaves are the logical workers; each process holds some neighbouring ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jupyter_elastic.training.data import share
from jupyter_elastic.types.errors import EngineError

Tensors = list[Any]


class TreeSum:
    """The sum of the results of N logical workers, as lists of tensors or arrays, in one fixed order.

    Args:
        workers: Logical workers, N.
        rank: Rank of this process.
        size: Processes, at most N.
    """

    def __init__(self, workers: int, rank: int, size: int) -> None:
        self._workers, self._rank = workers, rank
        self._owner = [r for r in range(size) for _ in range(*share(workers, r, size))]
        self._next = self._owner.index(rank)
        self._subtrees: dict[tuple[int, int], Tensors] = {}
        """The sums of whole subtrees (first leaf, one behind the last) that lie in this process."""
        self._nodes = frozenset(_nodes(0, workers))

    def add(self, worker: int, tensors: Tensors) -> None:
        """Take the result of this process's next logical worker; overwrites earlier ones'."""
        if worker != self._next:
            raise EngineError(
                f"With logical workers, an optimizer steps once for each piece of a batch that training.batches gives, "
                f"and here logical worker {worker} steps in the place of {self._next}. Call optimizer.step() exactly "
                "once in each turn of the loop, and leave none out."
            )
        self._next += 1
        low, high = worker, worker + 1
        while left := next(((a, b) for a, b in self._subtrees if b == low and (a, high) in self._nodes), None):
            tensors = _added(self._subtrees.pop(left), tensors)
            low = left[0]
        self._subtrees[low, high] = tensors

    def total(self, allreduce: Callable[[Tensors], Tensors], zeros_like: Callable[[Any], Any]) -> Tensors:
        """Return the sum of all; every process calls it when it has added all its logical workers.

        A node whose halves lie in two processes is formed by an all-reduce to which only these two contribute: a sum of
        two numbers and zeros is the same in any order. With two processes that is one plain all-reduce.

        Args:
            allreduce: Returns the sum of such a list over all processes; may overwrite it.
            zeros_like: Returns a tensor of zeros of the shape, type and device of another.
        """
        shapes = next(iter(self._subtrees.values()))

        def node(low: int, high: int) -> Tensors | None:
            """Return this process's sum of a subtree; None if it has none."""
            if self._owner[low] == self._owner[high - 1]:
                return self._subtrees.get((low, high))
            middle = _middle(low, high)
            halves = [(low, node(low, middle)), (middle, node(middle, high))]
            mine = [known for first, known in halves if known is not None and self._owner[first] == self._rank]
            if not mine:
                return allreduce([zeros_like(tensor) for tensor in shapes])
            return allreduce(mine[0] if len(mine) == 1 else _added(*mine))

        whole = node(0, self._workers)
        assert whole is not None  # this process holds all, or has taken part in forming the root
        return whole


def _middle(low: int, high: int) -> int:
    return (low + high) // 2


def _nodes(low: int, high: int) -> list[tuple[int, int]]:
    """Return all nodes of the tree over the leaves low..high."""
    if high - low == 1:
        return [(low, high)]
    middle = _middle(low, high)
    return [(low, high), *_nodes(low, middle), *_nodes(middle, high)]


def _added(one: Tensors, other: Tensors) -> Tensors:
    for number, tensor in enumerate(other):
        one[number] += tensor
    return one
