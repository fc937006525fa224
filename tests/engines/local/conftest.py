import pytest

from tests.engines.local.tiny_target import load_tiny, make_folder


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def deep_folder(tmp_path_factory):
    """A tiny target with layers enough for a draft head to read three."""
    return make_folder(tmp_path_factory.mktemp("deep"), seed=3, layers=8)


@pytest.fixture(scope="session")
def tiny(tiny_folder):
    """A loaded tiny target; it keeps no state between requests."""
    return load_tiny(tiny_folder)
