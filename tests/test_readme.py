"""What the README shows runs as it stands, on the CPU."""

import pathlib
import re

import tle_ops

README = pathlib.Path(__file__).parents[1] / "README.md"


def test_examples_run(capsys):
    """All blocks in one namespace, as a reader would type them."""
    names = {}
    for block in re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(block, README.name, "exec"), names)
    error, explained = capsys.readouterr().out.splitlines()
    assert 0.03 < float(re.search(r"\d\.\d+", error)[0]) < 0.04  # "about 0.036"
    assert explained == str(tle_ops.explain("per_token_cast_fp8", names["x"]))
    assert names["weight"].grad.shape == names["weight"].shape


def test_table_has_every_public_op():
    table = re.search(r"## Operators\n(.*?)\n## ", README.read_text(encoding="utf-8"), re.DOTALL)[1]
    rows = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    public = set(tle_ops.__all__) - {"backend", "backends", "explain"}
    assert not public - set(rows), "operators without a row in the README's table"
    assert not set(rows) - public, "rows of the README's table that are no operator"
    assert len(rows) == len(set(rows))
