"""How far is 1 + exp(-gate) of the fused Triton kernels from the truth? Tries every float32 from -87.3 to 87, and every
bfloat16 with the arithmetic for bfloat16. The scales of swiglu_per_token_cast_fp8 are within 2 ulp if the relative
error is below 1.42 * 2^-24. Gates under 2^-26 have exp(-gate) = 1 - gate, and a sum that rounds to 2.

    python -m bench.proofs.silu
"""

import torch
import triton
import triton.language as tl

from tle_ops.kernels._rows_triton import one_plus_exp

BOUND = {True: 1.34, False: 1.42}  # in units of 2^-24, by WIDE


@triton.jit
def _one_plus_exp_kernel(gate_ptr, high_ptr, low_ptr, n, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    high, low = one_plus_exp(tl.load(gate_ptr + at, mask=at < n, other=0.0), WIDE)
    tl.store(high_ptr + at, high, mask=at < n)
    tl.store(low_ptr + at, low, mask=at < n)


def worst(gate: torch.Tensor, wide: bool) -> float:
    """Largest relative error of 1 + exp(-gate), in units of 2^-24."""
    high, low = torch.empty_like(gate), torch.empty_like(gate)
    n = gate.numel()
    _one_plus_exp_kernel[(triton.cdiv(n, 1024),)](gate, high, low, n, wide, 1024)
    true = 1 + torch.exp(-gate.double())
    return float(((high.double() + low.double()) / true - 1).abs().max()) * 2**24


def gates(sign: int, octave: int, bits: int) -> torch.Tensor:
    """The floats of `bits` stored bits of significand in [2^octave, 2^(octave + 1)), with that sign, but those beyond
    -87.3 and 87."""
    significand = torch.arange(2**bits, dtype=torch.int32, device="cuda") << (23 - bits)
    gate = ((octave + 127 << 23) + significand).view(torch.float32) * sign
    return gate[(gate >= -87.3) & (gate <= 87)]


def main() -> None:
    for name, bits, wide in (("float32", 23, True), ("bfloat16", 7, False)):
        for sign in (1, -1):
            errors = [worst(gates(sign, octave, bits), wide) for octave in range(-26, 7)]
            most = max(errors)
            print(f"{name}, gates of sign {sign:+d}: at most {most:.4f} * 2^-24, in [2^{errors.index(most) - 26}, ...)")
            assert most < BOUND[wide]


if __name__ == "__main__":
    main()
