"""What ends a leader's duties from inside a transaction."""

from jm_core.errors import JmError


class LostTermError(JmError):
    """A statement found another term in table ``leader``: somebody else leads. All duties end."""

    def __init__(self, term: int) -> None:
        super().__init__(f"term {term} is over: another coordinator leads")
        self.term = term
