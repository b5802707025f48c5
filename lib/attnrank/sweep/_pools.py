"""Where rows are computed beside each other: processes of this machine (joblib's loky), or a cluster (Dask).

A pool is entered and left as a context. ``submit`` begins a row, as many at once as ``capacity()`` says; ``wait``
returns those that are finished, and ``outcome`` what came of one, a `LostWorker` if its worker died meanwhile. Such a
row is begun again ``again`` times beside others and then ``again_alone`` times alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Future, wait
from typing import TYPE_CHECKING, Any, Self

from joblib.externals.loky import get_reusable_executor

from attnrank.sweep._provenance import versions
from attnrank.sweep._values import Setting
from attnrank.sweep._work import LostWorker, Outcome

if TYPE_CHECKING:
    from distributed import Client


class Processes:
    """Worker processes. Loky's, unlike the standard library's, also run functions that are defined in a notebook."""

    again, again_alone = 1, 2

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def __enter__(self) -> Self:
        self._executor = _workers(self.workers)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:  # rows in progress are given up; otherwise there are none
            self._executor.shutdown(wait=False, kill_workers=True)

    def capacity(self) -> int:
        return self.workers

    def submit(self, work: Callable, function: Callable, setting: Setting) -> Future:
        try:
            return self._executor.submit(work, function, setting)
        except BrokenExecutor:  # one worker died, and loky ended the others
            self._executor = _workers(self.workers)
            return self._executor.submit(work, function, setting)

    def wait(self, futures: Iterable[Future]) -> set[Future]:
        return wait(futures, return_when=FIRST_COMPLETED).done

    def outcome(self, future: Future) -> Outcome:
        return _outcome(future, (BrokenExecutor,))


def _workers(count: int) -> Any:
    """Those of a moment ago, which know the environment that they were started in, only while it is the same."""
    return get_reusable_executor(max_workers=count, env=dict(os.environ))


class Cluster:
    """The workers of a Dask cluster, which come and go; its scheduler gives a lost worker's rows to others.

    It gives a row up when as many workers died with it as Dask's configuration says (four); then it is tried alone.
    """

    again, again_alone = 0, 1

    def __init__(self, cluster: Client | str) -> None:
        try:
            import distributed
        except ImportError as error:
            raise ValueError(f"cluster needs Dask: pip install 'attnrank[cluster]' ({error})") from None
        self._distributed = distributed
        if not isinstance(cluster, (str, distributed.Client)):
            raise ValueError(f"cluster must be a distributed.Client or a scheduler's address, got {cluster!r}")
        if isinstance(cluster, distributed.Client) and cluster.asynchronous:
            raise ValueError(f"cluster must not be an asynchronous client, got {cluster!r}")
        self._cluster = cluster

    def __enter__(self) -> Self:
        self.client: Any = self._cluster
        if isinstance(self._cluster, str):
            try:
                self.client = self._distributed.Client(self._cluster, set_as_default=False)
            except (OSError, ValueError) as error:
                raise ValueError(f"cluster: no scheduler answers at {self._cluster!r}: {error}") from None
        self._versions = versions()
        self._pending: set = set()
        return self

    def __exit__(self, *_: object) -> None:
        if self._pending and self.client.status == "running":
            self.client.cancel(list(self._pending))
        if self.client is not self._cluster:
            self.client.close()

    @property
    def workers(self) -> int:
        return max(1, sum(self.client.nthreads().values()))

    def capacity(self) -> int:
        """One row for each thread of each worker, and a spare one for each worker, so that none waits for the next."""
        threads = self.client.nthreads()
        return max(1, sum(threads.values()) + len(threads))

    def submit(self, work: Callable, function: Callable, setting: Setting) -> object:
        future = self.client.submit(work, function, setting, self._versions, pure=False)
        self._pending.add(future)
        return future

    def wait(self, futures: Iterable) -> set:
        try:
            with self.client.as_current():
                return self._distributed.wait(list(futures), return_when="FIRST_COMPLETED").done
        except CancelledError:
            return {future for future in futures if future.done()}

    def outcome(self, future: Any) -> Outcome:
        self._pending.discard(future)
        return _outcome(future, (self._distributed.KilledWorker, CancelledError))


def _outcome(future: Future, lost: tuple[type[BaseException], ...]) -> Outcome:
    try:
        return future.result()
    except lost as error:
        return Outcome(LostWorker(f"its worker was lost each time: {error}"), 0.0, "")
    except Exception as error:  # the function or its result could not be sent
        return Outcome(error, 0.0, "")
