#!/usr/bin/env bash
# The evidence of bench/results on a machine with a GPU: bench/record.sh OUT [JOBS]
# The tests of the GPU, 10^5 random selections and the kernels under compute-sanitizer first, several at once; then,
# alone, the benchmarks. About ten minutes on an H200 with 16 cores. Logs and tables go to OUT.
set -uo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:?"usage: bench/record.sh OUT [JOBS]"}")
jobs=${2:-6} # processes of each of the two test runs
mkdir -p "$out"
: >"$out/summary.txt"
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 OMP_NUM_THREADS=2
python=${PYTHON:-python3}
tests="$python -m pytest -q -m gpu -p no:cacheprovider -rfs"

run() { # NAME COMMAND..
  local name=$1 begin=$SECONDS
  shift
  "$@" >"$out/$name.log" 2>&1
  echo "$name: exit code $? after $((SECONDS - begin)) s" | tee -a "$out/summary.txt"
}

run kernels $tests -n "$jobs" tests/test_kernels.py &
run others $tests -n "$jobs" tests --ignore tests/test_kernels.py --ignore tests/multigpu -k "not fuzz_on_gpu" &
TLE_FUZZ=100000 run fuzz $tests tests/test_topk.py -k fuzz_on_gpu &
run memcheck compute-sanitizer --tool memcheck --error-exitcode 9 "$python" -m bench.proofs.sanitize --every 5 &
run racecheck compute-sanitizer --tool racecheck --error-exitcode 9 "$python" -m bench.proofs.sanitize --without gluon --every 8 &
wait
run bench "$python" -m bench --out "$out"
[ "$(grep -vc 'exit code 0 ' "$out/summary.txt")" = 0 ]
