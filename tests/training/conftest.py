import pytest
import torch

from tests.engines.local.tiny_target import make_folder


@pytest.fixture(autouse=True)
def one_thread():
    """Tensors here are too small to share, and threads that wait for each other are slow on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def small_folder(tmp_path_factory):
    """A random Llama deep enough for a head, with a real tokenizer."""
    return make_folder(tmp_path_factory.mktemp("small"), layers=7)
