"""The process that runs the model. This is a script and not a module: it is started by its path, with Python in isolated mode.

The first line of standard input has the settings, the first line of standard output the server's address. The server listens
on loopback and requires the key from the settings; that comes through the pipe, because others can see arguments and
environments. The process ends with its owner, because the pipe is closed however the owner ends.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def main() -> None:
    """Serve until standard input ends."""
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output of the library must not be taken for our answer
    order = json.loads(sys.stdin.readline())
    try:
        server = start(order)
    except Exception as error:  # the owner shows it to the user
        answer.write(json.dumps({"error": f"{type(error).__name__}: {error}"}) + "\n")
        answer.flush()
        os._exit(1)
    answer.write(json.dumps({"url": server.listening_address}) + "\n")
    answer.flush()
    while sys.stdin.readline():
        pass
    os._exit(0)  # at once, because threads of the library could keep the process alive


def start(order: dict[str, Any]) -> Any:
    """Load the weights and start the server.

    Sampling is greedy, so that the same question gets the same answer.
    """
    sys.path.insert(0, order["runtime"])
    import xllamacpp  # pyright: ignore[reportMissingImports]

    params = xllamacpp.CommonParams()
    params.model.path = order["weights"]
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [order["key"]]
    params.cors_origins = ""
    params.ui = False
    params.endpoint_slots = False
    params.verbosity = -1
    params.warmup = False
    params.n_ctx = order["context"]
    params.n_predict = order["longest"]
    params.n_parallel = 1
    params.cache_ram_mib = 0
    for threads in (params.cpuparams, params.cpuparams_batch):
        threads.n_threads = order["threads"]
        threads.poll = 0  # threads that spin while they wait make it ten times slower as soon as anything else runs
    params.sampling.temp = 0.0
    params.sampling.top_p = 0.9
    params.sampling.penalty_repeat = order["penalty"]
    params.sampling.penalty_last_n = 256
    return xllamacpp.Server(params)


if __name__ == "__main__":
    main()
