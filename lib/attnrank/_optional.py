"""Packages that only some parts of this one need: imported when they are used, with a message that says how to get
them."""

from __future__ import annotations

import importlib
import warnings
from types import ModuleType


class _Optional(ModuleType):
    """Stands for a module until one of its names is used."""

    def __init__(self, name: str, extra: str) -> None:
        super().__init__(name)
        self._extra = extra

    def __getattr__(self, attribute: str) -> object:
        if attribute.startswith("__"):  # what tools ask of any object
            raise AttributeError(attribute)
        return getattr(require(self.__name__, self._extra), attribute)


def optional(name: str, extra: str) -> ModuleType:
    """Return the module with this name, imported at its first use; see `require`."""
    return _Optional(name, extra)


def require(name: str, extra: str) -> ModuleType:
    """Import a module, or raise ImportError that names the extra of attnrank which installs it."""
    try:
        with warnings.catch_warnings():
            # In a notebook without ipywidgets, importing tqdm complains that it cannot draw bars, which nobody asked
            # for.
            warnings.filterwarnings("ignore", message="IProgress not found")
            return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise ImportError(
            f"{package} is needed here, and cannot be imported: pip install 'attnrank[{extra}]' ({error})", name=name
        ) from error
