"""Requests that the OpenAPI document allows, and such as it does not, made by schemathesis: no answer is a server's
error, and each is of a form that the document tells."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from wasmckpt.api import JobSpec

from ..support.tiers import by_tier
from .conftest import PATIENCE, Serve, Served
from .guests import TALK

pytestmark = pytest.mark.slow
schemathesis.serializer.alias("application/wasm", "application/octet-stream")
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def fuzzed(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> Served:
    """Has a job that the examples may find; no rates, else most answers would be 429."""
    path = tmp_path_factory.mktemp("settings") / "agent.toml"
    path.write_text("requests_per_second = 1e6\nburst = 1000000\nfailures_per_second = 1e6\n")
    served = serve("--config", str(path))
    agent = served.client()
    agent.create(JobSpec(module=agent.upload(TALK).sha256, name="j1", start=False))
    return served


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["allowed", "not allowed"])
def test_what_the_document_says(fuzzed: Served, mode: GenerationMode) -> None:
    """Of each operation some requests; a failure names it, and the request as a command."""
    document = httpx.get(f"{fuzzed.url}/v1/openapi.json", trust_env=False, timeout=PATIENCE).json()
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=fuzzed.url)
    tried = 0
    for found in schema.get_all_operations():
        operation: Any = found.ok()  # type: ignore[union-attr]  # raises what is wrong with the document
        if operation.path.endswith("drain") or operation.path in ("/v1/health", "/v1/ready"):
            continue
        _try(operation, mode, fuzzed.token)
        tried += 1
    assert tried >= 25


def _try(operation: Any, mode: GenerationMode, token: str) -> None:
    @settings(max_examples=by_tier(check=1, test=4, soak=40), deadline=None, derandomize=True, database=None,
              suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def answers(case: Any) -> None:
        if isinstance(case.query, dict):
            for name in ("follow", "wait"):
                case.query.pop(name, None)  # they may take as long as they say
        case.call_and_validate(headers={"Authorization": f"Bearer {token}"}, checks=CHECKS, timeout=PATIENCE)

    try:
        answers()
    except Unsatisfiable:
        assert mode is GenerationMode.NEGATIVE, "there is nothing to be wrong in a request without parameters"
