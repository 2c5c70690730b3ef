"""``jm demo``: the whole of JobMaster on one machine, doing real work on real input, and proving it by SQL."""
