import pytest

from jm_core.errors import InvalidSettingError
from jm_nats.config import NatsConfig, parse_servers

SECRET = "p@ss/w:rd%21"
ENCODED = "p%40ss%2Fw%3Ard%2521"


def test_defaults_reach_a_server_on_this_machine():
    config = NatsConfig.from_env({})
    assert config.servers == ("nats://127.0.0.1:4222",)
    assert not config.requires_tls


def test_every_variable_is_read():
    config = NatsConfig.from_env(
        {
            "JM_NATS_URL": "nats://a:1, tls://b:2,c",
            "JM_NATS_CREDS": "/run/secrets/u.creds",
            "JM_NATS_TLS_CA": "ca.pem",
            "JM_NATS_TLS_CERT": "cert.pem",
            "JM_NATS_TLS_KEY": "key.pem",
            "JM_NATS_TLS_HOSTNAME": "nats.internal",
            "JM_NATS_INBOX_PREFIX": "_INBOX_worker",
            "JM_NATS_USER": "",
        }
    )
    assert config.servers == ("nats://a:1", "tls://b:2", "nats://c:4222")
    assert config.redacted_servers == "nats://a:1, tls://b:2, nats://c:4222"
    assert config.creds_file == "/run/secrets/u.creds"
    assert (config.tls_ca_file, config.tls_cert_file, config.tls_key_file) == ("ca.pem", "cert.pem", "key.pem")
    assert config.tls_hostname == "nats.internal"
    assert config.inbox_prefix == "_INBOX_worker"
    assert config.user is None
    assert config.requires_tls


@pytest.mark.parametrize(
    ("url", "user", "password", "token"),
    [
        (f"nats://u:{ENCODED}@host", "u", SECRET, None),
        (f"nats://u:{SECRET.replace('%', '%25')}@host", "u", SECRET, None),  # unescaped, as people paste it
        ("nats://s3cr3t%40token@host:4222/", None, None, "s3cr3t@token"),
        ("u:pw@host", "u", "pw", None),
    ],
)
def test_credentials_leave_the_url_decoded(url, user, password, token):
    config = NatsConfig(servers=(url,))
    assert config.servers == ("nats://host:4222",)
    assert (config.user, config.password, config.token) == (user, password, token)


@pytest.mark.parametrize(
    "config",
    [
        NatsConfig(servers=(f"nats://u:{ENCODED}@host", f"nats://u:{ENCODED}@other")),
        NatsConfig(user="u", password=SECRET),
        NatsConfig(token=SECRET),
    ],
)
def test_a_secret_is_in_no_text(config):
    for text in (repr(config), str(config), config.redacted_servers, f"{config.servers}"):
        assert SECRET not in text
        assert ENCODED not in text


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (f"nats://u:{SECRET}@host:port", "number 1"),
        (f"nats://u:{SECRET}@host:99999", "number 1"),
        (f"nats://u:{SECRET}@", "number 1"),
        (f"http://u:{SECRET}@host", "none of nats, tls"),
        (f"nats://u:{SECRET}@host/path", "number 1"),
        (f"nats://u:{SECRET}@ho st", "number 1"),
        (f"nats://u:{SECRET}@[::1", "number 1"),
        (f"nats://a,nats://u:{SECRET}@b,nats://c:{SECRET}@d", "different credentials"),
        ("nats://u:se,cr3t@host", "number 1"),
    ],
)
def test_a_server_that_cannot_be_read_is_refused_without_quoting_it(wrong, says):
    with pytest.raises(InvalidSettingError, match=says) as refused:
        NatsConfig(servers=parse_servers(wrong))
    shown = str(refused.value)
    assert not any(part in shown for part in (SECRET, "rd%21", "cr3t", "ss/w"))
    assert refused.value.__cause__ is None


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"user": "u"}, "JM_NATS_PASSWORD"),
        ({"password": "p"}, "JM_NATS_USER"),
        ({"user": "u", "password": "p", "token": "t"}, "user and password, token"),
        ({"creds_file": "c", "nkey_seed_file": "n"}, "creds file, nkey seed"),
        ({"servers": ("nats://u:p@h",), "token": "t"}, "both in a server's URL"),
        ({"tls_cert_file": "c"}, "JM_NATS_TLS_KEY"),
        ({"tls_key_file": "k"}, "JM_NATS_TLS_CERT"),
        ({"servers": ()}, "JM_NATS_URL"),
        ({"connect_timeout_s": 0}, "greater than 0"),
    ],
)
def test_contradicting_settings_are_refused(settings, says):
    with pytest.raises(InvalidSettingError, match=says):
        NatsConfig(**settings)


def test_an_ipv6_server_keeps_its_brackets():
    assert NatsConfig(servers=("nats://[::1]:4223",)).servers == ("nats://[::1]:4223",)
