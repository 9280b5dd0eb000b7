"""Functions keep the names of their files by value, whatever version of cloudpickle is there."""

from __future__ import annotations

import pickle
from typing import Any

from jupyter_elastic.jobfiles import code_by_value

TEXT = """
def outer():
    return [inner for inner in (lambda: 1,)][0]

class Kind:
    def method(self):
        return outer
"""


def test_functions_methods_and_what_they_hold_keep_their_file() -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(TEXT, "<In[7]>", "exec"), namespace)
    outer, kind = pickle.loads(code_by_value.dumps((namespace["outer"], namespace["Kind"])))
    assert outer is not namespace["outer"]
    assert {code.co_filename for code in (outer.__code__, outer().__code__, kind.method.__code__)} == {"<In[7]>"}
