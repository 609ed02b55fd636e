"""tle.sharding and tle.make_sharded_tensor on the host."""

import copy
import pickle

import pytest
import torch

import tle_ops.language as tle

MESH = tle.device_mesh(
    {"node": 2, "device": 4, "block_cluster": [("cluster_x", 2), ("cluster_y", 2)], "block": 4},
)

HANDLE = torch.ones(1)


def test_split_and_partial():
    spec = tle.sharding(MESH, split=[["cluster_x", "cluster_y"], "device"], partial=["block"])
    assert spec.mesh is MESH
    assert spec.split == (("cluster_x", "cluster_y"), ("device",))
    assert spec.partial == ("block",)
    assert spec.broadcast == ("node",)
    states = {name: spec.axis_state(name) for name in MESH.dim_names}
    assert states == {"node": "B", "device": "S", "cluster_x": "S", "cluster_y": "S", "block": "P"}
    x = tle.make_sharded_tensor(HANDLE, sharding=spec, shape=[4, 4])
    assert (x.handle, x.sharding, x.shape) == (HANDLE, spec, (4, 4))


def test_entries_in_every_form():
    spec = tle.sharding(MESH, [tle.S("device"), tle.B, None, [tle.S("node")], []], [tle.P("block"), "cluster_y"])
    assert spec.split == (("device",), (), (), ("node",), ())
    assert spec.partial == ("cluster_y", "block")  # in the order of the mesh
    assert spec.broadcast == ("cluster_x",)
    nothing = tle.sharding(MESH)
    assert (nothing.split, nothing.partial, nothing.broadcast) == (None, (), MESH.dim_names)
    assert tle.make_sharded_tensor(HANDLE, nothing, [2, 3]).shape == (2, 3)
    assert tle.make_sharded_tensor(HANDLE, spec).shape is None


def test_specs_are_constants():
    a, b = (tle.sharding(MESH, ["device"], ["node"]) for _ in range(2))
    other = tle.sharding(MESH[0], ["device"])
    assert (a, hash(a), repr(a)) == (b, hash(b), repr(b))
    assert a != other
    assert repr(a) != repr(other)
    assert a != "a"
    assert {copy.deepcopy(a), pickle.loads(pickle.dumps(a))} == {a}
    assert copy.deepcopy(tle.B) is pickle.loads(pickle.dumps(tle.B)) is tle.B
    assert (repr(tle.B), tle.S("x"), hash(tle.P("x"))) == ("B", tle.S("x"), hash(tle.P("x")))
    with pytest.raises(AttributeError, match="a spec does not change"):
        a.partial = ()
    with pytest.raises(AttributeError, match="a spec does not change"):
        del a.partial
    with pytest.raises(AttributeError):
        tle.make_sharded_tensor(HANDLE, a).shape = (3,)


@pytest.mark.parametrize(
    "args, error, text",
    [
        (("mesh", []), TypeError, "mesh must be a device_mesh, got 'mesh'"),
        ((MESH, "device"), TypeError, "split must be a list, got 'device'"),
        ((MESH, [3]), TypeError, "split must hold axis names or S\\(name\\), got 3"),
        ((MESH, [tle.P("device")]), TypeError, "split must hold axis names or S\\(name\\), got P\\(axis='device'\\)"),
        ((MESH, [[["device"]]]), TypeError, "split must hold axis names"),
        ((MESH, [""]), ValueError, "split must hold axis names, got an empty one"),
        ((MESH, ["rack"]), ValueError, "split must name axes of .*, got 'rack'"),
        ((MESH, ["device", "device"]), ValueError, "split must use an axis once, got \\('device', 'device'\\)"),
        ((MESH, [["device", "device"]]), ValueError, "split must use an axis once"),
        ((MESH, [], "block"), TypeError, "partial must be a list, got 'block'"),
        ((MESH, [], [tle.S("block")]), TypeError, "partial must hold axis names or P\\(name\\), got S"),
        ((MESH, [], [tle.B]), TypeError, "partial must hold axis names or P\\(name\\), got B"),
        ((MESH, [], ""), TypeError, "partial must be a list, got ''"),
        ((MESH, [], 0), TypeError, "partial must be a list, got 0"),
        ((MESH, [], [""]), ValueError, "partial must hold axis names, got an empty one"),
        ((MESH, [], ["rack"]), ValueError, "partial must name axes of .*, got 'rack'"),
        ((MESH, [], ["block", "block"]), ValueError, "partial must use an axis once"),
        ((MESH, ["device"], ["device"]), ValueError, "either split or partial, got both for \\['device'\\]"),
    ],
)
def test_errors_of_sharding(args, error, text):
    with pytest.raises(error, match=f"sharding: .*{text}"):
        tle.sharding(*args)


@pytest.mark.parametrize(
    "sharding, shape, error, text",
    [
        ("S", [4], TypeError, "sharding must be a ShardingSpec, got 'S'"),
        (None, [4], TypeError, "sharding must be a ShardingSpec, got None"),
        (tle.sharding(MESH, ["device"]), 4, TypeError, "shape must be a list of ints, got 4"),
        (tle.sharding(MESH, ["device"]), ["4"], TypeError, "shape must be a list of ints"),
        (tle.sharding(MESH, ["device"]), "4", TypeError, "shape must be a list of ints, got '4'"),
        (tle.sharding(MESH, ["device"]), [True], TypeError, "shape must be a list of ints"),
        (tle.sharding(MESH, ["device"]), [0], ValueError, "shape must be positive, got \\[0\\]"),
        (tle.sharding(MESH, ["device"]), [4, 4], ValueError, "shape must have the 1 dimensions of the sharding"),
    ],
)
def test_errors_of_make_sharded_tensor(sharding, shape, error, text):
    with pytest.raises(error, match=f"make_sharded_tensor: {text}"):
        tle.make_sharded_tensor(HANDLE, sharding, shape)


@pytest.mark.parametrize("handle", ["hello", None, 3, [1.0], torch.float32, torch.Tensor, tle.sharding(MESH)])
def test_a_handle_is_a_tensor(handle):
    with pytest.raises(TypeError, match="make_sharded_tensor: handle must be a tensor, or pointers in a kernel, got "):
        tle.make_sharded_tensor(handle, tle.sharding(MESH))


def test_errors_of_axis_state():
    with pytest.raises(ValueError, match=r"sharding: axis must be one of .*, got 'rack'"):
        tle.sharding(MESH).axis_state("rack")
