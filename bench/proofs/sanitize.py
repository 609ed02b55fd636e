"""Every CUDA kernel once or more, on small awkward inputs, for compute-sanitizer:

    compute-sanitizer --tool memcheck  python -m bench.proofs.sanitize
    compute-sanitizer --tool racecheck python -m bench.proofs.sanitize --without gluon

Racecheck cannot follow a pipe, which the Gluon kernels are made of: tests/racecheck_control.cu shows why.
The inputs are the samples that the tests use (tests/specs), so run it from a checkout, and groups that are too long for
registers, which take kernels of their own.
"""

import argparse

import torch

import tle_ops
from tests.table import BF16, F32, outputs, to_device
from tests.test_ops import SPECS
from tle_ops import _dispatch

LONG = (  # op, shape, group or block size
    ("per_token_cast_fp8", (3, 2880), -1),
    ("per_token_cast_fp8", (300, 16500), -1),
    ("per_token_cast_fp8", (2, 40000), -1),
    ("fake_quant_fp8", (2, 40000), -1),
    ("per_block_cast_fp8", (310, 320), 300),
    ("per_channel_cast_fp8", (900, 50), -1),
)


def long_groups(only: str) -> int:
    calls = 0
    for op, shape, size in LONG:
        for backend in ("triton", "tilelang") if only in op else ():
            with tle_ops.backend(backend):
                getattr(torch.ops.tle, op)(torch.randn(shape, device="cuda", dtype=BF16), size)
            calls += 1
    torch.cuda.synchronize()
    return calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="ops whose name contains this")
    parser.add_argument("--without", default="", help="a backend to leave out")
    parser.add_argument("--every", type=int, default=1, help="take every n-th sample")
    arguments = parser.parse_args()
    calls = long_groups(arguments.only)
    for spec in SPECS:
        if arguments.only not in spec.name:
            continue
        for backend in _dispatch.backends(spec.name):
            if backend in ("ref", arguments.without):
                continue
            with tle_ops.backend(backend):
                for dtype in (BF16, F32):
                    if dtype not in spec.dtypes:
                        continue
                    for sample in list(spec.samples(dtype))[:: arguments.every]:
                        outputs(spec.op(*to_device(sample.args, "cuda")))
                        calls += 1
            torch.cuda.synchronize()
    print(f"{calls} calls")


if __name__ == "__main__":
    main()
