"""Schemas of what ``wasmckpt --agent URL COMMAND --json`` prints: those of the interface. As a command it writes them
into docs/cli.schema.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from wasmckpt.api import (
    CheckpointInfo,
    Event,
    JobInfo,
    MigrationInfo,
    ModuleInfo,
    Neighbour,
    NodeInfo,
    Replica,
)

__all__ = ["definitions"]

_PATH: Final = Path(__file__).resolve().parents[2] / "docs" / "cli.schema.json"
_ONE: Final[dict[str, type[BaseModel]]] = {
    "agent_wait": JobInfo, "agent_checkpoint": CheckpointInfo, "agent_event": Event, "agent_node": NodeInfo,
    "agent_migrate": MigrationInfo,
}
_LISTS: Final[dict[str, type[BaseModel]]] = {
    "agent_ps": JobInfo, "agent_checkpoints": CheckpointInfo, "agent_modules": ModuleInfo,
    "agent_migrations": MigrationInfo, "agent_neighbours": Neighbour, "agent_replicas": Replica,
}
_TOKENS: Final = {
    "type": "array", "items": {
        "type": "object", "additionalProperties": False, "required": ["name", "scopes", "created", "expires"],
        "properties": {
            "name": {"type": "string"}, "scopes": {"type": "array", "items": {"type": "string"}},
            "created": {"type": "number"}, "expires": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        },
    },
}


def definitions() -> dict[str, Any]:
    """Name -> schema, with those that they refer to."""
    found: dict[str, Any] = {"agent_tokens": _TOKENS}
    for name, model in (_ONE | _LISTS).items():
        schema = model.model_json_schema(ref_template="#/$defs/agent_{model}", mode="serialization")
        for inner, definition in schema.pop("$defs", {}).items():
            found[f"agent_{inner}"] = definition
        found[name] = {"type": "array", "items": schema} if name in _LISTS else schema
    return dict(sorted(json.loads(json.dumps(found)).items()))


def main() -> None:
    """Write them."""
    document = json.loads(_PATH.read_text())
    text = _PATH.read_text()
    mine = {name: schema for name, schema in document["$defs"].items() if name.startswith("agent")}
    if mine == definitions():
        return
    if mine:
        begin = text.index('    "agent_')
        text = text[:begin].rstrip().rstrip(",") + "\n  }\n}\n"
    end = text.rindex("  }\n}")
    body = ",\n".join(f'    "{name}": ' + json.dumps(schema) for name, schema in definitions().items())
    text = text[:end].rstrip() + ",\n" + body + "\n" + text[end:]
    json.loads(text)
    _PATH.write_text(text)


if __name__ == "__main__":
    main()
