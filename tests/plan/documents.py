"""Plan documents for tests: the head, a plan of some rules, one with this machine's fingerprint."""

import json
from typing import Any

from commlib.plan import Plan
from commlib.tools.timing import fingerprint

Rule = dict[str, Any]
HEAD = {"schema": "commlib.plan", "version": 2}


def plan_of(*rules: Rule) -> Plan:
    return Plan.parse(json.dumps({**HEAD, "rules": list(rules)}), "here")


def tuned(**changes: Any) -> str:
    """A plan of one rule, with this machine's fingerprint but for the changes."""
    rule = {"op": "all_reduce", "world": [2, 2], "ranges": [{"algorithm": "shm_twoshot"}]}
    return json.dumps({**HEAD, "fingerprint": {**fingerprint("shm"), **changes}, "rules": [rule]}, indent=1)
