"""The tuner: measure every algorithm on this very box, and turn what was found into a plan."""

from commlib.tuner.case import Case, Option, cases_of
from commlib.tuner.choose import Choice, Settings, Stretch, choose
from commlib.tuner.judge import Verdict, judge
from commlib.tuner.rules import document
from commlib.tuner.samples import Samples, Store
from commlib.tuner.survey import Effort, Survey

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
    "Verdict",
    "cases_of",
    "choose",
    "document",
    "judge",
]
