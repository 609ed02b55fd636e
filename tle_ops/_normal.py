"""The standard normal distribution, which gelu is made of, with its digits also where it is small: 1 + erf(x) has lost
them at x = -3, and PyTorch's gelu of a vector of inf is NaN on a CPU.

By one exponential, for what is compiled: with u = a |x| / (1 + a |x|) the distribution of -|x| is exp(-x^2 / 2) times a
polynomial in u, near 1/2 for small x, so that its rounding does not show there. The coefficients are a weighted least
squares fit over |x| <= 14; relative to the distribution the polynomial is good to 3.7e-8.
"""

import math

import torch
from torch import Tensor

from tle_ops import _inductor

SLOPE = 0.295  # a
COEFFICIENTS = (
    *(0.5, -1.3523486852645874, 1.520469307899475, -0.7878957390785217, -0.013536131009459496, 0.13488620519638062),
    *(0.09099842607975006, -0.13198241591453552, 0.039425987750291824),
)


def cdf(x: Tensor) -> Tensor:
    """The distribution at x, a new tensor."""
    if x.dtype == torch.float32 and _inductor.compiling():  # whose code erfc would slow down, beyond what memory takes
        return _cdf_by_one_exponential(x)
    return torch.erfc(x * -math.sqrt(0.5)).mul_(0.5)


def density(x: Tensor) -> Tensor:
    return torch.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))


def _cdf_by_one_exponential(x: Tensor) -> Tensor:
    u = 1 - 1 / (1 + x.abs() * SLOPE)  # right for inf, too; a |x| / (1 + a |x|) has a digit more near 0, and a bound
    p = torch.full_like(u, COEFFICIENTS[-1])
    for c in COEFFICIENTS[-2::-1]:
        p = p * u + c
    below = p * torch.exp2(x * x * (-0.5 / math.log(2)))
    return torch.where(x < 0, below, 1 - below)
