"""Fixtures of the SGLang tests: small models, and servers that are shared and stop by themselves."""

from pathlib import Path

import pytest

from tests.engines.sglang.models import beginnings, fit_eagle_head, make_target

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def sources() -> list[str]:
    """Texts that look like what the models are asked for."""
    package = HERE.parents[2] / "agentspec"
    return [file.read_text() for file in sorted(package.glob("**/*.py"))]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory, sources: list[str]) -> Path:
    """A random target with a tokenizer of its own."""
    return make_target(tmp_path_factory.mktemp("target"), sources)


@pytest.fixture(scope="session")
def tiny_head(tmp_path_factory: pytest.TempPathFactory, tiny: Path, sources: list[str]) -> Path:
    """An EAGLE-3 head that knows how the target continues the first prompts of the tests."""
    return fit_eagle_head(tmp_path_factory.mktemp("head"), tiny, beginnings(sources, 12), draft_vocabulary=400)


@pytest.fixture(scope="session")
def index_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("index")


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENTSPEC_CONFIG", raising=False)
