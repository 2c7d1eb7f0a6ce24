"""How long a test waits before it takes something for hung: the more, the busier the machine is.

Nothing here says how fast anything should be. On a quiet machine no test comes near its limit.
"""

import os

_AMPLE = 10
"""Load averages lag by a minute: others may have come that do not show yet."""


def limit(seconds):
    """Return how long to wait for what takes so many seconds on a quiet machine, at most.

    ANCHORHOLD_TEST_PATIENCE makes it longer by a factor, for machines that are slow in other ways.
    """
    crowd = max(os.getloadavg()[0] / (os.cpu_count() or 1), 1.0)
    return seconds * _AMPLE * crowd * float(os.environ.get("ANCHORHOLD_TEST_PATIENCE", "1"))


def patient_ray():
    """Return environment variables by which Ray waits for its own processes to start as long as these tests do.

    How it notices that one has died is left alone: that is what some tests wait for.
    """
    seconds = str(int(limit(30)))
    return {
        "RAY_gcs_server_port_wait_time_s": seconds,
        "RAY_gcs_rpc_server_connect_timeout_s": seconds,
        "RAY_worker_register_timeout_seconds": seconds,
        "RAY_agent_register_timeout_ms": seconds + "000",
        # Ray's workers give way to everything else by default, and beside twenty busy processes hardly run at all.
        "RAY_worker_niceness": "0",
    }
