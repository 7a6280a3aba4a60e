"""What torch is told of TF32, by its older setting and its newer ones, and that it is left so."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

#: Each in a process of its own: some of what torch was told cannot be taken back.
PROGRAM = """
import torch
TOLD
from pna.ops.precision import is_exact, multiplied

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


@pytest.mark.parametrize(
    "told, exact, later",
    [
        ("", True, False),
        ("torch.set_float32_matmul_precision('high')", False, False),
        ("torch.set_float32_matmul_precision('highest')", True, True),
        ("torch.backends.cuda.matmul.allow_tf32 = True", False, False),
        ("torch.backends.cuda.matmul.fp32_precision = 'tf32'", False, False),
        ("torch.backends.fp32_precision = 'tf32'", False, False),
        ("torch.backends.mkldnn.matmul.fp32_precision = 'bf16'", True, False),
        ("torch.backends.cudnn.rnn.fp32_precision = 'ieee'", True, False),
    ],
)
def test_torch_is_heard_and_left_as_it_was(told, exact, later):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("TOLD", told)],
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == [str(exact), str(later)]
