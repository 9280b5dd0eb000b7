"""The simulator published with Pollux (OSDI 2021), reproduced to the last digit: evidence, not part of the package.

`python -m benchmarks.pollux` runs policies in it; `data/` holds the workload by which the tests compare it with the
published figures. It needs scipy (the extra `dev`).
"""
