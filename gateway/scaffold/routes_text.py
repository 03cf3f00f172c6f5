"""Changes `routes.yaml` as a person would: a word here, a line there, the rest untouched."""

from typing import Final

import yaml

from gateway.errors import CommandFailed

HANDLERS: Final = "handlers"


def add_module(text: str, route: str, module: str) -> str:
    """The file with a module more in the `handlers` of a route."""
    section = _mapping(_mapping(_root(text), "routes"), route)
    modules = _value(section, HANDLERS)
    if isinstance(modules, yaml.SequenceNode):
        return _add_item(text, modules, module)
    return _add_key(text, section, f"{HANDLERS}: [{module}]")


def add_schema(text: str, file: str) -> str:
    """The file with its first `schema` file."""
    root = _root(text)
    schema = _value(root, "schema")
    if isinstance(schema, yaml.SequenceNode):
        return _add_item(text, schema, file)
    start = root.start_mark.index
    return f"{text[:start]}schema: [{file}]\n\n{text[start:]}"


def _root(text: str) -> yaml.MappingNode:
    root = yaml.compose(text, Loader=yaml.BaseLoader)
    if not isinstance(root, yaml.MappingNode):
        raise CommandFailed("routes.yaml has changed meanwhile")
    return root


def _mapping(node: yaml.MappingNode, key: str) -> yaml.MappingNode:
    value = _value(node, key)
    if not isinstance(value, yaml.MappingNode):
        raise CommandFailed("routes.yaml has changed meanwhile")
    return value


def _value(node: yaml.MappingNode, key: str) -> yaml.Node | None:
    return next((value for name, value in node.value if name.value == key), None)


def _add_item(text: str, items: yaml.SequenceNode, item: str) -> str:
    if items.flow_style:
        if not items.value:
            return _spliced(text, items.start_mark.index + 1, item)
        return _spliced(text, items.value[-1].end_mark.index, f", {item}")
    last = items.value[-1]
    indent = text[_line_start(text, last.start_mark.index) : last.start_mark.index]
    return _spliced(text, _line_end(text, last.end_mark.index), f"\n{indent}{item}")


def _add_key(text: str, section: yaml.MappingNode, key: str) -> str:
    """After the provider, which every route has, and on one line."""
    name, value = next(pair for pair in section.value if pair[0].value == "provider")
    if section.flow_style:
        return _spliced(text, value.end_mark.index, f", {key}")
    indent = " " * name.start_mark.column
    return _spliced(text, _line_end(text, value.end_mark.index), f"\n{indent}{key}")


def _spliced(text: str, index: int, more: str) -> str:
    return text[:index] + more + text[index:]


def _line_start(text: str, index: int) -> int:
    return text.rfind("\n", 0, index) + 1


def _line_end(text: str, index: int) -> int:
    end = text.find("\n", index)
    return len(text) if end < 0 else end
