"""Plans: which algorithm runs at which size, as data that `commlib tune` writes and the communicator reads."""

from commlib.plan.plan import HEAD, Plan
from commlib.plan.rules import MODES, PLACEMENTS, Point, Query, Range, Rule
from commlib.plan.search import find, find_here, shipped, shipped_plan, slug, user_path
from commlib.plan.table import Explanation, Match

__all__ = [
    "HEAD",
    "MODES",
    "PLACEMENTS",
    "Explanation",
    "Match",
    "Plan",
    "Point",
    "Query",
    "Range",
    "Rule",
    "find",
    "find_here",
    "shipped",
    "shipped_plan",
    "slug",
    "user_path",
]
