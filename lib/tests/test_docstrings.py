"""The examples in the docstrings run and print what they show; every public function has one."""

from __future__ import annotations

import doctest
import inspect

import pytest
import torch

import attnrank
from attnrank import convex, inputs, sweep, theory

PUBLIC = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module, names in (
        (attnrank, attnrank.__all__), (theory, theory.__all__), (convex, convex.__all__), (inputs, ["tokens"]),
        (sweep, ["grid", "run"]),
    )
    for name in names
    if inspect.isfunction(getattr(module, name))
}  # fmt: skip
#: Shown in another way: what would take an example many lines or seconds.
WITHOUT = {"attnrank.recommend_head_dim"}


def test_every_public_function_has_an_example():
    assert len(PUBLIC) > 60
    assert {name for name, function in PUBLIC.items() if ">>>" not in (inspect.getdoc(function) or "")} == WITHOUT


@pytest.mark.parametrize("name", sorted(PUBLIC.keys() - WITHOUT))
def test_examples(name):
    threads, state = torch.get_num_threads(), torch.random.get_rng_state()
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner(verbose=False)
    example = parser.get_doctest(inspect.getdoc(PUBLIC[name]), {"__name__": "__main__"}, name, None, 0)
    messages: list[str] = []
    failed, tried = runner.run(example, out=messages.append)
    torch.random.set_rng_state(state)
    assert torch.get_num_threads() == threads
    assert tried and not failed, "".join(messages)
