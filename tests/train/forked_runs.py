"""A process that trains in children of its own, so that killing one costs no import of torch.

Reads lines of JSON: arguments of `pna.train.loop.train`, and which signal the child is sent after
how many seconds, if any. Answers with how it ended: its exit status, or minus the signal.
"""

import json
import os
import sys
import time

from pna.train.loop import Interrupted, train
from pna.train.settings import ModelSettings, Settings

INTERRUPTED = 42


def main() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        asked["model"] = ModelSettings(**asked["model"])
        asked["settings"] = Settings(**asked["settings"])
        after, send = asked.pop("after"), asked.pop("send")
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
        if after is not None:
            time.sleep(after)
            os.kill(child, send)  # its id is its own until it is waited for, ended or not
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
