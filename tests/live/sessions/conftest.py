"""The pool that the tests of a module share: the owner's, and with everything also of somebody without any right."""

from tests.support.somebody import lasting_pool, shared_pool

__all__ = ["lasting_pool", "shared_pool"]
