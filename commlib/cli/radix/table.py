"""The table of `commlib radix simulate`: for each trace and capacity a line for each policy, the best one marked."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

from commlib.cli.radix.document import label
from commlib.report.table import Column, Table, fold


def opening(document: dict[str, Any], width: int) -> list[str]:
    """Return what stands above all tables."""
    config, machine = document["config"], document["fingerprint"]
    pages = f"pages of {config['page_size']} tokens" if config["page_size"] > 1 else "pages of 1 token"
    lines = [
        f"# commlib {machine['commlib']} radix simulate on {machine['cpu']}",
        f"# {pages}, eviction {' and '.join(config['evictions'])}, one request at a time",
        "# hit rate: prompt tokens found in the cache; of limit: of what a cache without end finds",
    ]
    return fold(lines, width)


def table(document: dict[str, Any], trace: dict[str, Any], width: int) -> list[str]:
    """Return the lines of one trace."""
    several = len(document["config"]["evictions"]) > 1
    columns = Table(
        [
            Column("capacity", itemgetter("capacity"), 9, "tokens"),
            Column("policy", itemgetter("policy"), 14, left=True),
            Column("hit rate", itemgetter("hit"), 9, "%"),
            Column("of limit", itemgetter("limit"), 9, "%", spare=2),
            Column("evicted", itemgetter("evicted"), 9, "tokens", spare=3),
            Column("too large", itemgetter("large"), 9, "requests", spare=4),
            Column("speed", itemgetter("rate"), 9, "req/s", spare=1),
        ],
        width,
    )
    title = (
        f"{trace['trace']}: {trace['requests']} requests, {short(trace['prompt_tokens'])} prompt tokens, "
        f"limit {100 * trace['hit_rate']:.1f} %"
    )
    lines = columns.head(title)
    for row in trace["rows"]:
        limit = row["hit_rate"] / trace["hit_rate"] if trace["hit_rate"] else 1.0
        cells = {
            "capacity": short(row["capacity"]),
            "policy": label(row, several) + ("*" if row["best"] else ""),
            "hit": f"{100 * row['hit_rate']:.1f}",
            "limit": f"{100 * limit:.1f}",
            "evicted": short(row["evicted_tokens"]),
            "large": str(row["too_large"]),
            "rate": "-" if row["requests_per_s"] is None else short(row["requests_per_s"]),
        }
        lines.append(columns.line(cells))
    return lines


def short(count: float) -> str:
    """Write a count with three digits: 123, 45.6k, 1.2M."""
    for unit, scale in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= 0.9995 * scale:
            return f"{count / scale:.3g}{unit}"
    return f"{count:.3g}"
