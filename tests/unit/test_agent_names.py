import pytest

from jm_core.agent_names import agent_of, first_of, parse_agent, prefix_of
from jm_core.errors import InvalidNameError
from jm_core.ids import is_name


@pytest.mark.parametrize(("agent", "stored"), [("main", "b-1"), ("east", "east/b-1"), ("main2", "main2/b-1")])
def test_a_bucket_in_postgres_says_whose_it_is(agent, stored):
    assert prefix_of(agent) + "b-1" == stored
    assert agent_of(stored) == agent


@pytest.mark.parametrize("text", ["", "East", "a/b", "a-b", "x" * 21, "a\n", "%"])
def test_what_is_no_agent_s_name_is_refused(text):
    with pytest.raises(InvalidNameError, match="agent"):
        parse_agent(text)


def test_main_comes_first_and_then_the_names_in_order():
    assert first_of(["east", "main", "a"]) == "main"
    assert first_of(["west", "east"]) == "east"


def test_no_bucket_can_be_taken_for_another_agent_s():
    assert not is_name("east/b-1")
