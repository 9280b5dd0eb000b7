"""Functions on slots of the pool, from a plain script: `python 06_functions.py`. Nobody starts anything before."""

import math
import random
from concurrent.futures import as_completed

import jupyter_elastic as elastic


@elastic.remote
def inside(points: int, seed: int) -> int:
    """How many of so many random points lie in the quarter of a circle."""
    chance = random.Random(seed)
    return sum(chance.random() ** 2 + chance.random() ** 2 <= 1 for _ in range(points))


def root(x: float) -> float:
    """Fails below 0."""
    return math.sqrt(x)


if __name__ == "__main__":
    POINTS, PARTS = 20_000, 8
    futures = [inside.remote(POINTS, seed) for seed in range(PARTS)]
    found = sum(future.result() for future in as_completed(futures))
    print(f"pi is about {4 * found / (POINTS * PARTS):.2f}")

    # Many small ones: a hundred items to a call.
    print(f"sum of roots: {sum(elastic.map(root, range(10_000), chunksize=100)):.0f}")

    # An exception is raised where the result is taken, with the function's own traceback as its cause.
    try:
        elastic.submit(root, -1).result()
    except ValueError as problem:
        print(f"no root: {problem}")

    # The interface of concurrent.futures, on two slots at most.
    with elastic.Functions(max_workers=2, name="powers") as pool:
        print("powers:", list(pool.map(pow, [2, 3], [10, 10])))

    # What nobody waits for runs all the same; `elastic.results(JOB)` has it later.
    later = elastic.submit(root, 2)
    elastic.flush()
    print("later: job", later.place[0])
