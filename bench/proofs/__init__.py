"""Programs that try everything there is to try, on a GPU: run as `python -m bench.proofs.<name>`."""
