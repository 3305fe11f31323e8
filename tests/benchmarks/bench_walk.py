"""What one prompt with one `read` walks through: the files, and how often their functions are called, on any thread.

What runs while a module is loaded (class bodies, decorators, tables) counts in neither. The turn alone is what happens
inside ``Session.prompt``.
"""

from __future__ import annotations

import sys

from measuring import MODEL, Figure, ModelServer, place
from moryflow.testing.replies import Reply, calls, text

WALK = """
import json, sys, threading
ROOMS = ("/moryflow/", "/moryflow_sdk/", "/moryflow_builtins/")
everything, turn, inside, calls = set(), set(), [False], [0, 0]

def loads(frame):
    while frame is not None and frame.f_code.co_filename != "<string>":
        if frame.f_code.co_name == "<module>":
            return True
        frame = frame.f_back
    return False

def profile(frame, event, argument):
    file = frame.f_code.co_filename
    if event == "call" and any(room in file for room in ROOMS) and not loads(frame):
        calls[inside[0]] += 1
        everything.add(file)
        if inside[0]:
            turn.add(file)

from moryflow.cli import main
from moryflow.runtime.session import Session
prompt = Session.prompt

async def watched(*given, **options):
    inside[0] = True
    try:
        return await prompt(*given, **options)
    finally:
        inside[0] = False

Session.prompt = watched
threading.setprofile(profile)
sys.setprofile(profile)
main(sys.argv[1:])
sys.setprofile(None)
print("walked:", len(everything), len(turn), sum(calls), calls[0])
"""


def figures() -> list[Figure]:
    """Return (name, value, unit, target) of every figure."""
    with place() as here, ModelServer(_reading) as server:
        here.use(server)
        output = here.run(sys.executable, "-c", WALK, "run", "-m", MODEL, "Read notes.md").output
    whole, turn, calls, before = map(float, output.split("walked:")[1].split())
    return [
        ("files that one prompt with one read walks through", whole, "", 100.0),
        ("files that its turn walks through", turn, "", 70.0),
        ("calls of functions of the product", calls, "", 12_000.0),
        ("calls before the turn", before, "", 5000.0),
    ]


def _reading(number: int) -> Reply:
    return calls(("read", {"path": "notes.md"})) if number == 1 else text("It is a note.")
