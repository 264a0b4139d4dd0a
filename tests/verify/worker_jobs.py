"""Jobs for the tests of the worker pool; imported by its processes."""

import os
import signal
import sys
import time
from typing import Any


def do(request: dict[str, Any]) -> Any:
    what = request["do"]
    if what == "echo":
        return request["value"]
    if what == "sleep":
        time.sleep(request["s"])
        return "slept"
    if what == "hang":
        while True:
            pass
    if what == "deaf":  # neither SIGTERM nor Python code gets through
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return len(str(7 ** (10**8)))
    if what == "memory":
        return len(bytearray(10 * 2**30))
    if what == "exit":
        os._exit(3)
    if what == "speak":
        print('{"answer": "not me"}', flush=True)
        return "me"
    if what == "raise":
        raise KeyError("nothing there")
    if what == "modules":
        return [name for name in request["names"] if name in sys.modules]
    if what == "pid":
        return os.getpid()
    raise AssertionError(what)
