"""tle.device_mesh: shapes, views, errors, and the mapping of members to processes and blocks. Plain Python."""

import copy
import itertools
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch

import tle_ops.language as tle
from tle_ops.language.mesh import shown

TOPOLOGY = {
    "node": [("node_x", 2), ("node_y", 2)],
    "device": 4,
    "block_cluster": [("cluster_x", 2), ("cluster_y", 2)],
    "block": 4,
}
NAMES = ("node_x", "node_y", "device", "cluster_x", "cluster_y", "block")


@pytest.fixture
def mesh():
    return tle.device_mesh(topology=TOPOLOGY)


def test_a_mesh_of_256(mesh):
    assert mesh.shape == mesh.launch_shape == (2, 2, 4, 2, 2, 4)
    assert (mesh.ndim, mesh.size) == (6, 256)
    assert mesh.dim_names == mesh.launch_dim_names == NAMES
    assert mesh.dim_kinds == ("process",) * 3 + ("cluster",) * 2 + ("block",)
    assert mesh.physical_ids == tuple(range(256))
    assert repr(mesh) == str(mesh) == f"DeviceMesh(shape=(2, 2, 4, 2, 2, 4), names={NAMES})"
    assert mesh.ranks == mesh.blocks == tuple(range(16))
    assert (mesh.launch_size("process"), mesh.launch_size("cluster"), mesh.launch_size("block")) == (16, 4, 4)


@pytest.mark.parametrize(
    "key",
    [
        0,
        -1,
        (1, slice(None), 2),
        (slice(None), 1),
        (Ellipsis, 3),
        (0, Ellipsis, slice(1, 3)),
        Ellipsis,
        (slice(None, None, -1), 0, slice(0, 4, 2)),
        (1, 1, 3, 1, 1, 3),
        (1, 1, 3, 1, 1, 3, Ellipsis),
        (slice(-1, None), Ellipsis, slice(None, 100)),
    ],
    ids=str,
)
def test_a_slice_has_the_members_that_numpy_gives(mesh, key):
    want = np.arange(256).reshape(mesh.shape)[key]
    part = mesh[key]
    assert part.shape == want.shape
    assert part.physical_ids == tuple(want.flatten().tolist())
    assert part.launch_shape == mesh.shape
    assert part.size == want.size
    again = part.reshape(1, part.size)[0]
    assert again.physical_ids == part.physical_ids


def test_a_slice_keeps_the_names_of_its_axes(mesh):
    part = mesh[1, :, 2]
    assert part.dim_names == ("node_y", "cluster_x", "cluster_y", "block")
    assert part[:, 0, 1].dim_names == ("node_y", "block")
    assert part.launch_dim_names == NAMES


def test_flatten_and_reshape(mesh):
    flat = mesh.flatten()
    assert (flat.shape, flat.dim_names, flat.physical_ids) == ((256,), ("flat",), tuple(range(256)))
    assert flat.dim_kinds == (None,)
    pair = mesh.reshape(16, 16)
    assert (pair.dim_names, pair.dim_kinds) == (("dim0", "dim1"), ("process", "block"))
    assert mesh.reshape([4, 4, 4, 4]).dim_kinds == ("process", "process", "cluster", "block")
    assert mesh.reshape(8, 32).dim_kinds == ("process", None)
    assert mesh.reshape(16, 2, 8).dim_kinds == ("process", "cluster", "block")
    assert mesh.reshape(4, 1, 4, 2, 2, 4).dim_names == NAMES
    assert mesh[0, 0, 0, 0, 0, 0].flatten().dim_kinds == ("process",)
    devices = tle.device_mesh({"node": 2, "device": 4})
    assert devices.flatten().dim_kinds == ("process",)
    assert devices[:, ::2].flatten().ranks == (0, 2, 4, 6)


def test_a_message_shows_no_elements_of_a_tensor():
    assert shown(torch.zeros(300, 2)) == "a tensor of float32 [300, 2]"
    assert shown((1, torch.ones(1, dtype=torch.int64))) == "[1, a tensor of int64 [1]]"


def test_a_name_that_a_reshape_left_names_no_axis_of_the_whole(mesh):
    devices = tle.device_mesh({"node": 2, "device": 4})
    for name in ("node", "device"):
        assert devices.reshape(2, 4).launch_place(name, has_context=True) == devices.launch_place(
            name, has_context=True
        )
        with pytest.raises(ValueError, match=f"shard_id: axis '{name}' must be that of the whole mesh"):
            devices.reshape(4, 2).launch_place(name, has_context=True)
    for part in (devices[1], devices[:, 1:3], devices[::-1, ::2], devices[0, 2], mesh[1, :, 2]):
        for name in part.launch_dim_names:
            part.launch_place(name, has_context=True)  # of slices, as of the whole


def test_members_are_processes_and_blocks(mesh):
    part = mesh[1, :, 2, 0, 1, ::3]
    assert part.ranks == (10, 14)
    assert part.blocks == (4, 7)
    for rank in range(16):
        x, y, device = mesh.coordinate_of(rank)
        assert mesh.rank_of((x, y, device)) == mesh.rank_of(rank) == rank
        assert mesh[x, y, device].ranks == (rank,)
    assert part.rank_of(1) == part.rank_of((1,)) == 14
    assert mesh[:, 0, ::-1].rank_of((1, 0)) == 11


def test_blocks_before_processes_in_a_topology():
    mesh = tle.device_mesh({"block": 2, "device": 3})
    assert mesh[0].ranks == mesh[1].ranks == mesh.ranks == (0, 1, 2)
    assert mesh[:, 1].blocks == (0, 1)
    assert mesh[:, 1].ranks == (1,)


def test_ranks_at_run_time_are_affine(mesh):
    for part in (mesh, mesh[1], mesh[:, 1, ::-2], mesh[..., 0], mesh[1, 1, 3], mesh.reshape(4, 4, 16)[::2, 1:, 3:5]):
        offset, strides = part.affine_ranks()
        for c in itertools.product(*map(range, part.process_shape)):
            assert part.rank_of(c) == offset + sum(i * s for i, s in zip(c, strides, strict=True))
    uneven = tle.device_mesh({"node": 2, "device": 4})[:, :3].flatten()
    assert uneven.ranks == (0, 1, 2, 4, 5, 6)
    with pytest.raises(ValueError, match="not evenly spaced"):
        uneven.affine_ranks()


def test_meshes_are_equal_hash_and_read_alike(mesh):
    """Triton tells constants apart by their text, so it must differ where the meshes do."""
    views = [
        *(mesh[i] for i in (0, 1)),
        mesh,
        mesh[0].reshape(8, 16),
        mesh.flatten(),
        mesh[0, 0],
        mesh[1, 0],
        tle.device_mesh({"node": 8})[:4],
        tle.device_mesh({"node": [("node", 4)]}),
        tle.device_mesh({"block": [("node", 4)]}),
        tle.device_mesh({"node": [("block", 4)]}),
    ]
    for a, b in itertools.product(views, views):
        assert (a == b) == (a is b) == (repr(a) == repr(b))
        assert a is not b or hash(a) == hash(b)
    for view in views:
        for other in (copy.deepcopy(view), pickle.loads(pickle.dumps(view))):
            assert (other, hash(other), repr(other)) == (view, hash(view), repr(view))
    assert mesh == tle.device_mesh(TOPOLOGY)
    assert mesh[:] == mesh
    assert mesh != "mesh"


@pytest.mark.parametrize(
    "topology, error, text",
    [
        ("2", TypeError, "topology must be a mapping of levels, got '2'"),
        ([("node", 2)], TypeError, r"got \[\['node', 2\]\]"),
        ({"node": 1 << 13, "device": 1 << 12}, ValueError, "a mesh must have at most 16777216 members, got 33554432"),
        ({}, ValueError, "topology must have a level"),
        ({"node": []}, ValueError, "level 'node' must have an axis"),
        ({"node": 0}, ValueError, "the size of axis 'node' must be positive, got 0"),
        ({"node": -2}, ValueError, "must be positive, got -2"),
        ({"node": "2"}, TypeError, "level 'node' must be an int or a list of"),
        ({"node": 2.0}, TypeError, "level 'node' must be an int or a list of"),
        ({"node": True}, TypeError, "level 'node' must be an int or a list of"),
        ({"node": [("x", "2")]}, TypeError, "the size of axis 'x' must be an int, got '2'"),
        ({"node": [("x", True)]}, TypeError, "the size of axis 'x' must be an int, got True"),
        ({"node": [("x", 2, 3)]}, ValueError, "an axis of level 'node' must be"),
        ({"node": ["x"]}, ValueError, "an axis of level 'node' must be"),
        ({"node": [("", 2)]}, ValueError, "an axis of level 'node' must be"),
        ({"node": [(1, 2)]}, ValueError, "an axis of level 'node' must be"),
        ({"": 2}, ValueError, "a level must have a name"),
        ({3: 2}, ValueError, "a level must have a name"),
        ({"node": [("x", 2)], "device": [("x", 2)]}, ValueError, "axis names must be unique"),
    ],
)
def test_topology_errors(topology, error, text):
    with pytest.raises(error, match=f"device_mesh: .*{text}"):
        tle.device_mesh(topology)


@pytest.mark.parametrize(
    "use, error, text",
    [
        (lambda m: m["node"], TypeError, "an index must be an int, a slice or an ellipsis, got 'node'"),
        (lambda m: m[True], TypeError, "an index must be"),
        (lambda m: m[1.0], TypeError, "an index must be"),
        (lambda m: m["a":"b"], TypeError, "a slice must be of ints"),
        (lambda m: m[2], IndexError, "index must be in \\[-2, 2\\), got 2"),
        (lambda m: m[0, -5], IndexError, "index must be in \\[-4, 4\\), got -5"),
        (lambda m: m[0, 0, 0], IndexError, "at most 2 indices are allowed, got 3"),
        (lambda m: m[..., ...], IndexError, "at most one ellipsis"),
        (lambda m: m[1:1], ValueError, "a sub-mesh must have members"),
        (lambda m: m.reshape(3, 3), ValueError, "reshape of 8 members must have as many, got"),
        (lambda m: m.reshape(), ValueError, "reshape of 8 members"),
        (lambda m: m.reshape(-2, -4), ValueError, "reshape of 8 members"),
        (lambda m: m.reshape(8.0), TypeError, r"reshape must be to ints, got \[8.0\]"),
        (lambda m: m[::0], ValueError, "the step of a slice must not be 0"),
        (lambda m: m.coordinate_of(0.5), TypeError, "rank must be an int, got 0.5"),
        (lambda m: m.reshape(True, 8), TypeError, "reshape must be to ints"),
        (lambda m: m.rank_of((0,)), ValueError, "shard_id must have the 2 process axes"),
        (lambda m: m.rank_of((0, 4)), ValueError, "shard_id must be within \\(2, 4\\), got \\(0, 4\\)"),
        (lambda m: m.rank_of(-1), ValueError, "shard_id must be within"),
        (lambda m: m.rank_of("0"), TypeError, "shard_id must be an int or a tuple of ints"),
        (lambda m: m.rank_of((0, 1.5)), TypeError, "shard_id must be an int or a tuple of ints"),
        (lambda m: m.coordinate_of(8), ValueError, "rank must be in \\[0, 8\\), got 8"),
        (lambda m: tle.device_mesh({"node": 2, "block": 2}).flatten().process_shape, ValueError, "mixes"),
    ],
)
def test_errors_of_use(use, error, text):
    with pytest.raises(error, match=f"device_mesh: .*{text}"):
        use(tle.device_mesh({"node": 2, "device": 4}))


def test_the_host_side_needs_no_triton():
    code = """if True:
        import sys
        sys.modules["triton"] = None
        import tle_ops.language as tle
        mesh = tle.device_mesh({"node": 2, "device": 4})
        spec = tle.sharding(mesh, split=["device"])
        context = tle.device_context(0, [16], [16], tle.signal_count(1, 1), "cpu")
        print(mesh, spec.axis_state("node"), tle.make_sharded_tensor(context, spec, [8]).shape)
        try:
            tle.load
        except ImportError as e:
            print(e)
        from tle_ops.language import *
        print(device_mesh is tle.device_mesh, device_context is tle.device_context, "load" in dir())
        try:
            tle.nothing
        except AttributeError as e:
            print(e)"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True).stdout
    assert out.splitlines() == [
        "DeviceMesh(shape=(2, 4), names=('node', 'device')) B (8,)",
        "tle_ops.language.load needs Triton, which is not installed: pip install triton",
        "True True False",
        "module 'tle_ops.language' has no attribute 'nothing'",
    ]


def test_every_name_is_found():
    for name in tle.__all__:
        assert callable(getattr(tle, name)) or name in ("B", "gpu")
    assert dir(tle) == tle.__all__
