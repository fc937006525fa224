"""The check of SGLang's source, on a SGLang made for the occasion."""

import sys
from pathlib import Path

import pytest

from agentspec.engines.sglang import requirements
from agentspec.engines.sglang.requirements import Requirement, missing

SOURCE = '''
from dataclasses import dataclass

@dataclass
class Input:
    tokens: int
    mask: int = 0

class Worker:
    def verify(self, batch, *, topk, device=None):
        """Body."""

async def launch(server_args):
    pass
'''


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "sglang" / "srt"
    package.mkdir(parents=True)
    (tmp_path / "sglang" / "__init__.py").write_text("raise AssertionError('SGLang must be read, not imported')")
    (package / "worker.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sglang", raising=False)
    requirements._body.cache_clear()
    yield
    requirements._body.cache_clear()


def problem(module: str, name: str, *parameters: str) -> str | None:
    found = missing([Requirement(module, name, parameters)])
    return found[0] if found else None


@pytest.mark.usefixtures("fake")
def test_what_is_there_is_no_problem() -> None:
    assert problem("sglang.srt.worker", "Worker.verify", "batch", "topk") is None
    assert problem("sglang.srt.worker", "Input", "tokens", "mask") is None
    assert problem("sglang.srt.worker", "launch", "server_args") is None


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(
    ("module", "name", "parameters", "expected"),
    [
        ("sglang.srt.gone", "f", (), "sglang.srt.gone.f(): there is no such module"),
        ("sglang.srt.worker", "Worker.draft", (), "sglang.srt.worker.Worker.draft(): there is no such name"),
        ("sglang.srt.worker", "Worker.verify", ("batch", "width"), "lacks width"),
        ("sglang.srt.worker", "Input", ("positions", "tokens"), "lacks positions"),
    ],
)
def test_what_is_missing_is_named(module: str, name: str, parameters: tuple[str, ...], expected: str) -> None:
    assert expected in (problem(module, name, *parameters) or "")


@pytest.mark.sglang
def test_this_sglang_has_all_that_we_need() -> None:
    assert missing() == []


@pytest.mark.sglang
def test_the_plugin_refuses_with_version_and_name(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm  # noqa: PLC0415 - only where it is installed

    from agentspec.engines.sglang import plugin  # noqa: PLC0415

    lacking = Requirement("sglang.srt.speculative.eagle_utils", "eagle_sample", ("a_parameter_of_the_future",))
    monkeypatch.setattr(requirements, "REQUIREMENTS", (lacking,))
    monkeypatch.setattr(requirements.missing, "__defaults__", ((lacking,),))
    plugin.register()
    assert "0.5.23" in caplog.text
    assert "eagle_sample" in caplog.text
    assert "a_parameter_of_the_future" in caplog.text
    with pytest.raises(ValueError, match="Unknown speculative algorithm"):
        SpeculativeAlgorithm.from_string("AGENTSPEC")
