"""examples/in_slots.sh: lanes side by side, commands in turn, and an interrupt when time is up."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "examples" / "in_slots.sh"
#: Stands for pna: `slow` waits to be interrupted, as its child does; `fail` fails; says what it was
#: asked for.
FAKE = f"""#!/usr/bin/env bash
trap 'sleep 0.2; kill $!; echo interrupted; exit 130' INT
echo "ran $*${{SHARE:+ with $SHARE}}"
child() {{
  {sys.executable} -c '
import signal, time
signal.signal(signal.SIGINT, lambda *_: print("the child too", flush=True))
time.sleep(60)
'
}}
case $2 in slow) child & wait ;; fail) exit 2 ;; esac
"""

pytestmark = pytest.mark.skipif(
    not (shutil.which("bash") and shutil.which("timeout")), reason="needs bash and timeout"
)


def call(folder: Path, seconds: int, lanes: str) -> tuple[int, list[list[str]]]:
    """The exit status, and what each lane's commands said."""
    fake = folder / "pna"
    fake.write_text(FAKE)
    fake.chmod(0o755)
    done = subprocess.run(
        ["bash", SCRIPT, str(seconds)], input=lanes, text=True, cwd=folder, timeout=50,
        env={"PNA": str(fake), "PATH": "/usr/local/bin:/usr/bin:/bin"}, check=False,
    )  # fmt: skip
    logs = [path.read_text().splitlines() for path in sorted((folder / "runs").glob("lane-*.log"))]
    return done.returncode, [[w for w in log if not w.startswith("pna ")] for log in logs]


def test_every_command_of_every_lane_runs(tmp_path: Path) -> None:
    status, logs = call(tmp_path, 30, "SHARE=50 a --workers 2;; b\n\n--recipe=plain c\n")
    assert status == 0
    assert logs == [
        ["ran reproduce a --workers 2 --resume with 50", "ran reproduce b --resume"],
        ["ran reproduce --recipe=plain c --resume"],
    ]


def test_commands_are_interrupted_when_time_is_up_and_later_ones_wait(tmp_path: Path) -> None:
    status, logs = call(tmp_path, 2, "slow; after\nquick\n")
    assert status == 75
    assert logs == [
        ["ran reproduce slow --resume", "interrupted"],
        ["ran reproduce quick --resume"],
    ]


def test_a_failure_is_reported_and_does_not_stop_its_lane(tmp_path: Path) -> None:
    status, logs = call(tmp_path, 2, "fail; after\nslow\n")
    assert status == 1
    assert logs[0] == [
        "ran reproduce fail --resume", "failed with exit status 2", "ran reproduce after --resume"
    ]  # fmt: skip
