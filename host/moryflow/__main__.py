"""``python -m moryflow``, and what the command `moryflow` runs."""

try:
    import os
    import signal
    import sys

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Nothing has begun, so nothing needs to be told; an exception could come up where Python only prints it.
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))

    from moryflow.cli import main
except KeyboardInterrupt:
    raise SystemExit(130) from None


def start() -> None:
    """Run the command and end the process."""
    sys.exit(main())


if __name__ == "__main__":
    start()
