"""No clock decides a property: examples may take as long as a busy machine makes them take."""

import gc

import pytest
import torch
from hypothesis import HealthCheck, settings


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What collection makes stays to the end, and is not searched for garbage again and again."""
    gc.disable()
    result = yield
    gc.freeze()
    gc.set_threshold(100_000)
    gc.enable()
    return result


settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture
def one_thread():
    """One thread of torch, as in a sweep, and then as many as before."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def kept_runs(tmp_path_factory):
    """Call a function while ATTNRANK_RUNS names a new folder: what it returns, and the folder with its runs."""

    def kept(function):
        folder = tmp_path_factory.mktemp("runs")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ATTNRANK_RUNS", str(folder))
            return function(), folder

    return kept
