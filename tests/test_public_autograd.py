"""The switch TLE_PUBLIC_AUTOGRAD=1, which registers the same formulas through torch.library.register_autograd."""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parent.parent
OPS = "add- or add] or scale_cast or fake_quant or cast_back or rms_norm"
LAYERS = "gradcheck or gradients or opcheck or func_transforms or no_grad or double_backward"


def test_same_gradients_by_the_public_way():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_ops.py"]
    done = subprocess.run(
        [*command, "-k", f"({OPS}) and ({LAYERS}) and not float16"],
        cwd=ROOT,
        env={**os.environ, "TLE_PUBLIC_AUTOGRAD": "1"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
