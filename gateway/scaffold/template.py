"""The text of what is written, with its gaps."""

import re
from importlib.resources import files
from typing import Final

GAP: Final = re.compile(r"\{\{([a-z_]+)\}\}")


def read_template(name: str, **gaps: str) -> str:
    """The file `templates/<name>.tmpl` with its gaps filled."""
    text = files(__package__).joinpath("templates", f"{name}.tmpl").read_text(encoding="utf-8")
    return GAP.sub(lambda gap: gaps[gap[1]], text)
