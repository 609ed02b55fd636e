"""Is the three-instruction division of the Triton kernels the IEEE quotient? Tries every pair of significands.

Rounding to nearest commutes with powers of two as long as nothing over- or underflows, so significands in [1, 2) say it
all: 2^23 divisors times 2^7 dividends of bfloat16, 2^10 of float16, 2^23 of float32. The last takes 50 s on an H200.

    python -m bench.proofs.division [--seconds 60]
"""

import argparse
import time

import torch
import triton
import triton.language as tl

from tle_ops.kernels._triton import divided


@triton.jit
def _count_wrong_kernel(wrong_ptr, first, step, DIVIDENDS: tl.constexpr, BLOCK: tl.constexpr):
    """One program: BLOCK divisors by DIVIDENDS dividends, the significands first, first + step, ..."""
    significand = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    divisor = (significand | 0x3F800000).to(tl.float32, bitcast=True)  # [BLOCK], in [1, 2)
    guess = 1.0 / divisor  # as in `encode`
    reciprocal = tl.fma(tl.fma(divisor * -1.0, guess, 1.0), guess, guess)
    wrong = tl.zeros((BLOCK,), tl.int32)
    for i in range(0, DIVIDENDS):
        x = tl.zeros((BLOCK,), tl.float32) + ((first + i * step) | 0x3F800000).to(tl.float32, bitcast=True)
        wrong += (divided(x, divisor, reciprocal) != tl.div_rn(x, divisor)).to(tl.int32)
    tl.atomic_add(wrong_ptr, tl.sum(wrong))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120, help="limit for float32")
    arguments = parser.parse_args()
    wrong = torch.zeros(1, dtype=torch.int32, device="cuda")
    grid = (2**23 // 256,)
    for name, bits in (("bfloat16", 7), ("float16", 10)):
        _count_wrong_kernel[grid](wrong, 0, 2 ** (23 - bits), 2**bits, 256)
        print(f"{name}: {wrong.item()} of 2^{bits + 23} pairs wrong")
    start, done = time.time(), 0
    while done < 2**23 and time.time() - start < arguments.seconds:
        _count_wrong_kernel[grid](wrong, done, 1, 8192, 256)
        done += 8192
        torch.cuda.synchronize()
    print(f"float32: {wrong.item()} of {done} x 2^23 pairs wrong, {time.time() - start:.0f} s")


if __name__ == "__main__":
    main()
