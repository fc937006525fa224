"""Repositories through the real index and drafter: they help those that name them, and nobody else."""

import asyncio

import pytest
import torch

from agentspec.drafters.tree import ROOT
from agentspec.drafters.tree_drafter import TreeDrafter
from agentspec.errors import NotFoundError
from agentspec.index.build import BuildOptions, build_index
from agentspec.index.store import IndexStore
from agentspec.index.tokenizer import IndexTokenizer
from tests.engines.local.running import ask, collect, running

SHARED = "deployment_password = "
PLANTED = {
    "left": '"kqzv-7731 ouyx wplm 0042"  # rotate weekly\n',
    "right": '"bbrn 55-90 tessellate hjkd"  # never rotate\n',
}


class Stores:
    """Two indexed repositories that hold different texts after the same words."""

    def __init__(self, folder, model_folder):
        self.stores = {}
        tokenizer = IndexTokenizer(str(model_folder), folder / "index")
        for name, planted in PLANTED.items():
            repository = folder / name
            repository.mkdir()
            (repository / "settings.py").write_text(f"import os\n\n{SHARED}{planted}\nretries = 3\n")
            options = BuildOptions(folder / "index", max_file_bytes=10_000)
            self.stores[name] = IndexStore(build_index(repository, tokenizer, options).store)

    def snapshot_for(self, repository_id, fingerprint):
        if repository_id not in self.stores:
            raise NotFoundError(f"no repository {repository_id}")
        return self.stores[repository_id].current(fingerprint)


@pytest.fixture(scope="module")
def stores(tmp_path_factory, tiny_folder):
    return Stores(tmp_path_factory.mktemp("repositories"), tiny_folder)


class SpyingDrafter:
    """The real drafter; keeps every path that it drafted, by prompt."""

    def __init__(self):
        self.paths = {}

    def begin(self, request):
        paths = self.paths.setdefault(request.prompt.tobytes(), [])
        session = TreeDrafter().begin(request)

        class Spy:
            def propose(self, budget):
                tree = session.propose(budget)
                chains = []
                for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
                    chains.append([*(chains[parent] if parent != ROOT else []), token])
                paths.extend(chains)
                return tree

            def commit(self, tokens):
                session.commit(tokens)

        return Spy()


class Forced:
    """Makes the target write given tokens first."""

    follows_path = True

    def __init__(self, tokens):
        self._tokens = list(tokens)

    def apply(self, logits):
        if self._tokens:
            forced = torch.full_like(logits, -torch.inf)
            forced[self._tokens[0]] = 0
            logits.copy_(forced)

    def advance(self, token):
        self._tokens = self._tokens[1:]


def drafted_planted_text(paths, tokenizer, name):
    """Whether any five letters of the planted text's secret part were drafted in a row."""
    secret = PLANTED[name][1:20]
    pieces = {secret[start : start + 5] for start in range(len(secret) - 4)}
    return any(piece in tokenizer.decode(path) for path in paths for piece in pieces)


async def test_planted_text_is_drafted_for_its_own_repository_only(tiny, stores):
    """Requests that write the same words, at the same time, each naming one repository, an unknown one, or none."""
    drafter = SpyingDrafter()
    encode = tiny.tokenizer.encode
    names = ["left", "right", "unknown", None]
    requests = [
        ask(id=str(name), prompt=f"# {name}\n", repository=name, max_tokens=60, seed=1, temperature=1.0)
        for name in names
    ]

    def processors(request, tokenizer):
        return [Forced(encode(SHARED + PLANTED.get(request.repository, "")))]

    async with running(tiny, drafter=drafter, repositories=stores, processors=processors) as engine:
        results = await asyncio.gather(*(collect(engine, request) for request in requests))
    for name, request, [result] in zip(names, requests, results, strict=True):
        paths = drafter.paths[bytes(torch.tensor(tiny.tokenizer.prompt_tokens(request.prompt)).int().numpy())]
        for planted in PLANTED:
            assert drafted_planted_text(paths, tiny.tokenizer, planted) == (planted == name), (name, planted)
        if name in PLANTED:
            assert result.text.startswith(SHARED + PLANTED[name])
            assert result.receipt.accepted["repository"] > 8
            assert result.receipt.warnings == ()
        else:
            assert "repository" not in result.receipt.drafted
    assert "no repository unknown" in results[2][0].receipt.warnings[0]


async def test_a_predicted_output_is_accepted_as_such(tiny):
    prediction = "def area(width, height):\n    return width * height\n"

    def processors(request, tokenizer):
        return [Forced(tiny.tokenizer.encode(prediction))]

    length = len(tiny.tokenizer.encode(prediction))
    async with running(tiny, processors=processors) as engine:
        [result] = await collect(engine, ask(prediction=prediction, max_tokens=length))
    assert result.text == prediction
    assert result.receipt.accepted["prediction"] > length / 2
    assert result.receipt.verify_steps < length / 3


async def test_an_index_made_with_another_tokenizer_is_refused(tiny, stores, monkeypatch):
    monkeypatch.setattr(tiny.tokenizer, "_fingerprint", "another")
    async with running(tiny, repositories=stores) as engine:
        [result] = await collect(engine, ask(repository="left", max_tokens=2))
    assert "tokenizer" in result.receipt.warnings[0]
    assert len(result.tokens) == 2


async def test_a_damaged_index_is_a_warning(tiny, tmp_path, tiny_folder):
    stores = Stores(tmp_path, tiny_folder)
    for store in stores.stores.values():
        for file in store.directory.rglob("*"):
            if file.is_file():
                with file.open("r+b") as opened:
                    opened.truncate(5)
    async with running(tiny, repositories=stores) as engine:
        [result] = await collect(engine, ask(repository="left", max_tokens=2))
    assert "repository not used" in result.receipt.warnings[0]
    assert len(result.tokens) == 2
