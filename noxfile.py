"""`make test-triton-versions`: the tests of tle_ops.language on every Triton that it supports, each in an environment
of its own. The other versions are those of requirements-dev.txt."""

import pathlib

import nox

VERSIONS = ("3.6.0", "3.7.1", "3.8.0", "3.9.0")
PACKAGES = ("torch", "numpy", "pytest", "pytest-xdist", "expecttest", "hypothesis")


def pinned() -> list[str]:
    lines = pathlib.Path("requirements-dev.txt").read_text(encoding="utf-8").splitlines()
    pins = {line.split("==")[0]: line for line in lines if "==" in line}
    return [pins[name] for name in PACKAGES]


@nox.session(venv_backend="venv", reuse_venv=True)
@nox.parametrize("triton", VERSIONS, ids=VERSIONS)
def language(session: nox.Session, triton: str) -> None:
    """Interpreted and compiled for sm_90; further arguments go to pytest."""
    session.install(*pinned())
    session.install("--no-deps", f"triton=={triton}")  # torch for CUDA would pin another one
    tests = sorted(str(path) for path in pathlib.Path("tests").glob("test_language_*.py"))
    # Triton 3.9 announces that a default of 3.10 will differ.
    env = {"TRITON_DEFAULT_FP_FUSION": "1", "TRITON_CACHE_DIR": f"{session.create_tmp()}/triton"}
    session.run("python", "-m", "pytest", "-n", "2", "-p", "no:cacheprovider", *tests, *session.posargs, env=env)
