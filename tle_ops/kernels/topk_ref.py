"""Selection in plain PyTorch: the definition of each op, and its CPU kernel. No step waits for the device.

Every op takes the first k of a stable sort: values compare as numbers, except that every NaN is greater than +inf and
equal to any other NaN, -0.0 == 0.0, and equal values keep their order. `_keys` maps values to integers of that order.
For values of up to 32 bits, key and column fit one int64 without ties, so any top-k of PyTorch gives the one answer.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from tle_ops.kernels.scan_ref import bits, dense

LOWEST = torch.iinfo(torch.int64).min
COLUMN = 2**32 - 1  # the bits of the column in a packed key
SUM_FLOOR = 1e-20  # added to a sum of weights that may be 0, as DeepSeek-V3 does


def topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Tensor, Tensor]:
    x = x.movedim(dim, -1)
    columns = _first(x, k, largest)
    if not sorted:
        columns = columns.sort(-1).values
    values = bits(x).gather(-1, columns).view(x.dtype)
    return dense(values.movedim(-1, dim)), dense(columns.movedim(-1, dim))


def topk_selector(scores: Tensor, k: int, starts: Tensor | None = None, ends: Tensor | None = None) -> Tensor:
    N = scores.shape[-1]
    n = min(k, N)
    size = scores.shape[:-1]
    start = torch.zeros(size, dtype=torch.int64, device=scores.device) if starts is None else starts
    end = torch.full(size, N, dtype=torch.int64, device=scores.device) if ends is None else ends
    start, end = start.clamp(0, N).long()[..., None], end.clamp(0, N).long()[..., None]  # [.., 1]
    at = torch.arange(N, device=scores.device)
    inside = (at >= start) & (at < end)  # [.., N]
    columns = _first(scores, n, where=inside)  # [.., n], those inside first
    chosen = at[:n] < end - start
    columns = torch.where(chosen, columns, N).sort(-1).values
    columns = columns.masked_fill(columns == N, -1).int()
    return F.pad(columns, (0, k - n), value=-1)


def topk_gate(
    logits: Tensor,
    k: int,
    scoring: str = "softmax",
    bias: Tensor | None = None,
    num_groups: int = 1,
    topk_groups: int = 1,
    renormalize: bool = True,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    # Contiguous: torch's sums have another order in another layout.
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32)).contiguous()
    scores = _scores(wide, scoring)  # [.., E]
    # Without a bias the logits have the order of the scores, free of the ties that rounding makes.
    choice = wide if bias is None else scores + bias.to(wide.dtype)
    open_ = None
    if topk_groups < num_groups:
        ranked = scores if bias is None else choice
        groups = ranked.unflatten(-1, (num_groups, -1))  # [.., groups, experts of one]
        best = groups.gather(-1, _first(groups, min(2, groups.shape[-1])))
        kept = _first(best.sum(-1), topk_groups)  # [.., topk_groups]
        open_ = torch.zeros_like(groups[..., 0], dtype=torch.bool).scatter_(-1, kept, True)
        open_ = open_[..., None].expand(groups.shape).flatten(-2)  # [.., E]
    columns = _first(choice, k, where=open_)
    weights = scores.gather(-1, columns)
    if renormalize:
        weights = weights / (weights.sum(-1, keepdim=True) + SUM_FLOOR)
    return dense((weights * scale).float()), dense(columns.int())


def topk_gate_bwd(
    dweights: Tensor, logits: Tensor, indices: Tensor, scoring: str, renormalize: bool, scale: float
) -> Tensor:
    wide = torch.promote_types(torch.promote_types(logits.dtype, dweights.dtype), torch.float32)
    scores = _scores(logits.to(wide).contiguous(), scoring)  # [.., E]
    columns = indices.long()
    chosen = scores.gather(-1, columns)  # [.., k]
    dchosen = dweights.to(wide).contiguous() * scale
    if renormalize:
        total = chosen.sum(-1, keepdim=True) + SUM_FLOOR
        dchosen = (dchosen - (dchosen * chosen).sum(-1, keepdim=True) / total) / total
    dscores = torch.zeros_like(scores).scatter_(-1, columns, dchosen)
    if scoring == "softmax":
        dlogits = scores * (dscores - (dscores * scores).sum(-1, keepdim=True))
    else:
        dlogits = dscores * scores * (1 - scores)
    return dense(dlogits.to(logits.dtype))


def _scores(logits: Tensor, scoring: str) -> Tensor:
    if scoring == "softmax":
        return logits.softmax(-1)
    # In float64: torch's vectorised float32 sigmoid and the one at the end of a tensor differ in the last bit.
    return logits.double().sigmoid().to(logits.dtype)


def _first(x: Tensor, k: int, largest: bool = True, where: Tensor | None = None) -> Tensor:
    """[.., N] -> the columns [.., k] of the k greatest (least) values, in the order of a stable sort. Columns that
    `where` excludes come last."""
    keys = _keys(x)
    N = x.shape[-1]
    if keys.dtype == torch.int64:  # no room for the column: a stable sort
        columns = keys.sort(dim=-1, descending=largest, stable=True).indices
        if where is not None:
            last = ~where.gather(-1, columns)
            columns = columns.gather(-1, last.byte().sort(dim=-1, stable=True).indices)
        return columns[..., :k]
    at = torch.arange(N, device=x.device)
    packed = (keys.long() << 32) | (COLUMN - at if largest else at)
    if where is not None:
        packed = packed.masked_fill(~where, LOWEST)  # below any key, since no column number has all its bits set
    found = packed.topk(k, -1, largest=largest).values & COLUMN
    # Excluded columns may come out as numbers beyond the row: keep gather safe, callers drop them.
    return (COLUMN - found if largest else found).clamp_max(N - 1)


def _keys(x: Tensor) -> Tensor:
    """Signed integers of x's width whose order is that of the values: every NaN the greatest, -0.0 equal to 0.0."""
    if x.dtype == torch.bool:
        return x.byte()
    if not x.dtype.is_floating_point:
        return x
    keys = bits(x)
    limits = torch.iinfo(keys.dtype)
    keys = keys.masked_fill(keys == limits.min, 0)  # -0.0
    keys = keys ^ ((keys >> (limits.bits - 1)) & limits.max)  # negative numbers: the greater magnitude is less
    return keys.masked_fill(x.isnan(), limits.max)
