"""Names what an op lacks: a row in the tables, a spec, a public function, a docstring. (A benchmark: test_bench.py.)"""

import importlib
import inspect
import pkgutil
import sys

import pytest

import tle_ops
import tle_ops.kernels
from tests.test_ops import SPECS
from tle_ops import _dispatch, _meta, autograd
from tle_ops.distributed.rules import NOT_ON_DTENSORS, RULES
from tle_ops.kernels import CPU, CUDA

OPS = sorted(_meta.CONTRACTS)
PUBLIC = [op for op in OPS if not op.endswith("_bwd")]


@pytest.mark.parametrize("op", OPS)
def test_has_kernels(op):
    assert op in CPU
    assert op in CUDA
    assert "ref" in _dispatch.backends(op)


@pytest.mark.parametrize("op", OPS)
def test_has_a_spec(op):
    assert op in {s.name for s in SPECS}


@pytest.mark.parametrize("op", PUBLIC)
def test_has_a_documented_public_function(op):
    function = getattr(tle_ops, op)
    assert op in tle_ops.__all__
    doc = inspect.getdoc(function)
    for part in ("Args:", "Returns:", "Raises:", "ifferentiable"):
        assert part in doc, f"{op}: the docstring lacks {part!r}"
    contract = inspect.signature(_meta.CONTRACTS[op].fn).parameters
    public = inspect.signature(function).parameters
    assert list(public) == list(contract)
    assert all(p.annotation is not inspect.Parameter.empty for p in public.values())
    for name, p in contract.items():
        if p.default is not inspect.Parameter.empty:
            assert public[name].default == p.default


def test_tables_name_operators():
    """An op that a table names and no imported contract defines would not exist, and nothing would say so."""
    assert set(CPU) == set(CUDA) == set(OPS)


@pytest.mark.parametrize("module", sorted(m.name for m in pkgutil.iter_modules(_meta.__path__)))
def test_contracts_are_imported(module):
    assert f"tle_ops._meta.{module}" in sys.modules, f"_meta/__init__.py does not import {module}"


@pytest.mark.parametrize("module", sorted(m.name for m in pkgutil.iter_modules(autograd.__path__)))
def test_gradients_are_merged(module):
    found = importlib.import_module(f"tle_ops.autograd.{module}")
    for table in ("FORMULAS", "VMAP"):
        missing = getattr(found, table, {}).keys() - getattr(autograd, table).keys()
        assert not missing, f"autograd/__init__.py does not merge {table} of {module}: {missing}"


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.name)
def test_gradient_and_spec_agree(spec):
    assert not spec.diff or spec.name in autograd.FORMULAS, f"{spec.name}: the spec has `diff`, autograd has no formula"


@pytest.mark.parametrize("op", OPS)
def test_has_a_sharding_rule(op):
    assert (op in RULES) != (op in NOT_ON_DTENSORS), f"{op} has no sharding rule in tle_ops/distributed/rules.py"


def test_every_kernel_module_defines_an_op():
    """No module of kernels that no table and no `tle_ops.backend` leads to; what modules share starts with "_"."""
    for module in pkgutil.iter_modules(tle_ops.kernels.__path__):
        if not module.name.startswith("_"):
            assert _dispatch._exports(module.name), module.name
