"""What a first connection needs from the configuration, and what its failures mean."""

import ssl
from pathlib import Path
from typing import Final

import nkeys  # type: ignore[import-untyped]

from jm_core.errors import InvalidSettingError
from jm_nats.config import NatsConfig
from jm_nats.driver import TlsNotOfferedError
from jm_nats.errors import AgentAuthError, AgentError, AgentUnavailableError

VERSION_MIN: Final = (2, 12)
# nats.py knows the server's -ERR at connect by its text only, and so do we: here, and nowhere else.
_REFUSALS: Final = ("authorization", "authentication")


def tls_context(config: NatsConfig) -> ssl.SSLContext:
    """For every connection: a server may ask for TLS where the configuration does not speak of it.

    Raises:
        InvalidSettingError: a file that cannot be read or is not what it should be.
    """
    try:
        context = ssl.create_default_context(cafile=config.tls_ca_file)
    except OSError as problem:
        raise _bad_file("JM_NATS_TLS_CA", config.tls_ca_file, problem) from None
    if config.tls_cert_file:
        try:
            context.load_cert_chain(config.tls_cert_file, config.tls_key_file)
        except OSError as problem:
            files = f"{config.tls_cert_file} and {config.tls_key_file}"
            raise _bad_file("JM_NATS_TLS_CERT and JM_NATS_TLS_KEY", files, problem) from None
    return context


def check_credential_files(config: NatsConfig) -> None:
    """Read them once before nats.py does, whose failures show up late and unclear.

    Raises:
        InvalidSettingError: a file that cannot be read or is not what it should be; without quoting it.
    """
    if config.nkey_seed_file:
        _check_seed("JM_NATS_NKEY", config.nkey_seed_file, _read("JM_NATS_NKEY", config.nkey_seed_file).strip())
    if config.creds_file:
        text = _read("JM_NATS_CREDS", config.creds_file)
        if b"BEGIN NATS USER JWT" not in text or b"BEGIN USER NKEY SEED" not in text:
            raise InvalidSettingError(f"JM_NATS_CREDS: {config.creds_file} holds no JWT and seed; make one with `nsc`")


def refusal(config: NatsConfig, problem: Exception) -> AgentError | None:
    """Why trying again is no use; None when it may be."""
    where = config.redacted_servers
    text = str(problem).lower()
    if any(word in text for word in _REFUSALS):
        remedy = "check user and password, token, JM_NATS_CREDS or JM_NATS_NKEY, and the server's permissions"
        return AgentAuthError(where, "the server refuses our credentials", remedy=remedy)
    if isinstance(problem, ssl.SSLCertVerificationError):
        remedy = "name its CA in JM_NATS_TLS_CA, or its name in JM_NATS_TLS_HOSTNAME"
        return AgentUnavailableError(where, f"TLS: {problem.verify_message}", remedy=remedy)
    if isinstance(problem, ssl.SSLError):
        remedy = "if the server asks for a client certificate, set JM_NATS_TLS_CERT and JM_NATS_TLS_KEY"
        return AgentUnavailableError(where, f"TLS: {problem.reason or problem}", remedy=remedy)
    if isinstance(problem, TlsNotOfferedError):
        return AgentUnavailableError(where, str(problem), remedy="enable TLS there, or take the TLS settings out here")
    return None


def describe(problem: Exception) -> str:
    """One line for a log; asyncio's own for the commonest problem is ``[Errno 111] Connect call failed (…)``."""
    if isinstance(problem, ConnectionRefusedError):
        return "connection refused"
    return (str(problem) or type(problem).__name__).removeprefix("nats: ")


def parse_version(text: str) -> tuple[int, int]:
    """(major, minor) of ``2.12.0-RC.3``; (0, 0) of what is no version."""
    major, _, rest = text.partition(".")
    minor = rest.partition(".")[0]
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else (0, 0)


def _read(variable: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as problem:
        raise _bad_file(variable, path, problem) from None


def _check_seed(variable: str, path: str, seed: bytes) -> None:
    try:
        nkeys.from_seed(bytearray(seed)).wipe()
    except Exception:  # noqa: BLE001 - nkeys lets errors of base64, struct and PyNaCl through
        raise InvalidSettingError(f"{variable}: {path} holds no NKEY seed; make one with `nk -gen user`") from None


def _bad_file(variable: str, path: str | None, problem: OSError) -> InvalidSettingError:
    reason = problem.strerror or str(problem)
    return InvalidSettingError(f"{variable}: cannot use {path}: {reason}; correct the path or the file")
