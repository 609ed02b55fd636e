"""Makes Triton's interpreter compute what the GPU computes. `install()` before a kernel runs.

As shipped (3.6 to 3.9) it truncates float32 -> bfloat16, loses the carry of float32 -> float8 at binade borders, wraps
on overflow, turns a NaN into a number, computes `tl.fma` with two roundings, and lets NaNs through `tl.minimum` and
`tl.maximum`. Installed: nearest even, float8 saturates (infinities too, as cvt.rn.satfinite does) and keeps NaN as
0x7F, fma rounds once, of a NaN and a number the number is the minimum.
"""

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

_TORCH = {
    tl.float16: torch.float16,
    tl.bfloat16: torch.bfloat16,
    tl.float32: torch.float32,
    tl.float64: torch.float64,
    tl.float8e4nv: torch.float8_e4m3fn,
    tl.float8e5: torch.float8_e5m2,
}
_BITS = {8: torch.uint8, 16: torch.int16, 32: torch.int32, 64: torch.int64}
_shipped = interpreter._convert_float


def _convert_float(data, src, dst, rounding_mode):
    """The bits of `data`, stored as src, after a cast to dst."""
    if src not in _TORCH or dst not in _TORCH or rounding_mode == interpreter._ir.ROUNDING_MODE.RTZ:
        return _shipped(data, src, dst, rounding_mode)
    if not data.size:
        return np.empty(data.shape, f"uint{dst.primitive_bitwidth}")
    x = torch.frombuffer(bytearray(data.tobytes()), dtype=_TORCH[src])
    if dst in (tl.float8e4nv, tl.float8e5):
        top = torch.finfo(_TORCH[dst]).max
        x = x.to(torch.float64 if src == tl.float64 else torch.float32).clamp(-top, top)
        x = x.masked_fill(x.isnan(), torch.nan)
    bits = x.to(_TORCH[dst]).view(_BITS[dst.primitive_bitwidth])
    return bits.numpy().view(f"uint{dst.primitive_bitwidth}").reshape(data.shape)


def fma(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """float32 x * y + z, rounded once. The product is exact in float64; the sum is rounded to odd there, which makes
    the second rounding, to float32, harmless."""
    with np.errstate(all="ignore"):
        p = x.astype(np.float64) * y.astype(np.float64)
        z = z.astype(np.float64)
        s = p + z
        t = s - p
        error = (p - (s - t)) + (z - t)  # two-sum: s + error is exact
        even = (s.view(np.int64) & 1) == 0
        inexact = np.isfinite(s) & (error != 0) & even
        toward = np.where(error > 0, np.inf, -np.inf)
        return np.where(inexact, np.nextafter(s, toward), s).astype(np.float32)


def _create_fma(self, x, y, z):
    if x.data.dtype != np.float32:
        return interpreter.TensorHandle(x.data * y.data + z.data, x.dtype.scalar)
    return interpreter.TensorHandle(fma(*np.broadcast_arrays(x.data, y.data, z.data)), x.dtype.scalar)


def install() -> None:
    interpreter._convert_float = _convert_float
    builder = interpreter.InterpreterBuilder
    builder.create_fma = _create_fma
    builder.create_minnumf = lambda self, x, y: self.binary_op(x, y, np.fmin)
    builder.create_maxnumf = lambda self, x, y: self.binary_op(x, y, np.fmax)
