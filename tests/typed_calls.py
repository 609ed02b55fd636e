"""Calls as a user writes them, with the types that a type checker must see. For mypy (`make lint`), not for pytest."""

import torch
from torch import Tensor
from typing_extensions import assert_type

import tle_ops

x = torch.ones(4, 256)
assert_type(tle_ops.add(x, x), Tensor)
assert_type(tle_ops.scale_cast(x, 2.0, torch.float16), Tensor)
assert_type(tle_ops.rms_norm(x, None, 1e-6, weight_offset=1.0), Tensor)
assert_type(tle_ops.add_rms_norm(x, x), tuple[Tensor, Tensor])
assert_type(tle_ops.per_token_cast_fp8(x, 64, dtype=torch.float8_e5m2), tuple[Tensor, Tensor])
assert_type(tle_ops.add_rms_norm_per_token_cast_fp8(x, x), tuple[Tensor, Tensor, Tensor])
assert_type(tle_ops.cumsum(x, -1, reverse=True), tuple[Tensor, Tensor])
assert_type(tle_ops.compact(x, x > 0), tuple[Tensor, Tensor, Tensor])
assert_type(tle_ops.topk(x, 3, largest=False), tuple[Tensor, Tensor])
assert_type(tle_ops.topk_gate(x, 2, scoring="sigmoid", bias=None), tuple[Tensor, Tensor])
assert_type(tle_ops.extract_tile(x, [0, 1], (2, 2)), Tensor)
assert_type(tle_ops.backends("add"), tuple[str, ...])
assert_type(tle_ops.explain("add", x, x).backend, str)
with tle_ops.backend("ref") as forced:
    assert_type(forced, tle_ops.backend)
tle_ops.topk(x, "3")  # type: ignore[arg-type]
tle_ops.rms_norm(x, 1e-6)  # type: ignore[arg-type]
tle_ops.per_token_cast_fp8(x, 64, torch.float8_e5m2)  # type: ignore[call-arg]
