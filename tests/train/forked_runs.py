"""A process that trains in children of its own, so that killing one costs no import of torch.

Reads lines of JSON: arguments of `pna.train.loop.train`, and which signal the child is to be sent,
if any, so many seconds after it has written so many checkpoints. Answers with how it ended: its
exit status, or minus the signal.
"""

import json
import os
import sys
import time
from pathlib import Path

from pna.train.loop import Interrupted, train
from pna.train.run import LAST
from pna.train.settings import ModelSettings, Settings

INTERRUPTED = 42


def wait_for_writes(child: int, path: Path, writes: int) -> None:
    """Until a file was replaced so often, or the child has ended."""
    before = path.stat().st_mtime_ns if path.exists() else 0
    while writes > 0 and not os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        now = path.stat().st_mtime_ns if path.exists() else 0
        if now != before:
            before, writes = now, writes - 1
        time.sleep(0.001)


def main() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        asked["model"] = ModelSettings(**asked["model"])
        asked["settings"] = Settings(**asked["settings"])
        send, writes, after = asked.pop("signal")
        child = os.fork()
        if child == 0:
            try:
                train(**asked)
                os._exit(0)
            except Interrupted:
                os._exit(INTERRUPTED)
            except BaseException as error:
                print(repr(error), file=sys.stderr)
                os._exit(1)
        if send:
            wait_for_writes(child, Path(asked["out"]) / LAST, writes)
            time.sleep(after)
            os.kill(child, send)  # its id is its own until it is waited for, ended or not
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
