import pytest

from tests.engines.local.tiny_target import load_tiny, make_folder


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def tiny(tiny_folder):
    """A loaded tiny target; it keeps no state between requests."""
    return load_tiny(tiny_folder)
