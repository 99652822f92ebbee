"""What a run found, as a table to read and as data to keep."""

from collections import Counter

COLUMNS = ("executed", "passed", "failed", "skipped")


def counts(outcomes):
    """Return how many tests were executed, passed, failed and skipped."""
    each = Counter(outcome.outcome for outcome in outcomes.values())
    return {"executed": each["passed"] + each["failed"], **{name: each[name] for name in COLUMNS[1:]}}


def table(results):
    """Return the lines: a row for each suite, then why tests were skipped, then what failed."""
    backends = list(dict.fromkeys(backend for _, backend in results))
    suites = list(dict.fromkeys(suite for suite, _ in results))
    lines = [f"{'':<14}{'':>6}" + "".join(f"  {backend:^36}" for backend in backends)]
    lines += [f"{'suite':<14}{'tests':>6}" + ("  " + "".join(f"{name:>9}" for name in COLUMNS)) * len(backends)]
    for suite in suites:
        rows = [results[suite, backend] for backend in backends]
        numbers = ["  " + "".join(f"{number:>9}" for number in counts(row).values()) for row in rows]
        lines.append(f"{suite:<14}{max(map(len, rows)):>6}" + "".join(numbers))
    for backend in backends:
        lines += skips(backend, results) + failures(backend, results)
    return lines


def skips(backend, results):
    """Return the lines that say how many tests each reason skipped."""
    every = [outcome for (_, name), row in results.items() if name == backend for outcome in row.values()]
    reasons = Counter(outcome.reason for outcome in every if outcome.outcome == "skipped")
    if not reasons:
        return []
    return ["", f"skipped with {backend}:"] + [f"{number:>5}  {reason}" for reason, number in reasons.most_common()]


def failures(backend, results):
    """Return the lines that name each test that failed, and why."""
    found = [
        f"  {suite}: {test}: {outcome.reason}"
        for (suite, name), row in results.items()
        if name == backend
        for test, outcome in row.items()
        if outcome.outcome == "failed"
    ]
    return ["", f"failed with {backend}:", *found] if found else []


def document(results, **conditions):
    """Return the same as data: the counts, each failure, and the tests that each reason skipped."""
    return conditions | {"results": [entry(*key, row) for key, row in results.items()]}


def entry(suite, backend, outcomes):
    skipped = {}
    for test, outcome in outcomes.items():
        if outcome.outcome == "skipped":
            skipped.setdefault(outcome.reason, []).append(test)
    return {
        "suite": suite,
        "backend": backend,
        **counts(outcomes),
        "seconds": round(sum(outcome.seconds for outcome in outcomes.values()), 1),
        "failures": {test: outcome.reason for test, outcome in outcomes.items() if outcome.outcome == "failed"},
        "skips": skipped,
        "gates": dict(Counter(outcome.gate for outcome in outcomes.values() if outcome.outcome != "skipped")),
    }
