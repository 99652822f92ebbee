"""The one timing protocol: whatever prints or stores a time measures it here, ours and others' alike."""

from commlib.plan.search import fingerprint
from commlib.tools.timing.blocks import Measurement, Protocol, block_seconds
from commlib.tools.timing.candidate import (
    Candidate,
    Empty,
    Prepare,
    Run,
    Started,
    cpu_share,
    pinned,
    plain,
    plain_on,
    public_call,
    twin_of,
)
from commlib.tools.timing.figures import Fit, Ratio, fit_latency_and_rate, ratio_of_medians
from commlib.tools.timing.graph import own_stream
from commlib.tools.timing.limit import Limit, measure_limit
from commlib.tools.timing.protocol import buffers_of, measure, measure_alone, measure_calls
from commlib.tools.timing.truth import bits, differing, poison

__all__ = [
    "Candidate",
    "Empty",
    "Fit",
    "Limit",
    "Measurement",
    "Prepare",
    "Protocol",
    "Ratio",
    "Run",
    "Started",
    "bits",
    "block_seconds",
    "buffers_of",
    "cpu_share",
    "differing",
    "fingerprint",
    "fit_latency_and_rate",
    "measure",
    "measure_alone",
    "measure_calls",
    "measure_limit",
    "own_stream",
    "pinned",
    "plain",
    "plain_on",
    "poison",
    "public_call",
    "ratio_of_medians",
    "twin_of",
]
