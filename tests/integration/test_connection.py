from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import nkeys
import pytest
from nats import errors
from nats.aio.client import Server

from jm_core.errors import InvalidSettingError
from jm_nats.config import NatsConfig
from jm_nats.connection import ClockOffset, connect, server_clock_offset
from jm_nats.driver import ReconnectPlan, SteadyClient
from jm_nats.embedded import NatsServer
from jm_nats.errors import (
    AgentAuthError,
    AgentUnavailableError,
    AgentUnsupportedError,
    JetStreamError,
    NoSuchConsumerError,
    NoSuchStreamError,
)
from tests.support.text_client import CONNECT, TextClient

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "p@ss/w:rd%21"
ENCODED = "p%40ss%2Fw%3Ard%2521"
USER_AND_PASSWORD = f'authorization {{ user: "u", password: "{SECRET}" }}'


def config_for(server: NatsServer, **settings) -> NatsConfig:
    return NatsConfig(**{"servers": (server.url,), "reconnect_wait_max_s": 0.2} | settings)


def with_user(server: NatsServer, password: str) -> str:
    return server.url.replace("nats://", f"nats://u:{password}@")


async def change(condition, *, timeout_s: float = 10) -> None:
    """Wait for something that has no event of its own."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def watching_tasks():
    before = asyncio.all_tasks()
    yield
    assert asyncio.all_tasks() - before == set()


# What works.


async def test_a_link_reaches_jetstream_and_leaves_no_task_behind(nats_server):
    async with watching_tasks(), await connect(config_for(nats_server), client_name="t") as link:
        assert link.connected
        assert link.server == nats_server.url
        assert (await link.api("INFO"))["api"]["level"] > 0
        await link.round_trip()
        await link.wait_connected()
    assert not link.connected
    with pytest.raises(AgentUnavailableError, match="closed"):
        await link.api("INFO")
    await link.close()


async def test_api_errors_are_translated(nats_server, cluster_name):
    async with await connect(config_for(nats_server), client_name="t") as link:
        stream = f"S_{cluster_name}_x"
        with pytest.raises(NoSuchStreamError):
            await link.api(f"STREAM.INFO.{stream}")
        await link.api(f"STREAM.CREATE.{stream}", {"name": stream, "subjects": [cluster_name]})
        with pytest.raises(NoSuchConsumerError) as absent:
            await link.api(f"CONSUMER.INFO.{stream}.c")
        assert (absent.value.code, absent.value.err_code) == (404, 10014)
        with pytest.raises(JetStreamError, match="overlap"):
            await link.api("STREAM.CREATE.other", {"name": "other", "subjects": [cluster_name]})
        with pytest.raises(AgentUnavailableError, match=r"NO\.SUCH"):
            await link.api("NO.SUCH", timeout_s=0.1)


async def test_the_clock_of_the_same_machine_is_our_clock(nats_server):
    async with await connect(config_for(nats_server), client_name="t") as link:
        offset = await server_clock_offset(link)
        assert abs(offset.offset_s) <= offset.error_s + 0.001
        assert offset.error_s < 1


@pytest.mark.parametrize(
    ("offset_s", "error_s", "correction_s"),
    [(-11e-6, 80e-6, 0.0), (80e-6, 80e-6, 0.0), (3.0, 0.001, 3.0), (-0.5, 0.001, -0.5)],
)
def test_clocks_that_agree_but_for_the_error_of_measuring_are_not_corrected(offset_s, error_s, correction_s):
    """Corrected by the error alone, jobs would start microseconds before their time."""
    assert ClockOffset(offset_s, error_s).correction_s == correction_s


@pytest.mark.parametrize(
    ("authorization", "settings"),
    [
        (USER_AND_PASSWORD, {"user": "u", "password": SECRET}),
        ('authorization { token: "s3cr3t" }', {"token": "s3cr3t"}),
    ],
)
async def test_plain_credentials_open_the_door(authorization, settings):
    with NatsServer(extra_config=authorization) as server:
        async with await connect(config_for(server, **settings), client_name="t") as link:
            await link.api("INFO")
        with pytest.raises(AgentAuthError, match="credentials"):
            await connect(config_for(server), client_name="t")


async def test_credentials_in_a_url_are_decoded_and_never_shown(caplog):
    caplog.set_level(logging.DEBUG)
    with NatsServer(extra_config=USER_AND_PASSWORD) as server:
        async with await connect(config_for(server, servers=(with_user(server, ENCODED),)), client_name="t") as link:
            await link.api("INFO")
            assert SECRET not in link.server
        began = time.monotonic()
        async with watching_tasks():
            with pytest.raises(AgentAuthError) as refused:
                await connect(config_for(server, servers=(with_user(server, "wrong%40" + ENCODED),)), client_name="t")
        assert time.monotonic() - began < 2
    shown = f"{refused.value} {refused.value.__cause__!r} {caplog.text}"
    assert server.url in shown
    assert not any(secret in shown for secret in (SECRET, ENCODED, "wrong@"))


async def test_an_nkey_opens_the_door(tmp_path):
    key, seed_file = new_key(nkeys.PREFIX_BYTE_USER), tmp_path / "user.nk"
    seed_file.write_bytes(bytes(key.seed) + b"\n")
    public = key.public_key.decode()
    with NatsServer(extra_config=f"authorization {{ users: [ {{ nkey: {public} }} ] }}") as server:
        async with await connect(config_for(server, nkey_seed_file=str(seed_file)), client_name="t") as link:
            await link.api("INFO")


async def test_a_creds_file_opens_the_door(tmp_path):
    resolver, creds = operator_mode()
    creds_file = tmp_path / "user.creds"
    creds_file.write_text(creds)
    with NatsServer(extra_config=resolver) as server:
        async with await connect(config_for(server, creds_file=str(creds_file)), client_name="t") as link:
            await link.api("INFO")


@pytest.mark.parametrize("name", ["creds_file", "nkey_seed_file", "tls_ca_file"])
@pytest.mark.parametrize("content", [None, b"", b"s3cr3t no seed"])
async def test_a_file_that_is_none_is_refused_before_anything_starts(nats_server, tmp_path, name, content):
    file = tmp_path / "file"
    if content is not None:
        file.write_bytes(content)
    async with watching_tasks():
        with pytest.raises(InvalidSettingError, match="JM_NATS") as refused:
            await connect(config_for(nats_server, **{name: str(file)}), client_name="t")
    assert "s3cr3t" not in str(refused.value)


# TLS.


@pytest.fixture(scope="module")
def pki(tmp_path_factory) -> Path:
    """A CA, a server certificate for "nats.test" and a client certificate."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command to make certificates")
    folder = tmp_path_factory.mktemp("pki")
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    ca = ["-CA", "ca.pem", "-CAkey", "ca.key"]
    for name, extra in (
        ("ca", ["-addext", "keyUsage=critical,keyCertSign,cRLSign"]),
        ("server", [*ca, "-addext", "subjectAltName=DNS:nats.test", "-addext", "basicConstraints=critical,CA:false"]),
        ("client", [*ca, "-addext", "subjectAltName=DNS:client.test"]),
    ):
        command = ["openssl", "req", "-x509", *key, "-subj", f"/CN={name}", "-keyout", f"{name}.key"]
        subprocess.run([*command, "-out", f"{name}.pem", *extra], cwd=folder, check=True, capture_output=True)
    return folder


def tls_config(pki: Path, more: str = "") -> str:
    return f'tls {{ cert_file: "{pki}/server.pem", key_file: "{pki}/server.key", ca_file: "{pki}/ca.pem", {more} }}'


def trust(pki: Path) -> dict[str, str]:
    return {"tls_ca_file": f"{pki}/ca.pem", "tls_hostname": "nats.test"}


async def test_tls_with_our_own_ca(pki):
    with NatsServer(extra_config=tls_config(pki)) as server:
        async with await connect(config_for(server, **trust(pki)), client_name="t") as link:
            await link.api("INFO")
        with pytest.raises(AgentUnavailableError, match="JM_NATS_TLS_CA"):
            await connect(config_for(server), client_name="t")
        with pytest.raises(AgentUnavailableError, match=r"127\.0\.0\.1"):
            await connect(config_for(server, tls_ca_file=f"{pki}/ca.pem"), client_name="t")


async def test_tls_with_handshake_first(pki):
    with NatsServer(extra_config=tls_config(pki, "handshake_first: true")) as server:
        settings = trust(pki) | {"tls_handshake_first": True}
        async with await connect(config_for(server, **settings), client_name="t") as link:
            await link.api("INFO")


async def test_a_client_certificate_where_the_server_asks_for_one(pki):
    with NatsServer(extra_config=tls_config(pki, "verify: true")) as server:
        certificate = {"tls_cert_file": f"{pki}/client.pem", "tls_key_file": f"{pki}/client.key"}
        async with await connect(config_for(server, **trust(pki), **certificate), client_name="t") as link:
            await link.api("INFO")
        with pytest.raises(AgentUnavailableError, match="JM_NATS_TLS_CERT"):
            await connect(config_for(server, **trust(pki)), client_name="t")


async def test_a_server_without_tls_gets_no_credentials_when_tls_is_demanded():
    heard = bytearray()
    async with fake_server({"version": "2.15.0", "auth_required": True}, heard) as url:
        config = NatsConfig(servers=(url.replace("nats:", "tls:"),), user="u", password="s3cr3t")
        with pytest.raises(AgentUnavailableError, match="does not offer TLS"):
            await connect(config, client_name="t")
    assert b"s3cr3t" not in heard


# What does not work.


@asynccontextmanager
async def fake_server(info: dict[str, object] | None, heard: bytearray | None = None):
    """Says INFO and PONG, or nothing at all."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if info is not None:
            writer.write(b"INFO " + json.dumps(info).encode() + b"\r\n")
        while line := await reader.readline():
            if heard is not None:
                heard.extend(line)
            if info is not None and line == b"PING\r\n":
                writer.write(b"PONG\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await asyncio.sleep(0.01)  # the handlers see their clients go


async def test_an_unreachable_server_is_reported_in_time(caplog):
    caplog.set_level(logging.INFO)
    config = NatsConfig(servers=("nats://u:s3cr3t@127.0.0.1:1",), connect_timeout_s=0.5)
    began = time.monotonic()
    async with watching_tasks():
        with pytest.raises(AgentUnavailableError, match=r"nats://127.0.0.1:1: no connection in 0.5 s \(.*refused"):
            await connect(config, client_name="t")
    assert time.monotonic() - began < 1.5
    assert caplog.text == ""  # the exception says it


async def test_a_server_that_says_nothing_is_reported_in_time():
    async with fake_server(None) as url:
        began = time.monotonic()
        with pytest.raises(AgentUnavailableError, match="no connection"):
            await connect(NatsConfig(servers=(url,), connect_timeout_s=0.5), client_name="t")
        assert time.monotonic() - began < 1.5


@pytest.mark.parametrize("version", ["2.11.9", "1.4.0", "nonsense"])
async def test_a_server_that_is_too_old_is_refused(version):
    async with fake_server({"version": version, "headers": True}) as url:
        with pytest.raises(AgentUnsupportedError, match=r"2\.12") as refused:
            await connect(NatsConfig(servers=(url,)), client_name="t")
        assert version in str(refused.value)


async def test_a_server_that_takes_small_messages_only_is_refused():
    """Not later, by the first message that is too large, with its jobs committed to a bucket already."""
    with (
        NatsServer(extra_config="max_payload: 262144") as server,
        pytest.raises(AgentUnsupportedError, match="max_payload is 262144"),
    ):
        await connect(config_for(server), client_name="t")


async def test_an_account_without_jetstream_is_refused_at_once():
    accounts = "accounts { A { users: [ { user: u, password: p } ] } }"
    with NatsServer(extra_config=accounts) as server:
        config = config_for(server, user="u", password="p")
        with pytest.raises(AgentUnsupportedError, match="enable JetStream"):
            await connect(config, client_name="t")


# What happens later.


async def test_a_server_that_starts_late_is_found():
    with NatsServer() as server:
        await asyncio.to_thread(server.stop)
        connecting = asyncio.create_task(connect(config_for(server), client_name="t"))
        await asyncio.sleep(0.3)  # some attempts fail
        await asyncio.to_thread(server.start)
        async with await connecting as link:
            await link.api("INFO")


async def test_a_restart_is_ridden_out_with_one_line_each_way(caplog):
    caplog.set_level(logging.INFO, logger="jm_nats")
    with NatsServer() as server:
        async with watching_tasks(), await connect(config_for(server), client_name="t") as link:
            seen: list[str] = []
            undo = link.on_reconnect(lambda: seen.append("never"))
            undo()
            link.on_disconnect(lambda: seen.append("away"))
            link.on_reconnect(lambda: seen.append("back"))
            await asyncio.to_thread(server.stop)
            await change(lambda: not link.connected)
            with pytest.raises(AgentUnavailableError):
                await link.round_trip(0.1)
            await asyncio.to_thread(server.start)
            await link.wait_connected()
            await link.round_trip()
            assert seen == ["away", "back"]
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("jm_nats")]
    assert sum("disconnected" in line for line in lines) == 1
    assert sum("connected to" in line for line in lines) == 1
    assert len(lines) <= 5


@pytest.mark.parametrize("words", ["User Authentication Expired", "Authorization Violation", "Something New"])
async def test_a_link_outlives_what_the_server_complains_about(nats_server, words):
    # nats.py closes for good.
    async with await connect(config_for(nats_server), client_name="t") as link:
        await link.nc._ps.parse(f"-ERR '{words}'\r\n".encode())
        await change(lambda: link.nc.stats["reconnects"] == 1)
        async with asyncio.timeout(10):
            await link.wait_connected()
        await link.api("INFO")


async def test_a_link_outlives_a_subject_that_is_no_text(nats_server):
    """Anyone may publish to a subject of any bytes; whoever subscribes to a wildcard receives it."""
    heard = []

    async def on_message(message):
        heard.append((message.data, message.reply))

    async with await connect(config_for(nats_server), client_name="t") as link, TextClient(nats_server.url) as stranger:
        await link.nc.subscribe("no-text.*", cb=on_message)
        await link.round_trip()
        await stranger.send(
            CONNECT, b"PUB no-text.\xff 1", "1", b"PUB no-text.a r\xff 1", "2", "PUB no-text.b r 1", "3"
        )
        await change(lambda: len(heard) == 3)
        assert heard == [(b"1", ""), (b"2", "r\\xff"), (b"3", "r")]


async def test_an_unforeseen_error_while_reading_costs_a_reconnect_and_not_the_hearing(nats_server, monkeypatch):
    build, heard = SteadyClient._build_message, []
    broken = asyncio.Event()

    def break_once(client, sid, subject, *rest):
        if subject == b"a" and not broken.is_set():
            broken.set()
            raise LookupError
        return build(client, sid, subject, *rest)

    async def on_message(message):
        heard.append(message.data)

    monkeypatch.setattr(SteadyClient, "_build_message", break_once)
    async with await connect(config_for(nats_server), client_name="t") as link:
        reconnected = asyncio.Event()
        link.on_reconnect(reconnected.set)
        await link.nc.subscribe("a", cb=on_message)
        await link.nc.publish("a", b"1")
        async with asyncio.timeout(5):
            await reconnected.wait()
        await link.nc.publish("a", b"2")
        await change(lambda: heard == [b"2"])


async def test_a_permission_that_is_missing_costs_no_connection(nats_server, caplog):
    async with await connect(config_for(nats_server), client_name="t") as link:
        await link.nc._ps.parse(b"-ERR 'Permissions Violation for Publish to \"x\"'\r\n")
        assert link.connected
        assert "permissions violation" in link.trouble
    (said,) = [record for record in caplog.records if record.message == "not allowed by NATS"]
    assert "may not publish to 'x'; use a user whose role may" in said.problem


async def test_a_link_outlives_the_loss_of_its_user():
    with NatsServer(extra_config=USER_AND_PASSWORD) as server:
        async with await connect(config_for(server, user="u", password=SECRET), client_name="t") as link:
            reload_config(server, SECRET, "another")
            await change(lambda: not link.connected)
            reload_config(server, "another", SECRET)
            async with asyncio.timeout(10):
                while not await answers(link):
                    await link.wait_connected()


async def answers(link) -> bool:
    """No: a reload of the server's configuration has just dropped a connection that was made in between."""
    try:
        return bool(await link.api("INFO"))
    except AgentUnavailableError:
        await asyncio.sleep(0.01)
        return False


def reload_config(server: NatsServer, old: str, new: str) -> None:
    file = server.directory / "nats.conf"
    file.write_text(file.read_text().replace(f'"{old}"', f'"{new}"'))
    assert server.pid is not None
    os.kill(server.pid, signal.SIGHUP)


async def test_an_unforeseen_error_does_not_end_the_reconnecting(tmp_path):
    key, seed_file = new_key(nkeys.PREFIX_BYTE_USER), tmp_path / "user.nk"
    seed_file.write_bytes(bytes(key.seed))
    users = f"authorization {{ users: [ {{ nkey: {key.public_key.decode()} }} ] }}"
    with NatsServer(extra_config=users) as server:
        async with await connect(config_for(server, nkey_seed_file=str(seed_file)), client_name="t") as link:
            seed_file.write_bytes(b"")  # somebody rewrites it
            await asyncio.to_thread(server.restart)
            await change(lambda: not link.connected)
            await asyncio.sleep(0.5)
            seed_file.write_bytes(bytes(key.seed))
            async with asyncio.timeout(10):
                await link.wait_connected()


async def test_a_question_ends_with_its_connection():
    with NatsServer() as server:
        async with watching_tasks(), await connect(config_for(server), client_name="t") as link:
            server.pause()
            asking = asyncio.create_task(link.api("INFO"))
            await asyncio.sleep(0.05)
            began = time.monotonic()
            await asyncio.to_thread(server.kill)
            with pytest.raises(AgentUnavailableError, match="broke"):
                await asking
            assert time.monotonic() - began < 2
            with pytest.raises(AgentUnavailableError, match="not connected"):
                await link.api("INFO", timeout_s=0.1)
            asking = asyncio.create_task(link.api("INFO"))
            await asyncio.to_thread(server.start)
            await asking  # it waited for the connection


async def test_a_round_trip_that_is_given_up_does_not_break_the_connection():
    # The same with nats.py's flush: the late PONG raises InvalidStateError and ends its read loop.
    with NatsServer() as server:
        async with watching_tasks(), await connect(config_for(server), client_name="t") as link:
            server.pause()
            with pytest.raises(AgentUnavailableError):
                await link.round_trip(0.05)
            cancelled = asyncio.create_task(link.round_trip())
            await asyncio.sleep(0.05)
            cancelled.cancel()
            await asyncio.wait({cancelled})
            server.resume()
            await link.round_trip()
            await link.api("INFO")


async def test_a_silent_server_is_given_up():
    with NatsServer() as server:
        async with await connect(config_for(server, ping_interval_s=0.2), client_name="t") as link:
            server.pause()
            await change(lambda: not link.connected, timeout_s=5)
            server.resume()
            async with asyncio.timeout(10):
                await link.wait_connected()


async def test_a_retired_subscription_loses_nothing_that_was_sent(nats_server):
    async with await connect(config_for(nats_server), client_name="t") as link:
        subject, got = link.nc.new_inbox(), []

        async def note(message):
            got.append(message.data)

        subscription = await link.nc.subscribe(subject, cb=note)
        for n in range(2000):
            await link.nc.publish(subject, b"%d" % n)
        await link.retire(subscription)
        assert len(got) == 2000
        await link.nc.publish(subject, b"too late")
        await link.round_trip()
        assert len(got) == 2000


async def test_closing_while_the_server_is_away_is_quick():
    with NatsServer() as server:
        async with watching_tasks():
            link = await connect(config_for(server), client_name="t")
            await asyncio.to_thread(server.stop)
            await change(lambda: not link.connected)
            began = time.monotonic()
            await link.close()
            assert time.monotonic() - began < 2
        with pytest.raises(errors.ConnectionClosedError):
            await link.nc.publish("x")


# The crowd (BR-153).


def test_reconnects_of_a_crowd_are_spread():
    chance = random.Random(7)
    plans = [ReconnectPlan(8.0, uniform=chance.uniform) for _ in range(200)]
    returns = []
    for plan in plans:
        at = 0.0
        while at < 30:  # NATS is away for 30 s; the first attempt after that succeeds
            at += plan.next_try([Server(uri=None)], {})[1]
        returns.append(at - 30)
    assert max(returns) <= 8
    per_second = [sum(second <= r < second + 1 for r in returns) for second in range(9)]
    assert max(per_second) <= 0.25 * len(plans)


def test_the_server_that_failed_least_is_next_and_the_first_round_is_quick():
    servers = [Server(uri=None, reconnects=n) for n in (2, 0, 1)]
    plan = ReconnectPlan(8.0, uniform=lambda _low, high: high)
    assert plan.next_try(servers, {})[0] is servers[1]
    assert [plan.next_try(servers, {})[1] for _ in range(5)] == [0.2, 0.2, 0.4, 0.4, 0.4]
    plan.reset()
    assert plan.next_try(servers, {})[1] == 0.2


# Keys and tokens, as `nk` and `nsc` make them.


def new_key(kind: int) -> nkeys.KeyPair:
    return nkeys.from_seed(nkeys.encode_seed(os.urandom(32), kind))


def operator_mode() -> tuple[str, str]:
    """A server configuration with one account in memory, and a user's creds file."""
    operator, account = new_key(nkeys.PREFIX_BYTE_OPERATOR), new_key(nkeys.PREFIX_BYTE_ACCOUNT)
    system, user = new_key(nkeys.PREFIX_BYTE_ACCOUNT), new_key(nkeys.PREFIX_BYTE_USER)
    public = [key.public_key.decode() for key in (operator, account, system, user)]
    unlimited = {"subs": -1, "data": -1, "payload": -1, "conn": -1, "leaf": -1, "imports": -1, "exports": -1}
    storage = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
    account_jwt = token(operator, public[1], {"limits": unlimited | storage, "type": "account", "version": 2})
    system_jwt = token(operator, public[2], {"limits": unlimited, "type": "account", "version": 2})
    operator_jwt = token(operator, public[0], {"type": "operator", "version": 2, "system_account": public[2]})
    rights = {"pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1, "type": "user", "version": 2}
    user_jwt = token(account, public[3], rights)
    server = f"operator: {operator_jwt}\nsystem_account: {public[2]}\nresolver: MEMORY\n"
    server += f"resolver_preload: {{ {public[1]}: {account_jwt}, {public[2]}: {system_jwt} }}\n"
    creds = f"-----BEGIN NATS USER JWT-----\n{user_jwt}\n------END NATS USER JWT------\n\n"
    creds += f"-----BEGIN USER NKEY SEED-----\n{bytes(user.seed).decode()}\n------END USER NKEY SEED------\n"
    return server, creds


def token(issuer: nkeys.KeyPair, subject: str, rights: dict[str, object]) -> str:
    claims = {"iat": int(time.time()), "iss": issuer.public_key.decode(), "sub": subject, "name": "t", "nats": rights}
    digest = hashlib.sha512(json.dumps(claims).encode()).digest()[:32]
    claims["jti"] = base64.b32encode(digest).decode().rstrip("=")
    body = ".".join(b64(json.dumps(part)) for part in ({"typ": "JWT", "alg": "ed25519-nkey"}, claims))
    return body + "." + b64(issuer.sign(body.encode()))


def b64(data: str | bytes) -> str:
    return base64.urlsafe_b64encode(data.encode() if isinstance(data, str) else data).decode().rstrip("=")


@pytest.mark.parametrize("problem", [RuntimeError("the handler is closed"), ConnectionResetError("Connection lost")])
async def test_closing_a_connection_that_has_just_broken_is_no_error_and_tidies_up(nats_server, monkeypatch, problem):
    link = await connect(NatsConfig(servers=(nats_server.url,)), client_name="test")
    await link.nc.subscribe("jm.test", cb=ignore)

    def broken(_):
        raise problem

    monkeypatch.setattr(link.nc._transport, "writelines", broken)
    link.nc._pending, link.nc._pending_data_size = [b"PING\r\n"], 6
    await link.close()
    assert link.nc.is_closed
    assert not link.nc._subs


async def ignore(_):
    pass
