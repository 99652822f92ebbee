"""docs/troubleshooting.md has a paragraph for each message that a user meets, and none for messages that are gone."""

import re
from pathlib import Path

import pytest

from tests.messages import ARGUMENTS, Message, messages
from tests.pages import ROOT, blocks_of, text_of

PAGE = "docs/troubleshooting.md"

# Where an error passes on what other code said: the file → what that may be. What NCCL, a compiler or another rank says
# of itself has no words of ours; what another rank says is a message of this page.
PASSED_ON = {
    "commlib/agreement.py": ["PlanMismatch: ranks disagree on … (…); start every rank with the same …"],
    "commlib/backends/nccl.py": [
        "Unsupported: rank …: no CUDA GPU here; use backend='shm'",
        "Unsupported: rank …: needs GPU …, but sees …; start fewer ranks or make more GPUs visible",
    ],
    "commlib/backends/nccl_control.py": [],  # NCCL
    "commlib/backends/shm.py": [],  # another rank
    "commlib/backends/torch_dist.py": [
        *(f"{kind}: rank …: … failed in torch.distributed: …" for kind in ("CommError", "CommTimeout", "PeerLost")),
        "PeerLost: … this communicator's store: …",
    ],
    "commlib/communicator.py": [],  # what abort() is given
    "commlib/bootstrap/exchange.py": [
        "CommTimeout: rank …: …, which does not answer (…)",
        "PeerLost: rank …: … is gone (… exchange …)",
        "PeerLost: rank …: rank … was killed by … (… exchange …)",
        "ValueError: … disagree on their number: …",
    ],
    "commlib/bootstrap/meeting.py": [
        "CommTimeout: rank … waited … s for rank 0 at …: nobody serves there; "
        "is it running, on this host and as this user?",
        "CommTimeout: rank … waited … s for rank 0 at …: its process does not answer; is it stopped?",
        "CommTimeout: rank … waited … s for rank 0 at …: only a process of user … serves there; "
        "all ranks must run as one user",
        "ValueError: processes … both are rank … (…): two jobs meet at one address…",
    ],
    "commlib/bootstrap/part.py": [],  # another rank
    "commlib/bootstrap/store.py": [
        "CommTimeout: … the store behind … does not answer; is the process that serves it stopped?",
        "ValueError: … is not signed with this rank's …",
    ],
    "commlib/cli/doctor/gpus.py": [],  # nvidia-smi
    "commlib/collectives/plugins.py": [],  # another rank
    "commlib/guard.py": ["CommError: …: … holds NaN at element … (COMMLIB_GUARD=nan)"],
    "commlib/jit.py": ["BuildFailed: nvrtcCreateProgram: …"],
    "commlib/launch.py": ["commlib: rank … was killed by …", "commlib: rank … exited with code …"],
    "commlib/peers/kernels/once.py": [],  # the library that is measured
    "commlib/peers/mpi.py": [],
    "commlib/peers/nccl.py": [],
    "commlib/peers/peer.py": [],
    "commlib/peers/torch.py": [],
    "commlib/timing/candidate.py": [],
    "commlib/torch_backend/barrier.py": [
        "CommTimeout: Rank … successfully reached monitoredBarrier, but received errors while waiting for send/recv "
        "from rank 0: …"
    ],
    "commlib/torch_backend/engines.py": [],  # what ended the group
    "csrc/binding/shm_group.cc": [],  # the caller of abort()
    "csrc/nccl/group.cc": [],
}
SAID_ELSEWHERE = [Message(file, *said.split(": ", 1)) for file, texts in PASSED_ON.items() for said in texts]
MET = [message for message in messages() if message.kind not in ARGUMENTS]


def patterns():
    """Return the lines of the page that show messages."""
    return [line for block in blocks_of(PAGE) if block.language == "errors" for line in block.text.splitlines()]


def covers(pattern, message):
    """Say whether a line of the page shows a message; … stands for anything."""
    kind, text = pattern.split(": ", 1)
    shown = ".*".join(map(re.escape, text.split("…")))
    return message.kind in {kind, ""} and re.fullmatch(shown, message.text, re.DOTALL) is not None


def test_the_sources_have_messages():
    assert len(MET) > 150
    assert {"PeerLost", "CommTimeout", "Unsupported", "BuildFailed", "commlib"} <= {message.kind for message in MET}


@pytest.mark.parametrize("file", sorted({message.file for message in [*MET, *SAID_ELSEWHERE]}))
def test_each_message_leads_to_a_paragraph(file):
    said = [message for message in [*MET, *SAID_ELSEWHERE] if message.file == file]
    missing = [
        message for message in said if message.own_words >= 2 and not any(covers(p, message) for p in patterns())
    ]
    assert missing == [], f"show it in {PAGE}, in a block of errors"


def test_a_message_without_a_paragraph_would_be_noticed():
    for kind, text in (("CommError", "rank … lost its hat in …"), ("PeerLost", "the arena of rank … is full")):
        assert not any(covers(pattern, Message("commlib/new.py", kind, text)) for pattern in patterns())


def test_a_message_without_words_of_its_own_is_known():
    unknown = {message.file for message in MET if message.own_words < 2} - set(PASSED_ON)
    assert unknown == set(), "say in PASSED_ON what it passes on"


@pytest.mark.parametrize("pattern", patterns())
def test_each_line_of_the_page_is_a_message_of_today(pattern):
    assert any(covers(pattern, message) for message in [*messages(), *SAID_ELSEWHERE])


@pytest.mark.parametrize("said", SAID_ELSEWHERE, ids=lambda said: said.text[:40])
def test_what_is_passed_on_is_in_the_sources(said):
    pieces = [
        piece.strip() for piece in re.split("[…:;,()]", said.text) if len(piece.split()) >= 3 or "Program" in piece
    ]
    sources = "".join(_spoken(path) for path in (ROOT / "commlib").rglob("*.py"))
    assert [piece for piece in pieces if piece not in sources] == []


def _spoken(path: Path) -> str:
    """Return a source with the pieces of divided texts joined."""
    return re.sub(r'"\s*\n\s*f?"', "", path.read_text(encoding="utf-8"))


def test_each_block_of_messages_has_a_heading_before_it_and_a_paragraph_behind_it():
    for heading, text in re.findall(r"^### (.*)\n((?s:.*?))(?=^##|\Z)", text_of(PAGE), re.MULTILINE):
        before, block, paragraph = re.fullmatch(r"(?s)(\s*)```errors\n(.*?)```\n(.*)", text).groups()
        assert not before.strip() and block and len(paragraph.split()) > 20, heading
