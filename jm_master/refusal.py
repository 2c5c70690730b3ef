"""What an operation of the API answers with instead of data."""

from jm_core.errors import JmError


class RefusedError(JmError):
    """Becomes the ``error`` of a reply."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
