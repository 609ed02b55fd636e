"""What is shipped: the wheel, built from the source distribution, works where the sources are not beside it."""

import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile

import pytest
import torch

import tle_ops

ROOT = pathlib.Path(__file__).parents[1]
USE = """if True:
    import importlib.metadata, importlib.resources, pathlib, sys
    import torch, tle_ops
    assert pathlib.Path(tle_ops.__file__).is_relative_to(sys.prefix), tle_ops.__file__
    assert importlib.metadata.version("tle-ops") == tle_ops.__version__
    assert importlib.resources.files("tle_ops").joinpath("py.typed").is_file()
    x = torch.randn(4, 256)
    for name in tle_ops.__all__:
        assert callable(getattr(tle_ops, name)), name
    q, s = torch.compile(tle_ops.per_token_cast_fp8, fullgraph=True, backend="aot_eager")(x)
    assert (tle_ops.per_token_cast_back(q, s, dtype=torch.float32) - x).abs().max() < 0.2
    print(len(tle_ops.__all__), tle_ops.explain("rms_norm", x, device="cuda"))"""


def call(*command: object, cwd: pathlib.Path) -> str:
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin"},  # no PYTHONPATH
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def copy_sources(to: pathlib.Path) -> pathlib.Path:
    to.mkdir()
    for name in ("tle_ops", "setup.py", "pyproject.toml", "README.md", "LICENSE"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, to / name)
    return to


def environment(folder: pathlib.Path) -> pathlib.Path:
    """Its Python. PyTorch and setuptools are those of this environment, by a plain path: a copy of tle_ops in it is
    not seen."""
    venv.create(folder, with_pip=True)
    (site,) = (folder / "lib").glob("python*/site-packages")
    (site / "of_the_tests.pth").write_text(str(pathlib.Path(torch.__file__).parents[1]) + "\n")
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The source distribution, and the wheel built from nothing but its contents."""
    work = tmp_path_factory.mktemp("dist")
    source = copy_sources(work / "source")
    build = "import setuptools.build_meta as b, sys; print(getattr(b, sys.argv[1])(sys.argv[2]))"
    call(sys.executable, "-c", build, "build_sdist", work, cwd=source)
    (sdist,) = work.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(work / "unpacked", filter="data")
    (unpacked,) = (work / "unpacked").iterdir()
    call(sys.executable, "-c", build, "build_wheel", work, cwd=unpacked)
    (wheel,) = work.glob("*.whl")
    return sdist, wheel


def test_wheel_holds_the_whole_package_and_nothing_else(built):
    with zipfile.ZipFile(built[1]) as archive:
        names = set(archive.namelist())
    sources = {str(p.relative_to(ROOT)) for p in (ROOT / "tle_ops").rglob("*.py")} | {"tle_ops/py.typed"}
    shipped = {n for n in names if ".dist-info/" not in n}
    assert shipped == sources
    assert any(n.endswith("licenses/LICENSE") for n in names)
    assert built[1].name.endswith("-py3-none-any.whl")


def test_wheel_works_without_the_sources(built, tmp_path):
    python = environment(tmp_path / "env")
    call(python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", built[1], cwd=tmp_path)
    out = call(python, "-c", USE, cwd=tmp_path)
    assert out.split()[0] == str(len(tle_ops.__all__))
    assert "the default" in out or "cannot build here" in out


def test_a_clone_does_not_hide_what_is_installed_from_it(tmp_path):
    """From the folder above a clone called tle_ops, which could be a namespace package; as the Makefile does."""
    clone = copy_sources(tmp_path / "tle_ops")
    (line,) = (text for text in (ROOT / "Makefile").read_text().splitlines() if "--editable" in text)
    options = line.partition(" install ")[2].split()
    python = environment(tmp_path / "env")
    call(python, "-m", "pip", "install", "-q", *options, cwd=clone)
    found = call(python, "-c", "import tle_ops; print(tle_ops.__file__)", cwd=tmp_path).strip()
    assert found == str(clone / "tle_ops" / "__init__.py")


CACHED = """if True:
    import sys, torch, tle_ops
    from tests.table import assert_same_bits, outputs, randn
    x = randn(6, 256)
    def f(x):
        return tle_ops.per_token_cast_fp8(tle_ops.add(x, x).sin())
    for a, b in zip(torch.compile(f, fullgraph=True)(x), f(x)):
        assert a.dtype == b.dtype and (a.float() - b.float()).abs().max() < 0.05 * b.float().abs().max()
    print("right")"""


def test_two_processes_that_compile_at_once_share_the_disk_caches(tmp_path):
    """Both cold, then one warm: right every time."""
    env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    env.pop("TORCHINDUCTOR_FORCE_DISABLE_CACHES", None)
    for processes in (2, 1):
        started = [
            subprocess.Popen([sys.executable, "-c", CACHED], env=env, stdout=subprocess.PIPE) for _ in range(processes)
        ]
        assert [p.communicate(timeout=600)[0].strip() for p in started] == [b"right"] * processes
    assert any(tmp_path.rglob("*"))
