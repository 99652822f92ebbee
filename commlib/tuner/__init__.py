"""The tuner: measure every algorithm on this very box, and turn what was found into a plan."""

from commlib.tuner import beside
from commlib.tuner.case import Case, Option, cases_of
from commlib.tuner.choose import Choice, Settings, Stretch, choose
from commlib.tuner.judge import Verdict, judge
from commlib.tuner.rules import Table, plan_of
from commlib.tuner.samples import Samples, Store
from commlib.tuner.survey import Effort, Survey
from commlib.tuner.tables import Tables, by_op

__all__ = [
    "Case",
    "Choice",
    "Effort",
    "Option",
    "Samples",
    "Settings",
    "Store",
    "Stretch",
    "Survey",
    "Table",
    "Tables",
    "Verdict",
    "beside",
    "by_op",
    "cases_of",
    "choose",
    "judge",
    "plan_of",
]
