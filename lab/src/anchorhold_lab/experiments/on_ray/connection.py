"""The connection to Ray: a cluster that is there, or one on this machine that is started and ended again."""

import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from anchorhold.errors import ClusterError, ConfigurationError, MissingExtraError

try:
    import ray
    import ray.util.scheduling_strategies
except ImportError as error:
    raise MissingExtraError(
        "Runs on Ray need Ray, which is not installed: pip install 'anchorhold-lab[ray]'"
    ) from error

__all__ = ["cluster_errors", "connected", "ray"]

_LOCAL = "local"
_LOOPBACK = ("localhost", "127.0.0.1")
_STARTS = 4
"""How often a Ray on this machine is started before it is given up."""
_ANSWER_SECONDS = 10
"""How long a cluster may take to answer; Ray by itself would go on asking for minutes."""


@contextlib.contextmanager
def connected(address: str | None = None) -> Iterator[None]:
    """Be connected to Ray; a program that is already stays so, on the same terms.

    Args:
        address: a cluster's ``HOST:PORT``, or ``auto`` for the one that this machine is part of; ``$RAY_ADDRESS`` if
            left out, and without that a Ray on this machine alone, for as long as it is needed.
    """
    if ray.is_initialized():
        if address is not None:
            raise ConfigurationError(
                f"address={address!r}, but this program is connected to Ray already. Leave the address out to use "
                "that, or call ray.shutdown() before."
            )
        yield
        return
    chosen = address or os.environ.get("RAY_ADDRESS") or _LOCAL
    if chosen.startswith("ray://"):
        raise ConfigurationError(
            f"The Ray address {chosen!r} is one for clients outside of the cluster; expected HOST:PORT, or auto, on a "
            "machine that is part of it."
        )
    with _patched(ray._private.worker, _worker_logs_enabled=False):  # noqa: SLF001 (it would print on stdout)
        _connect(chosen)
        try:
            yield
        finally:
            ray.shutdown()


@contextlib.contextmanager
def cluster_errors() -> Iterator[None]:
    """Say in one line that Ray has ended; an error within a task stays what it is."""
    try:
        yield
    except ray.exceptions.RayTaskError:
        raise
    except ray.exceptions.RayError as error:
        raise ClusterError(
            f"Ray has ended while runs were under way: {str(error).splitlines()[0].rstrip('.')}. What had arrived of "
            "them is in the store; the same command goes on from the checkpoints."
        ) from error


def _connect(address: str) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # A Ray on this machine alone is for nobody else: it listens on the loopback interface, not on all of them.
    alone = {"ENABLE_RAY_CLUSTER": False} if address == _LOCAL else {}
    options: dict[str, Any] = {"include_dashboard": False} if address == _LOCAL else {}
    try:
        _call_on(address)
        with _patched(ray._private.ray_constants, **alone), _own_signals():  # noqa: SLF001 (there is no public way)
            start_ray(address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except (OSError, OverflowError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        if address == _LOCAL:
            raise
        raise ConfigurationError(
            f"The Ray cluster at {address!r} cannot be joined: {' '.join(str(error).split()).rstrip('.')}. Expected "
            "HOST:PORT as `ray start --head` prints it, on a machine that is part of the cluster, and "
            "RAY_AUTH_MODE=token if it asks for a token."
        ) from error


def start_ray(address: str, **options: Any) -> None:
    """Call ``ray.init``; on this machine alone, again where Ray's own processes were too slow for it.

    It waits half a minute for them, whatever one sets, which a busy machine may exceed.
    """
    for attempt in range(_STARTS):
        try:
            ray.init(address=address, **options)
        except Exception as error:
            if address != _LOCAL or attempt == _STARTS - 1 or "timed out during startup" not in str(error):
                raise
            ray.shutdown()
        else:
            return


def _call_on(address: str) -> None:
    """Find out whether anything answers at HOST:PORT; what is written otherwise is Ray's to read."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal()):
        return
    # Ray takes this machine's name for itself to mean its address in the network, where a head may listen alone.
    own: list[str] = [ray.util.get_node_ip_address()] if host in _LOOPBACK else []  # type: ignore[no-untyped-call]
    for place in [host.strip("[]"), *own]:
        try:
            socket.create_connection((place, int(port)), timeout=_ANSWER_SECONDS).close()
        except OSError as error:
            refused = error
        else:
            return
    raise refused


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Keep the handlers of signals: Ray takes SIGTERM for itself, and a command could not save its runs any more."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _patched(module: ModuleType, **values: Any) -> Iterator[None]:
    """Let names of a module have other values for a while; those that a version lacks are left alone."""
    before = {name: getattr(module, name) for name in values if hasattr(module, name)}
    for name in before:
        setattr(module, name, values[name])
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)
