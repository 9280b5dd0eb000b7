"""Plans that move samples of training data between unequal hosts before a training (pure).

In a synchronous training the slowest host sets the pace. A host that holds more than its speed can bear sends some of
its samples to others, as long as the epochs that follow win back what the transfer takes.

After the system model of Yang Tien-Chi, *Data movement for distributed machine learning in edge clouds* (National Tsing
Hua University, 2020); variables and constraints are ours. Reads no file, no clock, no network.
"""

from jupyter_elastic.balance.instance import DataHost, Instance, SampleMove, read_instance
from jupyter_elastic.balance.solvers import SOLVERS, solve
from jupyter_elastic.balance.transfer_plan import TransferPlan, measure

__all__ = ["SOLVERS", "DataHost", "Instance", "SampleMove", "TransferPlan", "measure", "read_instance", "solve"]
