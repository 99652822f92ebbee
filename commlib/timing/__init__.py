"""The one timing protocol: whatever prints or stores a time measures it here, ours and others' alike."""

from commlib.timing.candidate import Candidate, Empty, Prepare, Run, plain, plain_on, public_call
from commlib.timing.machine import cpu_share, fingerprint
from commlib.timing.protocol import Measurement, Protocol, block_seconds, measure

__all__ = [
    "Candidate",
    "Empty",
    "Measurement",
    "Prepare",
    "Protocol",
    "Run",
    "block_seconds",
    "cpu_share",
    "fingerprint",
    "measure",
    "plain",
    "plain_on",
    "public_call",
]
