"""Benchmarks of tle_ops beside what a user would pick instead: `python -m bench`. Read README.md."""
