"""The side rules of the core, each in a module of its own."""

from jupyter_elastic.scheduler.core.rule import Rule
from jupyter_elastic.scheduler.core.rules.caps import CappedSlots
from jupyter_elastic.scheduler.core.rules.drains import Drains
from jupyter_elastic.scheduler.core.rules.interactive import Interactive
from jupyter_elastic.scheduler.core.rules.retention import Retentions
from jupyter_elastic.scheduler.core.rules.server_slots import ServerSlots
from jupyter_elastic.scheduler.core.rules.suitable import Suitability

RULES: tuple[type[Rule], ...] = (Suitability, ServerSlots, Drains, Retentions, Interactive, CappedSlots)
"""All rules, in the order in which the core asks them: what one decides, the next ones see."""
