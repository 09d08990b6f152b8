"""Read and write YAML in which an unquoted value means what it means on the command line, in Hydra's grammar."""

import math
import re
from typing import IO, Any

import yaml

WHOLE, DIGITS = "(?:0|[1-9](?:_?[0-9])*)", "[0-9](?:_?[0-9])*"
POINT = rf"(?:{WHOLE}\.|{WHOLE}?\.{DIGITS})"
SCALARS = {  # by type: a plain scalar of it, and the characters that it may begin with
    "null": ("(?i:null)?$", ["n", "N", ""]),
    "bool": ("(?i:true|false)$", list("tTfF")),
    "int": (rf"[-+]?{WHOLE}$", list("-+0123456789")),
    "float": (rf"[-+]?(?:{POINT}|(?:{WHOLE}|{POINT})[eE][-+]?{DIGITS}|(?i:inf|nan))$", list("-+.0123456789iInN")),
}


def read(stream: IO[str] | str) -> Any:
    """Read a YAML document and return it as plain data: dicts, lists, strings, numbers, booleans and None."""
    return yaml.load(stream, _Loader)  # a SafeLoader


def write(values: Any) -> str:
    """Return plain data as YAML."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = {"<": [("tag:yaml.org,2002:merge", re.compile("<<$"))]}  # noqa: RUF012

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value]
        for key, _ in node.value:
            if names.count(key.value) > 1 and key.value != "<<":
                raise yaml.constructor.ConstructorError(None, None, f"found duplicate key {key.value}", key.start_mark)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    def represent_float(self, data: float) -> yaml.ScalarNode:
        if math.isfinite(data):
            return super().represent_float(data)
        return self.represent_scalar("tag:yaml.org,2002:float", str(data))  # not .inf, which is a text here


_Dumper.add_representer(float, _Dumper.represent_float)
for _each in (_Loader, _Dumper):
    for _type, (_pattern, _first) in SCALARS.items():
        _each.add_implicit_resolver(f"tag:yaml.org,2002:{_type}", re.compile(_pattern), _first)
