"""Calls with one argument spoilt, from tables of (function, valid arguments, [(spoilt argument, message)])."""

from __future__ import annotations

from collections.abc import Callable

import pytest


def bad_calls(*tables: tuple[Callable, dict, list]) -> list[tuple]:
    return [(function, valid, bad, message) for function, valid, table in tables for bad, message in table]


def assert_refused(function: Callable, valid: dict, bad: dict, message: str) -> None:
    function(**valid)  # without the fault the call passes
    with pytest.raises(ValueError, match=message):
        function(**valid | bad)
