"""What users may rely on to the letter: schemas and error messages. `EXPECTTEST_ACCEPT=1 pytest` rewrites them."""

import expecttest
import torch

from tests.test_ops import SPECS, message
from tle_ops import _meta


def family(name: str) -> str:
    return _meta.CONTRACTS[name].fn.__module__.rsplit(".", 1)[1]


def messages(*families: str) -> str:
    lines = []
    for spec in SPECS:
        if family(spec.name) in families:
            lines += [message(lambda spec=spec, args=args: spec.op(*args)) for _, args in spec.errors]
    return "\n".join(dict.fromkeys(lines))


def schemas(*families: str) -> str:
    names = [n for n in _meta.CONTRACTS if family(n) in families]
    return "\n".join(str(torch._C._get_schema(f"tle::{n}", "")) for n in names)


class TestSnapshots(expecttest.TestCase):
    def test_schemas_elementwise_quant(self):
        self.assertExpectedInline(schemas("elementwise", "quant"), """\
tle::add(Tensor x, Tensor y) -> Tensor
tle::scale_cast(Tensor x, float alpha, ScalarType dtype) -> Tensor
tle::per_token_cast_fp8(Tensor x, int group_size=128, ScalarType dtype=24, bool scale_ue8m0=False, bool column_major_scales=False) -> (Tensor q, Tensor scales)
tle::per_token_cast_back(Tensor q, Tensor scales, int group_size=128, ScalarType dtype=15) -> Tensor
tle::per_block_cast_fp8(Tensor x, int block_size=128, ScalarType dtype=24, bool scale_ue8m0=False) -> (Tensor q, Tensor scales)
tle::per_block_cast_back(Tensor q, Tensor scales, int block_size=128, ScalarType dtype=15) -> Tensor
tle::per_channel_cast_fp8(Tensor x, int group_size=128, ScalarType dtype=24, bool scale_ue8m0=False) -> (Tensor q, Tensor scales)
tle::per_channel_cast_back(Tensor q, Tensor scales, int group_size=128, ScalarType dtype=15) -> Tensor
tle::fake_quant_fp8(Tensor x, int group_size=128, ScalarType dtype=24, bool scale_ue8m0=False) -> Tensor""")

    def test_errors_elementwise(self):
        self.assertExpectedInline(messages("elementwise"), """\
ValueError: add: x and y must broadcast together, got shapes [4, 6] and [4, 5]
TypeError: add: x must not be a float8 type, got float8_e4m3fn
TypeError: scale_cast: x must be float32, bfloat16, float16 or float64, float8_e4m3fn or float8_e5m2, got int32
TypeError: scale_cast: dtype must be float32, bfloat16, float16 or float64, float8_e4m3fn or float8_e5m2, got int8""")

    def test_errors_quant(self):
        self.assertExpectedInline(messages("quant"), """\
TypeError: per_token_cast_fp8: x must be float32, bfloat16, float16 or float64, got int32
TypeError: per_token_cast_fp8: x must be float32, bfloat16, float16 or float64, got float8_e4m3fn
ValueError: per_token_cast_fp8: group_size must be a positive int or -1, got 0
ValueError: per_token_cast_fp8: group_size must be a positive int or -1, got -2
TypeError: per_token_cast_fp8: dtype must be float8_e4m3fn or float8_e5m2, got int8
ValueError: per_token_cast_fp8: x must have at least 1 dimension, got shape []
TypeError: per_block_cast_fp8: x must be float32, bfloat16, float16 or float64, got int32
TypeError: per_block_cast_fp8: x must be float32, bfloat16, float16 or float64, got float8_e4m3fn
ValueError: per_block_cast_fp8: block_size must be a positive int, got 0
ValueError: per_block_cast_fp8: block_size must be a positive int, got -2
TypeError: per_block_cast_fp8: dtype must be float8_e4m3fn or float8_e5m2, got int8
ValueError: per_block_cast_fp8: x must have at least 2 dimensions, got shape []
TypeError: per_channel_cast_fp8: x must be float32, bfloat16, float16 or float64, got int32
TypeError: per_channel_cast_fp8: x must be float32, bfloat16, float16 or float64, got float8_e4m3fn
ValueError: per_channel_cast_fp8: group_size must be a positive int or -1, got 0
ValueError: per_channel_cast_fp8: group_size must be a positive int or -1, got -2
TypeError: per_channel_cast_fp8: dtype must be float8_e4m3fn or float8_e5m2, got int8
ValueError: per_channel_cast_fp8: x must have at least 1 dimension, got shape []
TypeError: fake_quant_fp8: x must be float32, bfloat16, float16 or float64, got int32
TypeError: fake_quant_fp8: x must be float32, bfloat16, float16 or float64, got float8_e4m3fn
ValueError: fake_quant_fp8: group_size must be a positive int or -1, got 0
ValueError: fake_quant_fp8: group_size must be a positive int or -1, got -2
TypeError: fake_quant_fp8: dtype must be float8_e4m3fn or float8_e5m2, got int8
ValueError: fake_quant_fp8: x must have at least 1 dimension, got shape []
TypeError: per_token_cast_back: q must be float8_e4m3fn or float8_e5m2, got float32
TypeError: per_token_cast_back: scales must be float32, got float16
ValueError: per_token_cast_back: scales must have shape [6, 4], got [4]
ValueError: per_token_cast_back: scales must have shape [6, 4], got [4, 6]
ValueError: per_token_cast_back: group_size must be a positive int or -1, got 0
TypeError: per_token_cast_back: dtype must be float32, bfloat16, float16 or float64, got int32
TypeError: per_block_cast_back: q must be float8_e4m3fn or float8_e5m2, got float32
TypeError: per_block_cast_back: scales must be float32, got float16
ValueError: per_block_cast_back: scales must have shape [1, 4], got [4]
ValueError: per_block_cast_back: scales must have shape [1, 4], got [4, 1]
ValueError: per_block_cast_back: block_size must be a positive int, got 0
TypeError: per_block_cast_back: dtype must be float32, bfloat16, float16 or float64, got int32
TypeError: per_channel_cast_back: q must be float8_e4m3fn or float8_e5m2, got float32
TypeError: per_channel_cast_back: scales must be float32, got float16
ValueError: per_channel_cast_back: scales must have shape [1, 512], got [512]
ValueError: per_channel_cast_back: scales must have shape [1, 512], got [512, 1]
ValueError: per_channel_cast_back: group_size must be a positive int or -1, got 0
TypeError: per_channel_cast_back: dtype must be float32, bfloat16, float16 or float64, got int32""")
