"""Plans: which algorithm runs at which size, as data that `commlib tune` writes and the communicator reads."""

from commlib.plan.compare import Difference, differences
from commlib.plan.decide import Facts, Query
from commlib.plan.explanation import HARD, SOFT, Explanation, Match
from commlib.plan.faults import SCHEMA, VERSION
from commlib.plan.plan import Plan
from commlib.plan.rules import MAX_WORLD, MODES, PLACEMENTS, Range, Rule
from commlib.plan.search import shipped, shipped_plan, slug, user_path

__all__ = [
    "HARD",
    "MAX_WORLD",
    "MODES",
    "PLACEMENTS",
    "SCHEMA",
    "SOFT",
    "VERSION",
    "Difference",
    "Explanation",
    "Facts",
    "Match",
    "Plan",
    "Query",
    "Range",
    "Rule",
    "differences",
    "shipped",
    "shipped_plan",
    "slug",
    "user_path",
]
