"""Every CUDA kernel once or more, on small awkward inputs, for compute-sanitizer:

    compute-sanitizer --tool memcheck  python -m bench.proofs.sanitize
    compute-sanitizer --tool racecheck python -m bench.proofs.sanitize

The inputs are the samples that the tests use (tests/specs), of every second layout, so run it from a checkout.
"""

import argparse

import torch

import tle_ops
from tests.table import BF16, F32, outputs, to_device
from tests.test_ops import SPECS
from tle_ops import _dispatch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="ops whose name contains this")
    parser.add_argument("--every", type=int, default=1, help="take every n-th sample")
    arguments = parser.parse_args()
    calls = 0
    for spec in SPECS:
        if arguments.only not in spec.name:
            continue
        for backend in _dispatch.backends(spec.name):
            if backend == "ref":
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
