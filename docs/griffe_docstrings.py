"""Docstrings as mkdocstrings wants them: it takes each line of "Returns" for another result, and drops what "Raises"
says without naming a class."""

from __future__ import annotations

import re
from typing import Any

import griffe

_SECTION = re.compile(r"^(Returns|Raises):\n((?:    .*\n|\n)+)", re.MULTILINE)


class Docstrings(griffe.Extension):
    def on_function_instance(self, *, func: griffe.Function, **_: Any) -> None:
        if func.docstring is None:
            return
        one_result = "tuple" not in str(func.returns)

        def rewrite(section: re.Match) -> str:
            name, body = section.groups()
            lines = body.rstrip("\n").split("\n")
            if name == "Returns" and one_result:
                lines[1:] = ["    " + line for line in lines[1:]]
            if name == "Raises":
                lines = [re.sub(r"^    As (.*)", r"    ValueError, TypeError: as \1", line) for line in lines]
            return f"{name}:\n" + "\n".join(lines) + "\n\n"

        func.docstring.value = _SECTION.sub(rewrite, func.docstring.value + "\n")
