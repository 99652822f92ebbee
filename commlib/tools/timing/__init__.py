"""The one timing protocol: whatever prints or stores a time measures it here, ours and others' alike."""

from commlib.plan.search import fingerprint
from commlib.tools.timing.blocks import Measurement, Protocol, SingleDevice, block_seconds
from commlib.tools.timing.candidate import (
    Candidate,
    Empty,
    Prepare,
    Run,
    bits,
    differing,
    pinned,
    plain,
    plain_on,
    poison,
    public_call,
    twin_of,
)
from commlib.tools.timing.graph import separate_stream
from commlib.tools.timing.protocol import buffers_of, measure, measure_calls

__all__ = [
    "Candidate",
    "Empty",
    "Measurement",
    "Prepare",
    "Protocol",
    "Run",
    "SingleDevice",
    "bits",
    "block_seconds",
    "buffers_of",
    "differing",
    "fingerprint",
    "measure",
    "measure_calls",
    "pinned",
    "plain",
    "plain_on",
    "poison",
    "public_call",
    "separate_stream",
    "twin_of",
]
