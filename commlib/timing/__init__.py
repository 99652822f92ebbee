"""The one timing protocol: whatever prints or stores a time measures it here, ours and others' alike."""

from commlib.timing.candidate import Candidate, Empty, Prepare, Run, plain, plain_on, public_call
from commlib.timing.environment import environment
from commlib.timing.fit import Fit, fit_latency_and_rate
from commlib.timing.interval import Ratio, ratio_of_medians
from commlib.timing.limit import Limit, measure_limit
from commlib.timing.machine import cpu_share, fingerprint
from commlib.timing.protocol import Measurement, Protocol, block_seconds, measure

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
    "block_seconds",
    "cpu_share",
    "environment",
    "fingerprint",
    "fit_latency_and_rate",
    "measure",
    "measure_limit",
    "plain",
    "plain_on",
    "public_call",
    "ratio_of_medians",
]
