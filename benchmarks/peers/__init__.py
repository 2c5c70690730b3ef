"""The same work on the same machine by what people would pick instead: ``python -m benchmarks.peers``."""
