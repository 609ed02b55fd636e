"""Do the CPU and the GPU quantize to the same bits? Random problems over every class of values, dtype, code and op.

    python -m bench.proofs.agreement [--elements 1e9] [--out FILE.json]

Each problem is quantized by the reference on the CPU and by every GPU backend; codes and scales are compared bit for
bit, NaN included. The exit status is the verdict.
"""

import argparse
import collections
import json
import pathlib
import sys

import torch
from rich.progress import track

import tle_ops

ROWS, COLUMNS = 4096, 4096
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
CALLS = (  # op, arguments
    ("per_token_cast_fp8", (128, E4M3)),
    ("per_token_cast_fp8", (128, E4M3, True)),
    ("per_block_cast_fp8", (128, E4M3)),
    ("per_token_cast_fp8", (-1, E5M2)),
    ("per_channel_cast_fp8", (128, E4M3)),
    ("per_token_cast_fp8", (100, E4M3, False, True)),
    ("per_block_cast_fp8", (100, E5M2, True)),
    ("per_channel_cast_fp8", (-1, E5M2)),
)


def normal(generator: torch.Generator) -> torch.Tensor:
    return torch.randn(ROWS, COLUMNS, generator=generator)


def magnitudes(generator: torch.Generator) -> torch.Tensor:
    """Every group of another magnitude, up to the ends of float32."""
    return normal(generator) * 10 ** (torch.rand(ROWS, 32, generator=generator) * 76 - 38).repeat_interleave(128, 1)


def subnormal(generator: torch.Generator) -> torch.Tensor:
    return normal(generator) * 1e-39


def floor(generator: torch.Generator) -> torch.Tensor:
    """Around the least amax, 1e-4."""
    return normal(generator) * 1e-4 * torch.rand(ROWS, 1, generator=generator)


def zeros(generator: torch.Generator) -> torch.Tensor:
    """Mostly zeros of both signs, many groups of nothing else."""
    x = normal(generator)
    return torch.where(
        torch.rand(ROWS, COLUMNS, generator=generator) < torch.rand(ROWS, 1, generator=generator) * 0.02, x, x * 0
    )


def ties(generator: torch.Generator) -> torch.Tensor:
    """Quotients exactly between two codes: multiples of half a step, under an amax that makes the scale 2^k."""
    x = torch.randint(-896, 897, (ROWS, COLUMNS), generator=generator) / 2.0
    x[:, ::50] = 448
    return x * 2.0 ** torch.randint(-30, 30, (ROWS, 1), generator=generator)


def largest(generator: torch.Generator) -> torch.Tensor:
    return normal(generator).clamp(-1, 1) * 3.4e38


def specials(generator: torch.Generator) -> torch.Tensor:
    """Infinities and NaNs of both signs, one in a thousand."""
    x = normal(generator)
    pick = torch.randint(0, 4000, (ROWS, COLUMNS), generator=generator)
    for i, value in enumerate((torch.inf, -torch.inf, torch.nan, -torch.nan)):
        x = x.masked_fill(pick == i, value)
    return x


def any_bits(generator: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
    """Uniform over bit patterns."""
    info = torch.iinfo(BITS[dtype])
    return torch.randint(info.min, info.max + 1, (ROWS, COLUMNS), generator=generator, dtype=BITS[dtype]).view(dtype)


CLASSES = (normal, magnitudes, subnormal, floor, zeros, ties, largest, specials, any_bits)


def differing(a: torch.Tensor, b: torch.Tensor) -> int:
    kind = torch.uint8 if a.dtype.itemsize == 1 else torch.int32
    if kind == torch.int32:  # the payload of a NaN is the processor's
        a, b = (t.masked_fill(t.isnan(), torch.nan) for t in (a, b))
    return int((a.contiguous().view(kind) != b.contiguous().view(kind)).sum())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--elements", type=float, default=1e9)
    parser.add_argument("--out", type=pathlib.Path)
    arguments = parser.parse_args()
    problems = [(c, d, o) for o in CALLS for c in CLASSES for d in DTYPES]
    wanted = -(-int(arguments.elements) // (ROWS * COLUMNS))
    order = torch.randperm(len(problems), generator=torch.Generator().manual_seed(0)).tolist()
    elements, mismatches = collections.Counter(), 0
    for i in track(range(wanted), "problems"):
        make, dtype, (op, args) = problems[order[i % len(order)]]
        generator = torch.Generator().manual_seed(i)
        x = make(generator, dtype) if make is any_bits else make(generator).to(dtype)
        want = getattr(torch.ops.tle, op)(x, *args)
        moved = x.cuda()
        for backend in ("triton", "tilelang"):
            with tle_ops.backend(backend):
                got = getattr(torch.ops.tle, op)(moved, *args)
            wrong = sum(differing(g.cpu(), w) for g, w in zip(got, want, strict=True))
            if wrong:
                print(f"{backend}: {op}{args} of {make.__name__} {dtype}: {wrong} differ")
            mismatches += wrong
        for key in (f"class {make.__name__}", f"dtype {str(dtype)[6:]}", f"op {op}"):
            elements[key] += x.numel()
    report = {
        "card": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "elements": wanted * ROWS * COLUMNS,
        "backends": ["triton", "tilelang"],
        "mismatches": mismatches,
        "elements by": dict(sorted(elements.items())),
    }
    print(json.dumps(report, indent=1))
    if arguments.out:
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")
    return int(mismatches > 0)


if __name__ == "__main__":
    sys.exit(main())
