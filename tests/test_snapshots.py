"""What users may rely on to the letter: schemas and error messages. `EXPECTTEST_ACCEPT=1 pytest` rewrites them."""

import inspect
import re

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


def test_every_family_has_snapshots():
    source = inspect.getsource(TestSnapshots)
    for kind in ("schemas", "messages"):
        held = " ".join(re.findall(rf"{kind}\(([^)]*)\)", source))
        missing = [name for name in sorted({family(op) for op in _meta.CONTRACTS}) if f'"{name}"' not in held]
        assert not missing, f"no snapshot of the {kind} of {missing}"


class TestSnapshots(expecttest.TestCase):
    def test_schemas_elementwise_quant(self):
        self.assertExpectedInline(
            schemas("elementwise", "quant"),
            """\
tle::per_token_cast_fp8(Tensor x, int group_size=128, ScalarType dtype=24, bool scale_ue8m0=False, bool column_major_scales=False) -> (Tensor q, Tensor scales)
tle::per_token_cast_back(Tensor q, Tensor scales, int group_size=128, ScalarType dtype=15) -> Tensor
tle::per_block_cast_fp8(Tensor x, int block_size=128, ScalarType dtype=24, bool scale_ue8m0=False) -> (Tensor q, Tensor scales)
tle::per_block_cast_back(Tensor q, Tensor scales, int block_size=128, ScalarType dtype=15) -> Tensor
tle::per_channel_cast_fp8(Tensor x, int group_size=128, ScalarType dtype=24, bool scale_ue8m0=False) -> (Tensor q, Tensor scales)
tle::per_channel_cast_back(Tensor q, Tensor scales, int group_size=128, ScalarType dtype=15) -> Tensor
tle::fake_quant_fp8(Tensor x, int group_size=128, ScalarType dtype=24, bool scale_ue8m0=False) -> Tensor
tle::add(Tensor x, Tensor y) -> Tensor
tle::scale_cast(Tensor x, float alpha, ScalarType dtype) -> Tensor""",
        )

    def test_errors_elementwise(self):
        self.assertExpectedInline(
            messages("elementwise"),
            """\
ValueError: add: x and y must broadcast together, got shapes [4, 6] and [4, 5]
TypeError: add: x must be float32, bfloat16, float16, float64, complex, uint8, int8, int16, int32, int64 or bool, got float8_e4m3fn
TypeError: scale_cast: x must be float32, bfloat16, float16, float64, float8_e4m3fn or float8_e5m2, got int32
TypeError: scale_cast: dtype must be float32, bfloat16, float16, float64, float8_e4m3fn or float8_e5m2, got int8""",
        )

    def test_errors_quant(self):
        self.assertExpectedInline(
            messages("quant"),
            """\
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
TypeError: per_channel_cast_back: dtype must be float32, bfloat16, float16 or float64, got int32""",
        )

    def test_schemas_norm_rope(self):
        self.assertExpectedInline(
            schemas("norm", "rope"),
            """\
tle::rms_norm(Tensor x, Tensor? weight, float eps, float weight_offset=0.) -> Tensor
tle::rms_norm_bwd(Tensor dy, Tensor x, Tensor? weight, float eps, float weight_offset=0., ScalarType? dweight_dtype=None) -> (Tensor dx, Tensor dweight)
tle::add_rms_norm(Tensor x, Tensor residual, Tensor? weight, float eps, float weight_offset=0.) -> (Tensor y, Tensor new_residual)
tle::add_rms_norm_bwd(Tensor dy, Tensor? dnew_residual, Tensor new_residual, Tensor? weight, float eps, float weight_offset=0., ScalarType? dweight_dtype=None) -> (Tensor dx, Tensor dweight)
tle::layer_norm(Tensor x, Tensor? weight, Tensor? bias, float eps) -> Tensor
tle::layer_norm_bwd(Tensor dy, Tensor x, Tensor? weight, float eps, ScalarType? dweight_dtype=None, ScalarType? dbias_dtype=None) -> (Tensor dx, Tensor dweight, Tensor dbias)
tle::rope(Tensor x, Tensor cos, Tensor sin, bool interleaved=False) -> Tensor
tle::rope_bwd(Tensor dy, Tensor cos, Tensor sin, bool interleaved=False) -> Tensor""",
        )

    def test_errors_norm(self):
        self.assertExpectedInline(
            messages("norm"),
            """\
ValueError: rms_norm: weight must have shape [6], got [7]
ValueError: rms_norm: weight must have shape [6], got [1, 6]
TypeError: rms_norm: weight must be float32, bfloat16, float16 or float64, got int64
TypeError: rms_norm: x must be float32, bfloat16, float16 or float64, got float8_e4m3fn
ValueError: rms_norm: x must have at least 1 dimension, got shape []
ValueError: rms_norm: eps must be at least 0, got -1e-06
ValueError: rms_norm: eps must be at least 0, got nan
ValueError: rms_norm_bwd: dy must have shape [4, 6], got [4, 5]
ValueError: rms_norm_bwd: weight must have shape [6], got [5]
TypeError: rms_norm_bwd: dweight_dtype must be float32, bfloat16, float16 or float64, or None, got int32
ValueError: rms_norm_bwd: eps must be at least 0, got -1.0
ValueError: add_rms_norm: weight must have shape [6], got [7]
ValueError: add_rms_norm: weight must have shape [6], got [1, 6]
TypeError: add_rms_norm: weight must be float32, bfloat16, float16 or float64, got int64
ValueError: add_rms_norm: eps must be at least 0, got -1.0
ValueError: add_rms_norm: residual must have shape [4, 6], got [3, 6]
ValueError: add_rms_norm: residual must have shape [4, 6], got [6]
TypeError: add_rms_norm: residual must be bfloat16 as x is, got float32
ValueError: add_rms_norm_bwd: dy must have shape [4, 6], got [4, 5]
ValueError: add_rms_norm_bwd: dnew_residual must have shape [4, 6], got [4, 5]
ValueError: add_rms_norm_bwd: weight must have shape [6], got [5]
ValueError: add_rms_norm_bwd: eps must be at least 0, got -1.0
ValueError: layer_norm: weight must have shape [6], got [7]
ValueError: layer_norm: weight must have shape [6], got [1, 6]
TypeError: layer_norm: weight must be float32, bfloat16, float16 or float64, got int64
TypeError: layer_norm: x must be float32, bfloat16, float16 or float64, got float8_e4m3fn
ValueError: layer_norm: x must have at least 1 dimension, got shape []
ValueError: layer_norm: eps must be at least 0, got -1e-06
ValueError: layer_norm: eps must be at least 0, got nan
ValueError: layer_norm: bias must have shape [6], got [5]
ValueError: layer_norm_bwd: dy must have shape [4, 6], got [4, 5]
TypeError: layer_norm_bwd: dbias_dtype must be float32, bfloat16, float16 or float64, or None, got int32
ValueError: layer_norm_bwd: eps must be at least 0, got -1.0""",
        )

    def test_schemas_swiglu_fused(self):
        self.assertExpectedInline(
            schemas("swiglu", "fused"),
            """\
tle::swiglu(Tensor gate, Tensor up, float? limit=None) -> Tensor
tle::swiglu_bwd(Tensor dy, Tensor gate, Tensor up, float? limit=None) -> (Tensor dgate, Tensor dup)
tle::swiglu_packed(Tensor x, float? limit=None) -> Tensor
tle::swiglu_packed_bwd(Tensor dy, Tensor x, float? limit=None) -> Tensor
tle::geglu(Tensor gate, Tensor up, str approximate="none") -> Tensor
tle::geglu_bwd(Tensor dy, Tensor gate, Tensor up, str approximate="none") -> (Tensor dgate, Tensor dup)
tle::geglu_packed(Tensor x, str approximate="none") -> Tensor
tle::geglu_packed_bwd(Tensor dy, Tensor x, str approximate="none") -> Tensor
tle::swiglu_per_token_cast_fp8(Tensor x, int group_size=128, ScalarType dtype=24, bool scale_ue8m0=False, bool column_major_scales=False, float? limit=None) -> (Tensor q, Tensor scales)
tle::rms_norm_per_token_cast_fp8(Tensor x, Tensor? weight, float eps, int group_size=128, ScalarType dtype=24, bool scale_ue8m0=False, bool column_major_scales=False, float weight_offset=0.) -> (Tensor q, Tensor scales)
tle::add_rms_norm_per_token_cast_fp8(Tensor x, Tensor residual, Tensor? weight, float eps, int group_size=128, ScalarType dtype=24, bool scale_ue8m0=False, bool column_major_scales=False, float weight_offset=0.) -> (Tensor q, Tensor scales, Tensor new_residual)""",
        )

    def test_errors_rope_swiglu_fused(self):
        self.assertExpectedInline(
            messages("rope", "swiglu", "fused"),
            """\
ValueError: swiglu_per_token_cast_fp8: x must have an even last dimension, gate beside up, got shape [4, 7]
TypeError: swiglu_per_token_cast_fp8: x must be float32, bfloat16, float16 or float64, got int32
ValueError: swiglu_per_token_cast_fp8: group_size must be a positive int or -1, got 0
TypeError: swiglu_per_token_cast_fp8: dtype must be float8_e4m3fn or float8_e5m2, got int8
ValueError: swiglu_per_token_cast_fp8: limit must be a positive number or None, got -2.0
ValueError: rms_norm_per_token_cast_fp8: weight must have shape [128], got [127]
ValueError: rms_norm_per_token_cast_fp8: x must have at least 1 dimension, got shape []
ValueError: rms_norm_per_token_cast_fp8: eps must be at least 0, got -1.0
ValueError: rms_norm_per_token_cast_fp8: group_size must be a positive int or -1, got -2
TypeError: rms_norm_per_token_cast_fp8: dtype must be float8_e4m3fn or float8_e5m2, got int8
ValueError: add_rms_norm_per_token_cast_fp8: residual must have shape [4, 128], got [3, 128]
TypeError: add_rms_norm_per_token_cast_fp8: residual must be float32 as x is, got float16
ValueError: add_rms_norm_per_token_cast_fp8: weight must have shape [128], got [127]
ValueError: add_rms_norm_per_token_cast_fp8: eps must be at least 0, got -1.0
ValueError: add_rms_norm_per_token_cast_fp8: group_size must be a positive int or -1, got 0
ValueError: rope: x must have at least 3 dimensions, got shape [6, 16]
TypeError: rope: x must be float32, bfloat16, float16 or float64, got int32
TypeError: rope: cos must be float32, bfloat16, float16 or float64, got int32
ValueError: rope: cos must have shape [6, 8] for x [2, 6, 3, 16], which is [.., S, H, D], got [5, 8]
ValueError: rope: cos must have at most half as many columns as x, got [6, 9] for [2, 6, 3, 16]
ValueError: rope: cos must have shape [2, 6, 8] for x [2, 6, 3, 16], which is [.., S, H, D], got [3, 6, 8]
ValueError: rope: cos must have at least 2 dimensions, got shape [8]
ValueError: rope: sin must have shape [6, 8], got [6, 7]
ValueError: rope_bwd: dy must have at least 3 dimensions, got shape [6, 16]
TypeError: rope_bwd: dy must be float32, bfloat16, float16 or float64, got int32
TypeError: rope_bwd: cos must be float32, bfloat16, float16 or float64, got int32
ValueError: rope_bwd: cos must have shape [6, 8] for dy [2, 6, 3, 16], which is [.., S, H, D], got [5, 8]
ValueError: rope_bwd: cos must have at most half as many columns as dy, got [6, 9] for [2, 6, 3, 16]
ValueError: rope_bwd: cos must have shape [2, 6, 8] for dy [2, 6, 3, 16], which is [.., S, H, D], got [3, 6, 8]
ValueError: rope_bwd: cos must have at least 2 dimensions, got shape [8]
ValueError: rope_bwd: sin must have shape [6, 8], got [6, 7]
ValueError: swiglu: up must have shape [4, 6], got [4, 5]
ValueError: swiglu: up must have shape [4, 6], got [6]
TypeError: swiglu: gate must be float32, bfloat16, float16 or float64, got float8_e4m3fn
TypeError: swiglu: up must be float32, bfloat16, float16 or float64, got int32
ValueError: swiglu: limit must be a positive number or None, got -1.0
ValueError: swiglu: limit must be a positive number or None, got 0.0
ValueError: swiglu_bwd: dy must have shape [4, 6], got [4, 5]
ValueError: swiglu_bwd: limit must be a positive number or None, got -1.0
ValueError: swiglu_bwd: limit must be a positive number or None, got 0.0
ValueError: swiglu_packed: x must have an even last dimension, gate beside up, got shape [4, 7]
ValueError: swiglu_packed: x must have at least 1 dimension, got shape []
TypeError: swiglu_packed: x must be float32, bfloat16, float16 or float64, got int32
ValueError: swiglu_packed: limit must be a positive number or None, got -1.0
ValueError: swiglu_packed: limit must be a positive number or None, got 0.0
ValueError: swiglu_packed_bwd: dy must have shape [4, 3], got [4, 6]
ValueError: swiglu_packed_bwd: x must have an even last dimension, gate beside up, got shape [4, 7]
ValueError: swiglu_packed_bwd: limit must be a positive number or None, got -1.0
ValueError: swiglu_packed_bwd: limit must be a positive number or None, got 0.0
ValueError: geglu: up must have shape [4, 6], got [4, 5]
ValueError: geglu: up must have shape [4, 6], got [6]
TypeError: geglu: gate must be float32, bfloat16, float16 or float64, got float8_e4m3fn
TypeError: geglu: up must be float32, bfloat16, float16 or float64, got int32
ValueError: geglu: approximate must be 'none' or 'tanh', got 'erf'
ValueError: geglu_bwd: dy must have shape [4, 6], got [4, 5]
ValueError: geglu_bwd: approximate must be 'none' or 'tanh', got 'erf'
ValueError: geglu_packed: x must have an even last dimension, gate beside up, got shape [4, 7]
ValueError: geglu_packed: x must have at least 1 dimension, got shape []
TypeError: geglu_packed: x must be float32, bfloat16, float16 or float64, got int32
ValueError: geglu_packed: approximate must be 'none' or 'tanh', got 'erf'
ValueError: geglu_packed_bwd: dy must have shape [4, 3], got [4, 6]
ValueError: geglu_packed_bwd: x must have an even last dimension, gate beside up, got shape [4, 7]
ValueError: geglu_packed_bwd: approximate must be 'none' or 'tanh', got 'erf'""",
        )

    def test_schemas_scan_topk_moe_tile(self):
        self.assertExpectedInline(
            schemas("scan", "topk", "moe", "tile"),
            """\
tle::cumsum(Tensor x, int dim=-1, bool reverse=False, ScalarType? dtype=None) -> (Tensor exclusive, Tensor total)
tle::compact(Tensor x, Tensor mask) -> (Tensor packed, Tensor indices, Tensor count)
tle::histogram(Tensor x, int bins) -> Tensor
tle::moe_align(Tensor topk_ids, int num_experts, int block_size) -> (Tensor sorted_ids, Tensor expert_ids, Tensor num_tokens_post_pad)
tle::extract_tile(Tensor x, SymInt[] index, SymInt[] shape) -> Tensor
tle::insert_tile(Tensor x, Tensor tile, SymInt[] index) -> Tensor
tle::topk(Tensor x, SymInt k, int dim=-1, bool largest=True, bool sorted=True) -> (Tensor values, Tensor indices)
tle::topk_selector(Tensor scores, SymInt k, Tensor? starts=None, Tensor? ends=None) -> Tensor
tle::topk_gate(Tensor logits, int k, str scoring="softmax", Tensor? bias=None, int num_groups=1, int topk_groups=1, bool renormalize=True, float scale=1.) -> (Tensor weights, Tensor indices)
tle::topk_gate_bwd(Tensor dweights, Tensor logits, Tensor indices, str scoring, bool renormalize, float scale) -> Tensor""",
        )

    def test_errors_scan_tile(self):
        self.assertExpectedInline(
            messages("scan", "tile"),
            """\
TypeError: cumsum: x must be float32, bfloat16, float16, float64, bool, uint8, int8, int16, int32 or int64, got float8_e4m3fn
TypeError: cumsum: x must be float32, bfloat16, float16, float64, bool, uint8, int8, int16, int32 or int64, got complex64
TypeError: cumsum: dtype must be float32, bfloat16, float16, float64, uint8, int8, int16, int32 or int64, got bool
TypeError: cumsum: dtype must be float32, bfloat16, float16, float64, uint8, int8, int16, int32 or int64, got float8_e4m3fn
ValueError: cumsum: dim must be in [-2, 1], got 2
ValueError: cumsum: dim must be in [-2, 1], got -3
TypeError: compact: x must be float32, bfloat16, float16, float64, bool, uint8, int8, int16, int32 or int64, got float8_e4m3fn
TypeError: compact: mask must be bool, got int32
ValueError: compact: mask must have shape [4, 8], got [4, 7]
ValueError: compact: mask must have shape [4, 8], got [8]
ValueError: compact: x must have at least 1 dimension, got shape []
TypeError: histogram: x must be bool, uint8, int8, int16, int32 or int64, got float32
ValueError: histogram: bins must be a positive int, got 0
ValueError: histogram: x must have at least 1 dimension, got shape []
ValueError: extract_tile: index must have the 2 dimensions of x, got [1]
ValueError: extract_tile: shape must have the 2 dimensions of x, got [4]
ValueError: extract_tile: shape must divide the shape of x, [8, 12], got [3, 3]
ValueError: extract_tile: shape must be positive in every dimension, got [0, 3]
ValueError: extract_tile: index must be in [0, 2) in dimension 0, got [2, 0]
ValueError: extract_tile: index must be in [0, 4) in dimension 1, got [0, -1]
TypeError: insert_tile: tile must be float32, as x, got float16
TypeError: insert_tile: tile must be float32, as x, got float8_e4m3fn
ValueError: insert_tile: index must have the 2 dimensions of x, got [1]
ValueError: insert_tile: tile must have the 2 dimensions of x, got [4]
ValueError: insert_tile: tile must divide the shape of x, [8, 12], got [3, 3]
ValueError: insert_tile: index must be in [0, 2) in dimension 0, got [2, 0]
ValueError: insert_tile: tile must be positive in every dimension, got [4, 0]""",
        )

    def test_errors_topk_moe(self):
        self.assertExpectedInline(
            messages("topk", "moe"),
            """\
TypeError: moe_align: topk_ids must be int32 or int64, got float32
TypeError: moe_align: topk_ids must be int32 or int64, got int16
ValueError: moe_align: num_experts must be a positive int, got 0
ValueError: moe_align: block_size must be a positive int, got 0
TypeError: topk: x must be float32, bfloat16, float16, float64, bool, uint8, int8, int16, int32 or int64, got float8_e4m3fn
ValueError: topk: k must be in [0, 16], the size of dimension 1, got 17
ValueError: topk: k must be in [0, 4], the size of dimension 0, got 5
ValueError: topk: k must be in [0, 16], the size of dimension 1, got -1
ValueError: topk: dim must be in [-2, 1], got 2
ValueError: topk: x must have at least 1 dimension, got shape []
TypeError: topk_selector: scores must be float32, bfloat16, float16, float64, bool, uint8, int8, int16, int32 or int64, got float8_e4m3fn
ValueError: topk_selector: k must not be negative, got -1
TypeError: topk_selector: starts must be int32 or int64, got float32
TypeError: topk_selector: ends must be int32 or int64, got int16
ValueError: topk_selector: ends must have shape [4], got [3]
ValueError: topk_selector: ends must have shape [4], got []
ValueError: topk_selector: scores must have at least 1 dimension, got shape []
TypeError: topk_gate: logits must be float32, bfloat16, float16 or float64, got int32
ValueError: topk_gate: k must be in [1, 16], the number of experts, got 0
ValueError: topk_gate: k must be in [1, 16], the number of experts, got 17
ValueError: topk_gate: k must be in [1, 4], the experts of 1 of 4 groups, got 5
ValueError: topk_gate: scoring must be 'softmax' or 'sigmoid', got 'relu'
ValueError: topk_gate: bias must have shape [16], got [15]
TypeError: topk_gate: bias must be float32, bfloat16, float16 or float64, got int64
ValueError: topk_gate: num_groups must be a positive int, got 0
ValueError: topk_gate: num_groups must divide the 16 experts, got 3
ValueError: topk_gate: topk_groups must be in [1, 4], the number of groups, got 5
ValueError: topk_gate: logits must have at least 1 dimension, got shape []
TypeError: topk_gate_bwd: dweights must be float32, bfloat16, float16 or float64, got int32
TypeError: topk_gate_bwd: indices must be int32, got int64
ValueError: topk_gate_bwd: indices must have shape [4, 2], got [2]
ValueError: topk_gate_bwd: dweights must have shape [4, 2], got [4, 3]""",
        )

    def test_schemas_distributed(self):
        self.assertExpectedInline(
            schemas("distributed"),
            """\
tle::remote(Tensor x, int shard, str group="") -> Tensor
tle::remote_bwd(Tensor dy, int shard, str group="") -> Tensor
tle::remote_put(Tensor x, Tensor value, int shard, str group="") -> (Tensor y, Tensor source)
tle::ring_exchange(Tensor x, int shift=1, str group="") -> Tensor
tle::distributed_barrier(Tensor token, str group="", float timeout=0., str name="") -> Tensor
tle::all_gather_fp8(Tensor x, int group_size=128, ScalarType dtype=24, bool scale_ue8m0=False, str group="") -> (Tensor q, Tensor scales)
tle::reduce_scatter_fp8(Tensor x, int group_size=128, ScalarType dtype=24, bool scale_ue8m0=False, str group="") -> Tensor""",
        )

    def test_errors_distributed(self):
        self.assertExpectedInline(
            messages("distributed"),
            """\
ValueError: remote: group must name a process group of this process, got 'nobody'
ValueError: remote: shard must be in [0, 1), the ranks of the group, got -1
ValueError: remote: shard must be in [0, 1), the ranks of the group, got 1
ValueError: remote_bwd: group must name a process group of this process, got 'nobody'
ValueError: remote_bwd: shard must be in [0, 1), the ranks of the group, got -1
ValueError: remote_bwd: shard must be in [0, 1), the ranks of the group, got 1
TypeError: remote_bwd: dy must be float32, bfloat16, float16 or float64, got int32
ValueError: remote_put: value must have shape [4, 256], got [4, 255]
TypeError: remote_put: value must be float32, as x, got bfloat16
ValueError: remote_put: shard must be in [0, 1), the ranks of the group, got 1
ValueError: remote_put: group must name a process group of this process, got 'nobody'
ValueError: ring_exchange: group must name a process group of this process, got 'nobody'
ValueError: distributed_barrier: group must name a process group of this process, got 'nobody'
ValueError: distributed_barrier: timeout must be seconds, from 0 to 1e+08, got -1.0
ValueError: all_gather_fp8: group_size must be a positive int or -1, got 0
TypeError: all_gather_fp8: x must be float32, bfloat16, float16 or float64, got int32
TypeError: all_gather_fp8: dtype must be float8_e4m3fn or float8_e5m2, got float16
ValueError: all_gather_fp8: x must have at least 2 dimensions, got shape [256]
ValueError: all_gather_fp8: group must name a process group of this process, got 'nobody'
ValueError: reduce_scatter_fp8: group_size must be a positive int or -1, got 0
TypeError: reduce_scatter_fp8: x must be float32, bfloat16, float16 or float64, got int32
TypeError: reduce_scatter_fp8: dtype must be float8_e4m3fn or float8_e5m2, got float16
ValueError: reduce_scatter_fp8: x must have at least 2 dimensions, got shape [256]
ValueError: reduce_scatter_fp8: group must name a process group of this process, got 'nobody'""",
        )
