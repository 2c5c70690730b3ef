"""The record of operator actions can be searched for everything that is written into it."""

import re
from pathlib import Path

import jm_master
from jm_core.control import AUDITED, SCHEDULE_ACTION


def test_every_change_of_a_schedule_is_a_word_that_the_record_knows():
    sources = Path(jm_master.__file__).parent.glob("schedule*.py"), Path(jm_master.__file__).parent.glob("decl*.py")
    text = "".join(path.read_text() for paths in sources for path in paths)
    written = set(re.findall(r'ScheduleWrite\(\s*"([a-z-]+)"', text))
    assert {"change", "revive", "inactivate"} <= written
    assert {SCHEDULE_ACTION + verb for verb in written} <= set(AUDITED)
