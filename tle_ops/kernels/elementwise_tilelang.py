"""Elementwise ops in TileLang: one flat pass over contiguous elements, 16 bytes per access."""

import tilelang.language as T
import torch
from torch import Tensor

from tle_ops import _meta
from tle_ops.kernels._tilelang import DTYPE, Kernel

THREADS = 256


def add(x: Tensor, y: Tensor) -> Tensor:
    return add_thread_vec(x, y)


# Three ways to write the same addition; on large tensors the second and third run at copy speed.
def add_flat(x: Tensor, y: Tensor) -> Tensor:
    """One element per thread: accesses as narrow as the dtype."""
    return _add(add_flat_kernel, x, y)


def add_thread_vec(x: Tensor, y: Tensor) -> Tensor:
    """16 consecutive bytes per thread and step, held in registers that the kernel names."""
    return _add(add_thread_vec_kernel, x, y)


def add_register_vec(x: Tensor, y: Tensor) -> Tensor:
    """Tiles copied to fragments, added there and copied back; TileLang lays the fragments out over the threads."""
    return _add(add_register_vec_kernel, x, y)


def _add(kernel: Kernel, x: Tensor, y: Tensor) -> Tensor:
    out = _meta.add(x, y)
    if not out.numel():
        return out
    x, y = _operand(x, out), _operand(y, out)
    vector = 1 if (x.data_ptr() | y.data_ptr()) % 16 else 16 // x.element_size()
    launch = kernel(x.device, x.dtype, vector)
    if x.dtype is torch.bool:  # TileLang has no vectors of bool
        launch(x.view(torch.uint8).view(-1), y.view(torch.uint8).view(-1), out.view(torch.uint8).view(-1))
    else:
        launch(x.view(-1), y.view(-1), out.view(-1))
    return out


def _operand(x: Tensor, out: Tensor) -> Tensor:
    """x in the shape and dtype of the sum, contiguous: a copy unless it is so already."""
    if x.dtype != out.dtype:
        x = x.to(out.dtype)
    if x.shape != out.shape:
        x = x.expand(out.shape)
    return x.contiguous()


def _sum(x, y, dtype: torch.dtype):
    """x + y as PyTorch has it: 16-bit floats in float32, bool as `or`; integers wrap."""
    if dtype in (torch.bfloat16, torch.float16):
        return T.cast(T.cast(x, "float32") + T.cast(y, "float32"), DTYPE[dtype])
    return x | y if dtype is torch.bool else x + y


@Kernel
def add_flat_kernel(dtype: torch.dtype, vector: int):
    N = T.dynamic("N", "int64")
    storage = DTYPE[dtype]

    @T.prim_func
    def add_flat(X: T.Tensor((N,), storage), Y: T.Tensor((N,), storage), Z: T.Tensor((N,), storage)):
        with T.Kernel(T.ceildiv(N, THREADS), threads=THREADS) as bx:
            i = T.cast(bx, "int64") * THREADS + T.get_thread_binding()
            if i < N:
                Z[i] = _sum(X[i], Y[i], dtype)

    return add_flat


@Kernel
def add_thread_vec_kernel(dtype: torch.dtype, vector: int, steps: int = 2):
    N = T.dynamic("N", "int64")
    storage = DTYPE[dtype]
    block = steps * THREADS * vector

    @T.prim_func
    def add_thread_vec(X: T.Tensor((N,), storage), Y: T.Tensor((N,), storage), Z: T.Tensor((N,), storage)):
        with T.Kernel(T.ceildiv(N, block), threads=THREADS) as bx:
            t = T.get_thread_binding()
            start = T.cast(bx, "int64") * block
            x = T.alloc_local((steps, vector), storage)
            y = T.alloc_local((steps, vector), storage)
            if start + block <= N:
                for k in T.unroll(steps):  # all loads are under way before the first is used
                    for j in T.vectorized(vector):
                        x[k, j] = X[start + (k * THREADS + t) * vector + j]
                    for j in T.vectorized(vector):
                        y[k, j] = Y[start + (k * THREADS + t) * vector + j]
                for k in T.unroll(steps):
                    for j in T.vectorized(vector):
                        Z[start + (k * THREADS + t) * vector + j] = _sum(x[k, j], y[k, j], dtype)
            else:
                for k in T.serial(steps * vector):  # the last block, element by element
                    i = start + k * THREADS + t
                    if i < N:
                        Z[i] = _sum(X[i], Y[i], dtype)

    return add_thread_vec


@Kernel
def add_register_vec_kernel(dtype: torch.dtype, vector: int, steps: int = 2):
    N = T.dynamic("N", "int64")
    storage = DTYPE[dtype]
    block = steps * THREADS * vector

    @T.prim_func
    def add_register_vec(X: T.Tensor((N,), storage), Y: T.Tensor((N,), storage), Z: T.Tensor((N,), storage)):
        with T.Kernel(T.ceildiv(N, block), threads=THREADS) as bx:
            start = T.cast(bx, "int64") * block
            if start + block <= N:
                x = T.alloc_fragment((block,), storage)
                y = T.alloc_fragment((block,), storage)
                T.copy(X[start : start + block], x)
                T.copy(Y[start : start + block], y)
                for i in T.Parallel(block):
                    x[i] = _sum(x[i], y[i], dtype)
                T.copy(x, Z[start : start + block])
            else:
                for i in T.Parallel(block):
                    if start + i < N:
                        Z[start + i] = _sum(X[start + i], Y[start + i], dtype)

    return add_register_vec


def scale_cast(x: Tensor, alpha: float, dtype: torch.dtype) -> Tensor:
    out = _meta.scale_cast(x, alpha, dtype)
    if out.numel():
        x = x.contiguous()
        vector = 8 if x.data_ptr() % 16 == 0 else 1
        scale_cast_kernel(x.device, x.dtype, dtype, vector)(x.view(-1), alpha, out.view(-1))
    return out


@Kernel
def scale_cast_kernel(dtype: torch.dtype, out_dtype: torch.dtype, vector: int, steps: int = 2):
    N = T.dynamic("N", "int64")
    dtype, out_dtype = DTYPE[dtype], DTYPE[out_dtype]
    block = steps * THREADS * vector

    @T.prim_func
    def scale_cast(X: T.Tensor((N,), dtype), alpha: T.float32, Y: T.Tensor((N,), out_dtype)):
        with T.Kernel(T.ceildiv(N, block), threads=THREADS) as bx:
            t = T.get_thread_binding()
            start = T.cast(bx, "int64") * block
            x = T.alloc_local((steps, vector), dtype)
            wide = T.alloc_local((vector,), "float32")
            y = T.alloc_local((vector,), out_dtype)
            if start + block <= N:
                for k in T.unroll(steps):  # all loads are under way before the first is used
                    for j in T.vectorized(vector):
                        x[k, j] = X[start + (k * THREADS + t) * vector + j]
                for k in T.unroll(steps):
                    for j in T.vectorized(vector):
                        wide[j] = T.cast(x[k, j], "float32") * alpha
                    for j in T.vectorized(vector):
                        y[j] = T.cast(wide[j], out_dtype)
                    for j in T.vectorized(vector):
                        Y[start + (k * THREADS + t) * vector + j] = y[j]
            else:
                for k in T.serial(steps * vector):  # the last block, element by element
                    i = start + k * THREADS + t
                    if i < N:
                        Y[i] = T.cast(T.cast(X[i], "float32") * alpha, out_dtype)

    return scale_cast
