"""From ``module:app`` on the command line to the application object in that module (BR-207)."""

import importlib
import importlib.util
import pkgutil
import sys
import traceback
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final

from jm_cli.exits import UsageError, debugging

if TYPE_CHECKING:
    from jm_nats.app import JobMaster

FORM: Final = "write MODULE:APP, for example shop.jobs:jm"


def load_app(target: str) -> "JobMaster":
    """The ``JobMaster`` that ``target`` names; the current folder is searched first.

    ``module`` alone is enough where the module has exactly one.

    Raises:
        UsageError: no such module, it fails when imported, or what is named is not there or no ``JobMaster``.
    """
    module_name, colon, attribute = target.partition(":")
    if not module_name or (colon and not attribute) or "/" in module_name:
        raise UsageError(f"{target!r} does not name an application; {FORM}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    module = _imported(module_name)
    return _named(module, attribute) if attribute else _only(module)


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as absent:
        # Of the module asked for, not of one that it imports.
        if absent.name and (name == absent.name or name.startswith(f"{absent.name}.")):
            raise UsageError(f"no module '{absent.name}' here{_near(absent.name)}; {FORM}") from None
        raise _failed(name, absent) from absent
    except (Exception, SystemExit) as error:
        raise _failed(name, error) from error


def _failed(name: str, error: BaseException) -> UsageError:
    """One line with the place, because an application's own mistake is what this mostly is."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
    last = frames[-1] if len(frames) > 1 else None  # the first one is ours
    where = f" ({Path(last.filename).name}, line {last.lineno})" if last else ""
    hint = "" if debugging() else "; JM_DEBUG=1 shows the traceback"
    return UsageError(f"importing '{name}' failed: {type(error).__name__}: {error}{where}{hint}")


def _near(name: str) -> str:
    parent, _, last = name.rpartition(".")
    folders = [str(Path.cwd())]
    if parent:
        found = importlib.util.find_spec(parent)
        folders = list(found.submodule_search_locations or []) if found else []
    near = get_close_matches(last, [module.name for module in pkgutil.iter_modules(folders)])
    return _suggestion([f"{parent}.{match}" if parent else match for match in near])


def _named(module: ModuleType, attribute: str) -> "JobMaster":
    from jm_nats.app import JobMaster  # noqa: PLC0415

    found: object = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            near = get_close_matches(attribute, dir(module))
            suggestion = _suggestion([f"{module.__name__}:{name}" for name in list(_apps(module)) or near])
            raise UsageError(f"module '{module.__name__}' has no '{attribute}'{suggestion}")
        found = getattr(found, part)
    if not isinstance(found, JobMaster):
        suggestion = _suggestion([f"{module.__name__}:{name}" for name in _apps(module)])
        kind = type(found).__name__
        raise UsageError(f"'{module.__name__}:{attribute}' is no JobMaster but a {kind}{suggestion}")
    return found


def _only(module: ModuleType) -> "JobMaster":
    apps = _apps(module)
    if len(apps) == 1:
        return next(iter(apps.values()))
    if not apps:
        raise UsageError(f"module '{module.__name__}' has no JobMaster; {FORM}")
    names = " or ".join(f"{module.__name__}:{name}" for name in apps)
    raise UsageError(f"module '{module.__name__}' has {len(apps)} JobMasters; write {names}")


def _apps(module: ModuleType) -> dict[str, "JobMaster"]:
    """By name, each object once."""
    from jm_nats.app import JobMaster  # noqa: PLC0415

    found: dict[int, tuple[str, JobMaster]] = {}
    for name, value in vars(module).items():
        if isinstance(value, JobMaster):
            found.setdefault(id(value), (name, value))
    return dict(found.values())


def _suggestion(matches: list[str]) -> str:
    return f"; did you mean {' or '.join(matches)}?" if matches else ""
