"""docs/architecture.md, the map of the code, shows every room and no file that is not there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "gateway"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
FILE = re.compile(r"`gateway/([\w./*]+?)/?`")
IN_PATH = re.compile(r"(?<![\w/])((?:[a-z_]+/)+[a-z_]+\.(?:py|sql))")


def _rooms() -> set[str]:
    return {path.parent.name for path in PACKAGE.glob("*/__init__.py")}


def test_every_room_has_its_line() -> None:
    table = PAGE.partition("## The rooms")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)/` \|", table, re.MULTILINE)) == _rooms()


def test_the_rooms_stand_in_the_order_of_the_layers() -> None:
    table = PAGE.partition("## The rooms")[2].partition("\n## ")[0]
    shown = re.findall(r"^\| `(\w+)/` \|", table, re.MULTILINE)
    contract = (ROOT / "pyproject.toml").read_text().partition("layers = [")[2].partition("]")[0]
    layers = [re.findall(r"\w+", line) for line in re.findall(r'"([^"]+)"', contract)]
    level = {room: number for number, layer in enumerate(layers) for room in layer}
    assert sorted(shown, key=level.__getitem__) == shown


def test_every_file_that_it_names_is_there() -> None:
    named = set(FILE.findall(PAGE))
    path = PAGE.partition("## The path of an event")[2].partition("\n## ")[0]
    named |= set(IN_PATH.findall(path))
    missing = [name for name in named if not list(PACKAGE.glob(name))]
    missing = [name for name in missing if not list(PACKAGE.glob(f"ledger/{name}"))]
    assert missing == []
