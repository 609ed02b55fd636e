"""Cases: add, scale_cast."""

from __future__ import annotations

import importlib

import torch

from bench.harness import Case

FP8 = torch.float8_e4m3fn
FLAT, SQUARE = (1 << 26,), (8192, 8192)


def two(dtype):
    return lambda shape, device: tuple(torch.randn(shape, dtype=dtype, device=device) for _ in range(2))


def scaled(dtype, to):
    return lambda shape, device: (torch.randn(shape, dtype=dtype, device=device), 0.7, to)


def eager_scale_cast(x, alpha, dtype):
    y = x.float() * alpha
    return y.clamp(-448.0, 448.0).to(dtype) if dtype == FP8 else y.to(dtype)


def tutorial(name):
    """One of the three ways to write an addition in TileLang."""
    return lambda x, y: getattr(importlib.import_module("tle_ops.kernels.elementwise_tilelang"), name)(x, y)


ADD = {
    "eager": lambda x, y: x + y,
    "peers": {"FlagGems": lambda m, x, y: m.add(x, y)},
    "extra": {name: tutorial(name) for name in ("add_flat", "add_thread_vec", "add_register_vec")},
}

CASES = [
    Case("add", "2^26 float32", FLAT, two(torch.float32), **ADD, target_us=191, quick=True),
    Case("add", "2^26 bfloat16", FLAT, two(torch.bfloat16), **ADD),
    *(
        Case(
            "scale_cast",
            name,
            shape,
            scaled(dtype, to),
            eager_scale_cast,
            target_us=target,
            earlier=earlier,
            quick=quick,
        )
        for name, shape, dtype, to, target, earlier, quick in (
            ("8192x8192 f32 -> f16", SQUARE, torch.float32, torch.float16, 97, {"tutorial's kernel": 97.7}, False),
            ("8192x8192 bf16 -> f16", SQUARE, torch.bfloat16, torch.float16, 65, {"tutorial's kernel": 68.8}, False),
            ("4096x7168 bf16 -> fp8", (4096, 7168), torch.bfloat16, FP8, 27.5, {}, True),
        )
    ),
]
