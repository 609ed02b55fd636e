"""Kernels of the tests with several processes. Imported in these alone: there Triton must know beforehand that it
interprets."""

import triton
import triton.language as tl

import tle_ops.language as tle


@triton.jit
def meeting(x_ptr, context, out_ptr, place, value, part: tl.constexpr):
    """Write a value, wait for the members of a mesh of one axis, read the next one's, wait."""
    tl.store(x_ptr, value)
    tle.distributed_barrier(part, context)
    tl.store(out_ptr, tl.load(tle.remote(x_ptr, (place + 1) % part.shape[0], part, context)))
    tle.distributed_barrier(part, context)


@triton.jit
def impatient(context, out_ptr, mesh: tl.constexpr, POLLS: tl.constexpr):
    tl.store(out_ptr, tle.distributed_barrier(mesh, context, polls=POLLS))
