"""Which version of us this is."""


def version() -> str:
    """As installed; a source tree that is not has none."""
    from importlib.metadata import PackageNotFoundError  # noqa: PLC0415 - slow to import, rarely asked for
    from importlib.metadata import version as of_package  # noqa: PLC0415

    try:
        return of_package("jobmaster-nats")
    except PackageNotFoundError:
        return "unknown (not installed)"
