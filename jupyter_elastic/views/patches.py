"""Computes the changes between two JSON documents, so that a page with the first is sent little for the second.

Pure. `frontend/src/patches.ts` applies a patch, which is one of

    {"v": value}                  replace the value
    {"k": {key: patch, ...}}      patch an object, or a list of objects by index: other keys stay
    {"l": [drop, keep, rest]}     in a list, drop the first `drop` elements, keep the next `keep`, append `rest`
"""

from __future__ import annotations

from typing import Any

Patch = dict[str, Any]


def patch(before: Any, after: Any) -> Patch | None:
    """Return the patch from `before` to `after`; None if they are the same. Both are JSON values."""
    if before == after:
        return None
    if isinstance(before, dict) and isinstance(after, dict) and before.keys() <= after.keys():
        return {"k": _parts({key: (before.get(key, _NONE), value) for key, value in after.items()})}
    if isinstance(before, list) and isinstance(after, list) and before and after:
        if len(before) == len(after) and all(isinstance(element, dict) for element in (*before, *after)):
            return {"k": _parts({str(index): pair for index, pair in enumerate(zip(before, after, strict=True))})}
        drop, keep = _overlap(before, after)
        if keep:
            return {"l": [drop, keep, after[keep:]]}
    return {"v": after}


_NONE = object()


def _parts(pairs: dict[str, tuple[Any, Any]]) -> dict[str, Patch]:
    found = {key: patch(before, after) for key, (before, after) in pairs.items()}
    return {key: part for key, part in found.items() if part is not None}


def _overlap(before: list[Any], after: list[Any]) -> tuple[int, int]:
    """Return how many elements to drop so that as many as possible of the next ones begin `after`, and their number."""
    best = 0, 0
    for drop in range(len(before)):
        most = min(len(before) - drop, len(after))
        if most <= best[1]:
            break
        if before[drop] != after[0]:
            continue
        keep = next((index for index in range(most) if before[drop + index] != after[index]), most)
        best = max(best, (drop, keep), key=lambda found: found[1])
    return best
