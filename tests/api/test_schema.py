"""The OpenAPI schema tells the truth: requests made from it get the answers that it promises, and never a 5xx."""

from __future__ import annotations

from typing import TYPE_CHECKING

import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import positive_data_acceptance

from agentspec.api.app import create_app
from agentspec.api.repositories import RepositoryRegistry
from agentspec.config import Settings
from tests.api.scripted_engine import ScriptedEngine
from tests.api.scripted_indexer import ScriptedIndexer

if TYPE_CHECKING:
    from tests.api.conftest import LiveServer

NOT_CHECKED = positive_data_acceptance
"""A schema cannot say that fields exclude each other, what the vocabulary holds, or where folders lie."""

app = create_app(ScriptedEngine(), Settings.load(), RepositoryRegistry((), ScriptedIndexer()))
schema = schemathesis.openapi.from_dict(app.openapi())


@schema.parametrize()
@settings(max_examples=10, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_every_endpoint(case: schemathesis.Case, server: LiveServer) -> None:
    case.call_and_validate(base_url=server.url, excluded_checks=[NOT_CHECKED])
