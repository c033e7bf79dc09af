"""Requests that the OpenAPI document allows, and such as it does not, made by schemathesis: no answer is a server's error, and
each is of a form that the document tells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from wasmckpt.api import JobSpec

from ..support.tiers import by_tier
from .conftest import Serve, Served
from .guests import TALK

pytestmark = pytest.mark.slow
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance,
          negative_data_rejection]


@pytest.fixture(scope="module")
def fuzzed(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> Served:
    """Has a job that the examples may find; no rates, else most answers would be 429."""
    path = tmp_path_factory.mktemp("settings") / "agent.toml"
    path.write_text("requests_per_second = 1e6\nburst = 1000000\nfailures_per_second = 1e6\n")
    served = serve("--config", str(path))
    agent = served.client()
    agent.create(JobSpec(module=agent.upload(TALK).sha256, name="j1", start=False))
    return served


@pytest.fixture(scope="module")
def api(fuzzed: Served) -> Any:
    document = httpx.get(f"{fuzzed.url}/v1/openapi.json", trust_env=False).json()
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=fuzzed.url)
    return schema


schema = schemathesis.pytest.from_fixture("api").exclude(path_regex="drain|/health")


@schema.parametrize()
@settings(max_examples=by_tier(check=2, test=6, soak=200), deadline=None, derandomize=True, database=None,
          suppress_health_check=list(HealthCheck))
def test_what_the_document_allows(case: Any, fuzzed: Served) -> None:
    if isinstance(case.query, dict):
        for name in ("follow", "wait"):
            case.query.pop(name, None)  # they may take as long as they say
    case.call_and_validate(headers={"Authorization": f"Bearer {fuzzed.token}"}, checks=CHECKS, timeout=60)
