"""CPU and memory of processes, read from ``/proc`` by psutil."""

import psutil


def cpu_s(pids: dict[str, int]) -> dict[str, float]:
    """CPU seconds used so far, user and system, per name."""
    used: dict[str, float] = {}
    for name, pid in pids.items():
        times = psutil.Process(pid).cpu_times()
        used[name] = times.user + times.system
    return used


def rss_mb(pid: int) -> float:
    """Resident memory, MB (10^6 bytes)."""
    return float(psutil.Process(pid).memory_info().rss) / 1e6
