"""No clock decides a property: examples may take as long as a busy machine makes them take."""

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture
def one_thread():
    """One thread of torch, as in a sweep, and then as many as before."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
