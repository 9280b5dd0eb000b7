"""The pool that the tests of a module share."""

from tests.support.pool import lasting_pool, shared_pool

__all__ = ["lasting_pool", "shared_pool"]
