"""``python -m moryflow``, and what the command `moryflow` runs.

``--version`` and ``--help`` are answered here, before the command line is imported: the import would double their time.
"""

try:
    import os
    import sys

    from moryflow import __version__
except KeyboardInterrupt:
    raise SystemExit(130) from None

# What the command line prints for `--help` at `WIDE` columns. Write it anew after a change of a flag or command.
HELP = f"{__file__.rpartition('/')[0]}/cli/help.txt"  # not a Path: importing pathlib takes longer than all of this
WIDE = 80


def start() -> None:
    """Run the command and end the process."""
    if _printed_page():
        return
    import gc
    import signal

    # Starting makes about 100,000 objects, and nearly all live to the end: collecting garbage among them would take 25 ms.
    gc.set_threshold(200_000, 10, 10)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # No work has begun, so leave at once: an exception could be raised where Python only prints it.
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from moryflow.cli import main

    sys.exit(main())


def _printed_page() -> bool:
    """Print the version or the help, if only that is asked for, and return whether it was printed.

    Unusual cases and errors are left to the command line.
    """
    if "_MORYFLOW_COMPLETE" in os.environ or sys.stdout is None:
        return False
    if sys.argv[1:] in (["--version"], ["-V"]):
        page = f"moryflow, version {__version__}\n"
    elif sys.argv[1:] in (["--help"], ["-h"]) and _is_wide():
        with open(HELP, encoding="utf-8") as file:  # noqa: PTH123
            page = file.read()
    else:
        return False
    data = page.encode(sys.stdout.encoding)
    try:
        return os.write(sys.stdout.fileno(), data) == len(data)
    except OSError:
        return False


def _is_wide() -> bool:
    try:
        return "COLUMNS" not in os.environ and os.get_terminal_size(1).columns >= WIDE
    except OSError:  # not a terminal
        return True


if __name__ == "__main__":
    try:
        start()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
