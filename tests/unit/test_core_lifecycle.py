import itertools

import pytest

from jm_core.errors import IllegalMoveError
from jm_core.lifecycle import BUCKET_MOVES, JOB_MOVES, as_mermaid, move
from jm_core.model import BucketEvent as B
from jm_core.model import BucketStatus as K
from jm_core.model import JobEvent as E
from jm_core.model import JobStatus as S

# Written a second time, from the words of docs/architecture.md: who changes a table has to say so here as well.
JOB_TABLE = """
    pending_save: save>on_master assign>in_bucket cancel>cancelled
    on_master: assign>in_bucket cancel>cancelled
    in_bucket: start>processing succeed>succeeded retry>on_master fail>failed cancel>cancelled
               quarantine>quarantined hand_back>on_master
    processing: succeed>succeeded retry>on_master fail>failed cancel>cancelled quarantine>quarantined
                hand_back>on_master
    succeeded: requeue>on_master
    failed: requeue>on_master
    cancelled: requeue>on_master
    quarantined: requeue>on_master
"""
BUCKET_TABLE = """
    active: retire>completing lease_lost>lost
    completing: lease_lost>lost handed_back>ready_to_drain
    ready_to_drain: adopt>draining
    lost: adopt>draining
    draining: lease_lost>lost emptied>ready_to_delete
    ready_to_delete: delete>deleted
"""


def read(table, states, events):
    moves, state = {}, ""
    for word in table.split():
        if word.endswith(":"):
            state = word[:-1]
        else:
            event, _, after = word.partition(">")
            moves[states[state.upper()], events[event.upper()]] = states[after.upper()]
    return moves


JOB_WANTED, BUCKET_WANTED = read(JOB_TABLE, S, E), read(BUCKET_TABLE, K, B)
MOVES = [(JOB_MOVES, *pair, after) for pair, after in JOB_WANTED.items()]
MOVES += [(BUCKET_MOVES, *pair, after) for pair, after in BUCKET_WANTED.items()]
MISSING = [(JOB_MOVES, *pair) for pair in itertools.product(S, E) if pair not in JOB_WANTED]
MISSING += [(BUCKET_MOVES, *pair) for pair in itertools.product(K, B) if pair not in BUCKET_WANTED]


def named(value):
    return value.name.lower() if isinstance(value, S | E | K | B) else ""


@pytest.mark.parametrize(("table", "state", "event", "after"), MOVES, ids=named)
def test_each_move_of_the_tables_leads_where_the_documents_say(table, state, event, after):
    assert move(table, state, event) is after


@pytest.mark.parametrize(("table", "state", "event"), MISSING, ids=named)
def test_a_missing_pair_raises_and_names_both(table, state, event):
    with pytest.raises(IllegalMoveError, match=f"{state.name} by {event.name}"):
        move(table, state, event)


def test_the_two_lists_cover_every_pair_once():
    assert len(MOVES) + len(MISSING) == len(S) * len(E) + len(K) * len(B)


@pytest.mark.parametrize("state", [s for s in S if s.is_terminal], ids=named)
def test_terminal_is_terminal_but_for_an_operators_requeue(state):
    assert [event for (before, event) in JOB_MOVES if before is state] == [E.REQUEUE]


def test_only_the_end_of_a_job_is_terminal():
    assert [s for s in S if s.is_terminal] == [S.SUCCEEDED, S.FAILED, S.CANCELLED, S.QUARANTINED]


@pytest.mark.parametrize(("table", "start", "ends"), [(JOB_MOVES, S.PENDING_SAVE, S), (BUCKET_MOVES, K.ACTIVE, K)])
def test_every_state_can_be_reached(table, start, ends):
    reached = {start}
    for _ in ends:
        reached |= {after for (before, _), after in table.items() if before in reached}
    assert reached == set(ends)


def test_a_deleted_bucket_never_comes_back():
    assert not [event for (before, event) in BUCKET_MOVES if before is K.DELETED]


def test_the_diagram_has_one_arrow_per_move():
    lines = as_mermaid(BUCKET_MOVES).splitlines()
    assert lines[0] == "stateDiagram-v2"
    assert len(lines) == 1 + len(BUCKET_MOVES)
    assert "    draining --> lost: lease_lost" in lines


def test_the_stored_numbers_of_states_and_priorities_stay():
    # Table `job` holds these numbers, and its partial indexes name them.
    assert [(s.value, s.label) for s in S][1:] == [
        (1, "on_master"),
        (2, "in_bucket"),
        (3, "processing"),
        (4, "succeeded"),
        (5, "failed"),
        (6, "cancelled"),
        (7, "quarantined"),
    ]
