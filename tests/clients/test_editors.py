"""Editors: they show, apply and undo what the server answers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.cli.test_serve import serving
from tests.clients.agent_script import AFTER, FILE
from tests.clients.conftest import CLIENT_SECONDS, EMBEDDED_MODEL, INSTALLED, ROOT, Workplace, executable
from tests.clients.test_agents import number

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.clients

NEOVIM_SCRIPT = """
local done, problem = pcall(function()
assert(vim.wait(60000, function()
  return vim.lsp.get_clients({ name = 'agentspec', bufnr = 0 })[1] ~= nil
end, 50), 'the language server did not start')
local client = vim.lsp.get_clients({ name = 'agentspec' })[1]
local text = function() return table.concat(vim.api.nvim_buf_get_lines(0, 0, -1, false), '\\n') end
local position = { line = 4, character = 4 }
local params = {
  textDocument = { uri = vim.uri_from_bufnr(0) }, position = position, context = { triggerKind = 1 },
}
local answer = client:request_sync('textDocument/inlineCompletion', params, 60000, 0)
print('suggested: ' .. answer.result.items[1].insertText)
vim.cmd('AgentspecEdit Make add return the sum of its arguments')
assert(vim.wait(60000, function() return text():find('a + b', 1, true) end, 50), 'no edit came')
vim.cmd.write()
vim.cmd.undo()
assert(text():find('a - b', 1, true), 'it cannot be undone in one step')
print('undone')
end)
print(problem or '')
vim.cmd(done and 'quitall!' or 'cquit')
"""


@pytest.mark.client(
    "Neovim", "completions, edits (through `agentspec lsp`)", "suggested text, edited a buffer, undid the edit"
)
def test_neovim(workplace: Workplace, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    neovim = executable("nvim")
    request.node.client_version = number(workplace.run(neovim, "--version"))
    text = (ROOT / "plugins" / "neovim" / "agentspec.lua").read_text()
    command = f"cmd = {{ '{sys.executable}', '-m', 'agentspec', 'lsp', '--url', '{workplace.server.url}' }}"
    assert "cmd = { 'agentspec', 'lsp' }" in text
    recipe, script = tmp_path / "agentspec.lua", tmp_path / "script.lua"
    recipe.write_text(text.replace("cmd = { 'agentspec', 'lsp' }", command))
    script.write_text(NEOVIM_SCRIPT)
    result = subprocess.run(
        [neovim, "--headless", "-u", recipe, "-i", "NONE", FILE, "-c", f"luafile {script}"],
        cwd=workplace.repository,
        env=os.environ.copy(),
        capture_output=True,
        text=True,
        check=False,
        timeout=CLIENT_SECONDS,
    )
    said = result.stdout + result.stderr
    assert result.returncode == 0, said
    assert "suggested: return a + b" in said
    assert "undone" in said
    assert workplace.file == AFTER


def look_at_vscode(url: str, repository: Path, screenshots: Path, node: pytest.Item, **environment: str) -> None:
    """Drive code-server with the packed extension through Chromium; everything that is to be seen must be."""
    plugin = ROOT / "plugins" / "vscode"
    entry = INSTALLED / "node_modules" / "code-server" / "out" / "node" / "entry.js"
    javascript, chromium = executable("node"), shutil.which("chromium")
    for needed in (plugin / "agentspec.vsix", plugin / "out" / "test" / "browser.js", entry):
        if not needed.exists():
            pytest.skip(f"{needed.relative_to(ROOT)} is missing; make test-clients makes it")
    if chromium is None:
        pytest.skip("chromium is not installed")
    version = subprocess.check_output([javascript, entry, "--version"], text=True)
    node.client_version = number(version.splitlines()[-1])  # type: ignore[attr-defined]
    result = subprocess.run(
        [javascript, plugin / "out" / "test" / "browser.js"],
        env={
            **os.environ,
            "AGENTSPEC_URL": url,
            "CODE_SERVER": str(entry),
            "VSIX": str(plugin / "agentspec.vsix"),
            "CHROMIUM": chromium,
            "FOLDER": str(repository),
            "SCREENSHOTS": str(screenshots),
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * CLIENT_SECONDS,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    for seen in (
        "a server that started after the editor",
        "a suggestion",
        "the edit as a diff",
        "the edit applied",
        "the edit discarded",
        "acceptance in the status bar",
    ):
        assert f"saw: {seen}" in result.stdout


@pytest.mark.client(
    "VS Code (code-server) with `plugins/vscode`",
    "completions, edits, state, feedback",
    "found the server once it started, suggested text, previewed, applied, undid and discarded edits, showed "
    "acceptance, wrote the model entry",
)
def test_vscode(workplace: Workplace, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    look_at_vscode(workplace.server.url, workplace.repository, tmp_path, request.node, SCRIPTED="1")


@pytest.mark.client(
    "VS Code with the embedded engine",
    "completions, edits, state, feedback",
    f"the same with `agentspec serve` and {EMBEDDED_MODEL} in bfloat16, whatever it suggests and changes",
)
def test_vscode_with_the_embedded_engine(
    embedded_cache: Path,
    repository: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.setenv("AGENTSPEC_CACHE_DIRECTORY", str(embedded_cache))
    numbers = ("--device", "cpu", "--dtype", "bfloat16", "--threads", 1)
    with serving("--model", EMBEDDED_MODEL, *numbers, "--allow-root", repository) as (_, url):
        look_at_vscode(url, repository, tmp_path, request.node)
