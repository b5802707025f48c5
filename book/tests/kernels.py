"""Kernels for the notebooks that are tested, forked with the imports done where that is possible."""

from __future__ import annotations

import os
import signal
import sys
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from jupyter_client import launcher
from jupyter_client.provisioning import local_provisioner

import forking

if TYPE_CHECKING:  # Windows has none
    from multiprocessing.context import ForkServerProcess


class Kernel:
    """What jupyter_client asks of the process of a kernel: that of a `subprocess.Popen` without streams."""

    stdin = stdout = stderr = None

    def __init__(self, process: ForkServerProcess) -> None:
        self.process, self.pid = process, process.pid

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self) -> int | None:
        self.process.join()
        return self.process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


def in_a_fork(arguments: list[str], folder: str, environment: dict[str, str], ready: Connection) -> None:
    """Be the kernel, in a session of its own, as a kernel that was started is."""
    import matplotlib
    from ipykernel import kernelapp

    os.setsid()
    forking.become(folder, environment | {"JPY_PARENT_PID": str(os.getppid())}, os.devnull)
    matplotlib.rcParams["backend"] = "module://matplotlib_inline.backend_inline"  # as read at import in any kernel
    sys.argv = ["ipykernel_launcher", *arguments]
    ready.send(True)
    kernelapp.launch_new_instance()


def launch(command: list[str], *, env: dict[str, str] | None = None, cwd: str | None = None, **options: Any) -> Any:
    """`jupyter_client.launcher.launch_kernel`, but of a fork if the command is that of this environment's kernel."""
    context = forking.server()
    if context is None or command[:3] != [sys.executable, "-m", "ipykernel_launcher"]:
        return launcher.launch_kernel(command, env=env, cwd=cwd, **options)
    ready, told = context.Pipe(duplex=False)
    process = context.Process(
        target=in_a_fork, args=(command[3:], cwd or os.getcwd(), dict(os.environ if env is None else env), told)
    )
    process.start()
    told.close()
    ready.recv()
    return Kernel(process)


def fork() -> None:
    """From now on kernels that this process launches are forks."""
    local_provisioner.launch_kernel = launch
