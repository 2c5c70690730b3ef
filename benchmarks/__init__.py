"""Benchmarks anyone can run: ``python -m benchmarks.lifecycle --json``. Speed only, never correctness.

Each starts its own servers, runs the bare pipeline (the yardstick) beside itself on the same servers where that file is
there, and prints one JSON object as its last line. Ratios are what counts: machines differ and are noisy.
"""
