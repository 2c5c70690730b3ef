"""Every setting of the API has a flag and a variable, with the same default (BR-209)."""

import dataclasses
import typing

import pytest
import typer

from jm_cli import docs, role_settings, settings
from jm_cli.app import app
from jm_cli.default_command import DefaultCommandGroup
from jm_cli.local_env import LocalEnv, find
from jm_cli.misspelt import misspelt
from jm_cli.options import expanded
from jm_master.config import CoordinatorConfig, PostgresConfig
from jm_nats.config import NatsConfig
from jm_nats.worker.config import WorkerConfig
from tests.support.cli import ROOT, commands

COMMANDS = commands()

# The field of the configuration, where its option is not named after it.
NATS_FIELDS = {
    "servers": "nats_url",
    "creds_file": "nats_creds",
    "nkey_seed_file": "nats_nkey",
    "tls_ca_file": "nats_tls_ca",
    "tls_cert_file": "nats_tls_cert",
    "tls_key_file": "nats_tls_key",
    "tls_handshake_first": "nats_tls_first",
}
POSTGRES_FIELDS = {
    "dsn": "dsn",
    "schema": "schema",
    "connections_max": "postgres_connections",
    "bouncer": "postgres_bouncer",
}
# Options whose default is made up at start.
DYNAMIC = {"buckets", "worker_id", "process_slots", "priorities", "lanes", "nats_url", "dsn"}


def option_fields(*groups):
    return {field.name: field for group in groups for field in dataclasses.fields(group)}


def defaults_agree(config, options, name_of):
    for field in dataclasses.fields(config):
        option = options[name_of(field.name)]
        if option.name not in DYNAMIC:
            assert option.default == field.default, option.name


def without_unit(name):
    return name.removesuffix("_s")


def test_every_worker_setting_is_an_option_with_the_same_default():
    defaults_agree(WorkerConfig, option_fields(role_settings.WorkerOptions), without_unit)


def test_every_nats_setting_is_an_option_with_the_same_default():
    options = option_fields(settings.NatsOptions, settings.NatsTuning)
    defaults_agree(NatsConfig, options, lambda name: NATS_FIELDS.get(name, f"nats_{without_unit(name)}"))


def test_every_postgres_setting_is_an_option_with_the_same_default():
    options = option_fields(settings.PostgresOptions, settings.PostgresTuning)
    defaults_agree(PostgresConfig, options, lambda name: POSTGRES_FIELDS.get(name, f"postgres_{without_unit(name)}"))


def test_every_coordinator_setting_is_an_option_with_the_same_default():
    defaults_agree(CoordinatorConfig, option_fields(role_settings.CoordinatorOptions), without_unit)


def test_what_was_not_given_keeps_the_configuration_s_own_default():
    config = WorkerConfig(**role_settings.WorkerOptions().fields())
    assert dataclasses.replace(config, worker_id="x") == WorkerConfig(worker_id="x")
    assert CoordinatorConfig(**role_settings.CoordinatorOptions().fields()) == CoordinatorConfig()
    tuned = PostgresConfig(dsn="postgresql://h/d", **settings.PostgresTuning().fields())
    assert tuned == PostgresConfig(dsn="postgresql://h/d")
    assert settings.NatsOptions().nats_config(None, **settings.NatsTuning().fields()) == NatsConfig()


def test_lists_may_be_repeated_or_separated():
    options = role_settings.WorkerOptions(lanes=["a,b", "c"], priorities=["high critical"])
    config = WorkerConfig(**options.fields())
    assert config.lanes == ("a", "b", "c")
    assert [priority.label for priority in config.priorities] == ["high", "critical"]


@pytest.mark.parametrize(
    "group",
    [value for value in [*vars(settings).values(), *vars(role_settings).values()] if dataclasses.is_dataclass(value)],
)
def test_every_shared_setting_has_a_variable_and_help(group):
    for name, hint in typing.get_type_hints(group, include_extras=True).items():
        if typing.get_origin(hint) is typing.ClassVar:
            continue
        option = hint.__metadata__[0]
        assert option.envvar.startswith("JM_"), name
        assert option.help
        assert option.show_envvar


def test_no_two_settings_of_a_command_share_a_flag_or_a_variable():
    for path, command in COMMANDS:
        flags = [flag for param in command.params for flag in (*param.opts, *param.secondary_opts)]
        variables = [param.envvar for param in command.params if param.envvar]
        assert len(set(flags)) == len(flags), path
        assert len(set(variables)) == len(variables), path


def test_secrets_are_never_shown_as_a_default():
    secrets = [p for _, command in COMMANDS for p in command.params if p.metavar in ("SECRET", "DSN")]
    assert len(secrets) > 4
    assert all(param.default is None and param.show_default is False for param in secrets)


def test_the_configuration_page_is_up_to_date():
    """If not: python -m jm_cli.docs > docs/configuration.md."""
    assert (ROOT / "docs" / "configuration.md").read_text() == docs.document()


def test_the_page_of_commands_is_what_the_program_says():
    """If not: python -m jm_cli.docs cli > docs/cli.md."""
    assert (ROOT / "docs" / "cli.md").read_text() == docs.cli_document()


def test_the_pages_name_every_command_and_setting():
    page, settings = docs.cli_document(), docs.document()
    for path, command in COMMANDS:
        typed = " ".join(path).removesuffix(f" {DefaultCommandGroup.default_name}")  # which nobody has to type
        assert f"## `jm {typed}" in page
        for param in command.params:
            if param.name != "help":
                assert all(f"`{flag}`" in page + settings for flag in param.opts if flag.startswith("-")), param.name
                assert param.envvar is None or f"`{param.envvar}`" in settings


def test_a_misspelt_variable_is_noticed_and_others_are_left_alone():
    variables = ["JM_WORKER_SLOT", "JM_WORKER_SLOTS", "JM_DEBUG", "JM_TEST_CRASH_AT", "JM_YARDSTICK", "OTHER"]
    found = misspelt(variables, typer.main.get_command(app))
    assert found == {"JM_WORKER_SLOT": "JM_WORKER_SLOTS"}


# -- options.expanded


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
    left: typing.Annotated[int, typer.Option("--left")] = 1
    right: typing.Annotated[str, typer.Option("--right")] = "r"


def test_a_group_of_options_arrives_as_its_dataclass():
    seen = []
    probe = typer.Typer()

    @probe.command()
    @expanded
    def command(first: typing.Annotated[str, typer.Argument()], *, pair: Pair) -> None:
        """Do it.

        Examples:
            as this
            and this
        """
        seen.append((first, pair))

    typer.main.get_command(probe).main(["x", "--left", "5"], standalone_mode=False)
    assert seen == [("x", Pair(left=5))]
    assert typer.main.get_command(probe).help == "Do it.\n\n\b\nExamples:\n    as this\n    and this"


# -- .jm/env


@pytest.fixture
def local(tmp_path, monkeypatch):
    """A folder in which `jm up` was, and no setting of ours."""
    monkeypatch.chdir(tmp_path)
    for variable in ("JM_NATS_URL", "JM_DATA", "JM_CLUSTER", "JM_POSTGRES_DSN"):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / ".jm").mkdir()
    env = LocalEnv(
        path=tmp_path / ".jm" / "env",
        nats_url="nats://127.0.0.1:15001",
        postgres_dsn="postgresql://postgres@127.0.0.1:15002/shop",
        cluster="shop",
    )
    env.write()
    return env


def test_what_up_wrote_is_found_in_its_folder(local):
    found = find()
    assert found.variables() == local.variables()
    options = settings.NatsOptions()
    assert options.nats_config(options.local).servers == ("nats://127.0.0.1:15001",)
    assert settings.ClusterOptions().name(options.local) == "shop"
    assert settings.ClusterOptions(cluster="other").name(options.local) == "other"
    assert settings.PostgresOptions().required_dsn(find()) == local.postgres_dsn


def test_a_folder_can_be_named(local, monkeypatch, tmp_path):
    monkeypatch.chdir("/")
    assert find() is None
    monkeypatch.setenv("JM_DATA", str(tmp_path / ".jm"))
    assert find() is not None


def test_both_servers_are_its_own_or_both_are_given(local):
    assert settings.local_pair(settings.NatsOptions(), settings.PostgresOptions()) is not None
    assert settings.local_pair(settings.NatsOptions(), settings.PostgresOptions(dsn="postgresql://h/d")) is None


@pytest.mark.parametrize(
    "given",
    [
        {"nats_url": "nats://127.0.0.1:1"},
        {"nats_token": "sesame"},
        {"nats_creds": "x.creds"},
        {"nats_user": "u", "nats_password": "p"},
    ],
    ids=",".join,
)
def test_credentials_are_never_sent_to_a_server_that_a_folder_names(local, given):
    options = settings.NatsOptions(**given)
    assert options.local is None
    assert "15001" not in options.nats_config(options.local).redacted_servers


def test_a_spoilt_file_is_no_file(local):
    local.path.write_text("JM_NATS_URL=nats://x\n\n# nothing more\n")
    assert find() is None


def test_the_command_tree_is_that_of_the_docs():
    assert {path[0] for path, _ in COMMANDS} >= {
        "worker",
        "coordinator",
        "job",
        "rejected",
        "submit",
        "migrate",
        "doctor",
        "up",
    }
    assert app.info.name == "jm"
