"""Plans: which algorithm runs at which size, as data that `commlib tune` writes and the communicator reads."""

from commlib.plan.compare import Difference, differences
from commlib.plan.decide import Facts, Query
from commlib.plan.explanation import Explanation, Match
from commlib.plan.plan import HEAD, Plan
from commlib.plan.rules import MAX_WORLD, MODES, PLACEMENTS, Range, Rule
from commlib.plan.search import find, shipped, shipped_plan, slug, user_path

__all__ = [
    "HEAD",
    "MAX_WORLD",
    "MODES",
    "PLACEMENTS",
    "Difference",
    "Explanation",
    "Facts",
    "Match",
    "Plan",
    "Query",
    "Range",
    "Rule",
    "differences",
    "find",
    "shipped",
    "shipped_plan",
    "slug",
    "user_path",
]
