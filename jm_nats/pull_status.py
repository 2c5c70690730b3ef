"""What the status messages of a pull request mean. Pure."""

from enum import Enum, auto
from typing import Final


class Verdict(Enum):
    """What a status message means for the standing request."""

    ALIVE = auto()  # nothing: a heartbeat
    USED_UP = auto()  # it is over, ask again
    TOO_BIG = auto()  # the next message does not fit into its bytes
    LATER = auto()  # it is over, and asking again at once would be no use
    DOUBT = auto()  # nobody is there: is the consumer?
    GONE = auto()  # the consumer is not there any more


# (code, beginning of the description) as in nats-server's consumer.go; what is in neither table is `LATER`.
BY_CODE: Final = {
    "100": Verdict.ALIVE,
    "404": Verdict.USED_UP,
    "408": Verdict.USED_UP,
    "503": Verdict.DOUBT,
}
BY_DESCRIPTION: Final = {
    "Message Size Exceeds MaxBytes": Verdict.TOO_BIG,
    "Batch Completed": Verdict.USED_UP,
    "Consumer Deleted": Verdict.GONE,
    "Consumer is push based": Verdict.GONE,
    "Leadership Change": Verdict.LATER,
    "Server Shutdown": Verdict.LATER,
    "Exceeded MaxWaiting": Verdict.LATER,
    "Exceeded MaxAckPending": Verdict.LATER,
}


def judge(code: str, description: str) -> Verdict:
    """What to make of a status. Its meaning is in its text: the server numbers a dozen things 409."""
    for beginning, verdict in BY_DESCRIPTION.items():
        if description.startswith(beginning):
            return verdict
    return BY_CODE.get(code, Verdict.LATER)
