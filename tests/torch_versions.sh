#!/usr/bin/env bash
# The operators' tests on the CPU with the oldest and the newest PyTorch that the package supports, each in an environment
# of its own under .torch/ (2 GB each, installed once): tests/torch_versions.sh [pytest arguments]
set -euo pipefail
cd "$(dirname "$0")/.."

versions=${TORCH_VERSIONS:-2.11.0 2.14.1}
failed=()
for version in $versions; do
  env=.torch/$version
  if [ ! -e "$env/ready" ]; then
    "${PYTHON:-python3}" -m venv "$env"
    # Every PyTorch brings the setuptools that it can be used with.
    grep -vE '^(torch|setuptools|triton|tilelang|apache-tvm-ffi|z3-solver|nvidia-|ruff|mypy|matplotlib|tokenizers|safetensors)' requirements-dev.txt > "$env/requirements.txt"
    "$env/bin/python" -m pip install --disable-pip-version-check -q "torch==$version" -r "$env/requirements.txt"
    touch "$env/ready"
  fi
  echo "torch $version"
  # Kernels are tested by the other suites, with the Triton that they are pinned to.
  PYTHONPATH=. "$env/bin/python" -m pytest -q -p no:cacheprovider tests/test_ops.py tests/test_layers.py \
    tests/test_dispatch.py tests/test_public_autograd.py tests/test_support.py "$@" || failed+=("$version")
done
if ((${#failed[@]})); then
  echo "failed with torch ${failed[*]}"
  exit 1
fi
