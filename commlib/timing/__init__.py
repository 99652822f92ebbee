"""The one timing protocol: whatever prints or stores a time measures it here, ours and others' alike."""

from commlib.timing.alone import Alone, measure_alone
from commlib.timing.blocks import Measurement, Protocol, block_seconds
from commlib.timing.candidate import Candidate, Empty, Prepare, Run, plain, plain_on, public_call
from commlib.timing.environment import environment
from commlib.timing.fit import Fit, fit_latency_and_rate
from commlib.timing.graph import own_stream
from commlib.timing.interval import Ratio, ratio_of_medians
from commlib.timing.limit import Limit, measure_limit
from commlib.timing.machine import cpu_share, fingerprint
from commlib.timing.protocol import measure

__all__ = [
    "Alone",
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
    "measure_alone",
    "measure_limit",
    "own_stream",
    "plain",
    "plain_on",
    "public_call",
    "ratio_of_medians",
]
