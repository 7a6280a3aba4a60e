"""What torch is told of TF32, by its older setting and its newer ones, and that it is left so."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

#: Each in a process of its own: some of what torch was told cannot be taken back.
PROGRAM = """
TOLD

def seen():
    backends = torch.backends
    places = backends.mkldnn.matmul, backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn
    return [place.fp32_precision for place in places]

before = seen()
print(is_exact())
for exactly in (True, False):
    with multiplied(exactly):
        assert is_exact() == exactly
        assert torch.get_float32_matmul_precision() == ("highest" if exactly else "high")
        assert set(seen()) == {"ieee" if exactly else "tf32"}
    assert seen() == before, (before, seen())
torch.backends.fp32_precision = "tf32"
print(is_exact())
"""


#: Processes that all begin where torch and pna have been imported, once.
FORKS = """
import json, os, sys
import torch
from pna.ops.precision import is_exact, multiplied

for program in json.loads(sys.argv[1]):
    sys.stdout.flush()
    if os.fork() == 0:
        exec(program)
        sys.stdout.flush()
        os._exit(0)
    assert os.wait()[1] == 0, program
"""

#: What torch is told, whether products are exact then, and whether they are after it is told of
#: TF32 by the newest setting.
CASES = [
    ("", True, False),
    ("torch.set_float32_matmul_precision('high')", False, False),
    ("torch.set_float32_matmul_precision('highest')", True, True),
    ("torch.backends.cuda.matmul.allow_tf32 = True", False, False),
    ("torch.backends.cuda.matmul.fp32_precision = 'tf32'", False, False),
    ("torch.backends.fp32_precision = 'tf32'", False, False),
    ("torch.backends.mkldnn.matmul.fp32_precision = 'bf16'", True, False),
    ("torch.backends.cudnn.rnn.fp32_precision = 'ieee'", True, False),
]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_torch_is_heard_and_left_as_it_was():
    """A new process imports torch and pna, and is forked for each of the cases."""
    programs = [PROGRAM.replace("TOLD", told) for told, _, _ in CASES]
    done = subprocess.run(
        [sys.executable, "-c", FORKS, json.dumps(programs)],
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == [str(exact) for _, *answers in CASES for exact in answers]


@pytest.mark.parametrize("machine", ["aarch64", "x86_64"])
def test_onednn_is_left_out_on_arm_and_comes_back(machine, monkeypatch):
    import torch

    from pna.ops.precision import quick_products

    monkeypatch.setattr("platform.machine", lambda: machine)
    before = torch.backends.mkldnn.enabled
    with pytest.raises(KeyError), quick_products():
        assert torch.backends.mkldnn.enabled == (before and machine != "aarch64")
        raise KeyError
    assert torch.backends.mkldnn.enabled == before
    with quick_products(False):
        assert torch.backends.mkldnn.enabled == before
