"""`agentspec lsp` as a process, asked by a real client of the protocol."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from lsprotocol import types
from pygls.exceptions import JsonRpcException
from pygls.lsp.client import LanguageClient

from agentspec.engines.base import Chunk, Receipt
from tests.api.conftest import LiveServer, live_server
from tests.api.test_fim import QWEN

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

SOURCE = 'def add(first, second):\n    return \n\n\nprint("🙂", add())\n'
SECONDS = 20.0

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Editor:
    """An editor with one document open.

    Attributes:
        client: speaks the protocol.
        initialized: what the language server said at its start.
        uri: the document.
        path: its path in the workspace.
        text: what stands in it.
        version: of the document.
        applied: edits that the language server asked for.
        logged: its log.
        shown: messages for the user.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.client = LanguageClient("test-editor", "1")
        self.initialized: types.InitializeResult
        self.documents = 0
        self.new_document()
        # pygls marks its handlers, which a bound method refuses.
        self.client.feature(types.WORKSPACE_APPLY_EDIT)(lambda params: self._apply(params))  # noqa: PLW0108
        self.client.feature(types.WINDOW_LOG_MESSAGE)(lambda params: self.logged.append(params.message))
        self.client.feature(types.WINDOW_SHOW_MESSAGE)(lambda params: self.shown.append(params.message))

    def new_document(self) -> None:
        """Forget the document."""
        self.documents += 1
        self.path = f"code{self.documents}.py"
        self.uri = (self.folder / self.path).as_uri()
        self.text = ""
        self.version = 0
        self.applied: list[types.WorkspaceEdit] = []
        self.logged: list[str] = []
        self.shown: list[str] = []

    async def start(self, url: str, *flags: str) -> types.InitializeResult:
        await self.client.start_io(sys.executable, "-m", "agentspec", "lsp", "--url", url, *flags)
        result = await self.client.initialize_async(
            types.InitializeParams(
                capabilities=types.ClientCapabilities(),
                workspace_folders=[types.WorkspaceFolder(self.folder.as_uri(), "scratch")],
            )
        )
        self.client.initialized(types.InitializedParams())
        return result

    async def stop(self) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.client.shutdown_async(None), SECONDS)
        self.client.exit(None)
        await asyncio.wait_for(self.client.stop(), SECONDS)

    def open(self, text: str) -> None:
        self.text, self.version = text, self.version + 1
        item = types.TextDocumentItem(self.uri, "python", self.version, text)
        self.client.text_document_did_open(types.DidOpenTextDocumentParams(item))

    def type(self, line: int, character: int, text: str) -> None:
        self.version += 1
        where = types.Position(line, character)
        self.client.text_document_did_change(
            types.DidChangeTextDocumentParams(
                types.VersionedTextDocumentIdentifier(self.version, self.uri),
                [types.TextDocumentContentChangePartial(types.Range(where, where), text)],
            )
        )

    async def complete(self, line: int, character: int, *, automatic: bool = True) -> list[types.InlineCompletionItem]:
        kind = types.InlineCompletionTriggerKind
        params = types.InlineCompletionParams(
            types.InlineCompletionContext(kind.Automatic if automatic else kind.Invoked),
            types.TextDocumentIdentifier(self.uri),
            types.Position(line, character),
        )
        answer = await asyncio.wait_for(self.client.text_document_inline_completion_async(params), SECONDS)
        assert isinstance(answer, types.InlineCompletionList)
        return list(answer.items)

    async def edit(self, instruction: str, span: types.Range | None = None) -> Any:
        target: dict[str, Any] = {"uri": self.uri, "instruction": instruction}
        if span is not None:
            target["range"] = {
                "start": {"line": span.start.line, "character": span.start.character},
                "end": {"line": span.end.line, "character": span.end.character},
            }
        params = types.ExecuteCommandParams("agentspec.edit", [target])
        return await asyncio.wait_for(self.client.workspace_execute_command_async(params), SECONDS)

    def _apply(self, params: types.ApplyWorkspaceEditParams) -> types.ApplyWorkspaceEditResult:
        [change] = params.edit.document_changes or []
        assert isinstance(change, types.TextDocumentEdit)
        if change.text_document.version != self.version:
            return types.ApplyWorkspaceEditResult(False, "the document has changed")
        self.applied.append(params.edit)
        lines = self.text.splitlines(keepends=True)
        for edit in reversed(change.edits):
            assert edit.range.start.character == edit.range.end.character == 0
            lines[edit.range.start.line : edit.range.end.line] = [edit.new_text]
        self.text = "".join(lines)
        return types.ApplyWorkspaceEditResult(True)


@pytest.fixture(scope="module")
def shared_backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    root = tmp_path_factory.getbasetemp()
    with live_server(root) as server:
        yield server


@pytest.fixture
def backend(shared_backend: LiveServer) -> LiveServer:
    shared_backend.engine.reset()
    return shared_backend


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_editor(shared_backend: LiveServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Editor]:
    editor = Editor(tmp_path_factory.mktemp("workspace"))
    editor.initialized = await editor.start(shared_backend.url, "--debounce", "30")
    yield editor
    await editor.stop()


@pytest.fixture
def editor(backend: LiveServer, shared_editor: Editor) -> Editor:
    """The shared editor with a document of its own."""
    shared_editor.new_document()
    shared_editor.open(SOURCE)
    return shared_editor


async def test_capabilities(shared_editor: Editor) -> None:
    capabilities = shared_editor.initialized.capabilities
    assert capabilities.inline_completion_provider
    assert capabilities.execute_command_provider is not None
    assert "agentspec.edit" in capabilities.execute_command_provider.commands


async def test_a_completion_between_prefix_and_suffix(tmp_path: Path) -> None:
    """A server of its own, since whether a model fills in the middle is asked once."""
    with live_server(tmp_path) as own:
        own.engine.special = QWEN
        own.engine.reply = " first + second\n\n\nprint()"
        editor = Editor(tmp_path)
        await editor.start(own.url)
        editor.open(SOURCE)
        [item] = await editor.complete(1, 11)
        await editor.stop()
    assert item.insert_text == "first + second"
    assert item.range == types.Range(types.Position(1, 11), types.Position(1, 11))
    [request] = own.engine.requests
    before, after = SOURCE[: SOURCE.index(" \n\n\n")], SOURCE[SOURCE.index("\n\n\n") :]
    assert request.prompt == f"<|fim_prefix|>{before}<|fim_suffix|>{after}<|fim_middle|>"
    assert request.sampling.temperature == 0
    assert request.edited_path == editor.path
    assert request.repository is not None


async def test_a_model_that_cannot_fill_in_continues_the_prefix(backend: LiveServer, editor: Editor) -> None:
    backend.engine.reply = "first + second"
    [item] = await editor.complete(1, 11)
    assert item.insert_text == "first + second"
    assert backend.engine.requests[-1].prompt == SOURCE[: SOURCE.index(" \n\n\n")]


async def test_characters_beyond_the_basic_plane_count_two_units(backend: LiveServer, editor: Editor) -> None:
    backend.engine.reply = "1, 2)\n"
    [item] = await editor.complete(4, len('print("🙂", add(') + 1)
    assert backend.engine.requests[-1].prompt == SOURCE[: SOURCE.rindex("))")]
    assert item.insert_text == "1, 2"


async def test_typing_the_suggestion_asks_nobody(backend: LiveServer, editor: Editor) -> None:
    backend.engine.reply = "first + second"
    await editor.complete(1, 11)
    asked = len(backend.engine.requests)
    editor.type(1, 11, "first")
    [item] = await editor.complete(1, 16)
    assert item.insert_text == " + second"
    assert len(backend.engine.requests) == asked


async def test_typing_on_asks_once(backend: LiveServer, editor: Editor) -> None:
    await editor.complete(1, 0)
    asked = len(backend.engine.requests)
    first = asyncio.create_task(editor.complete(1, 5))
    second = asyncio.create_task(editor.complete(1, 6))
    assert await first == []
    assert await second != []
    assert len(backend.engine.requests) == asked + 1


async def test_a_cancelled_completion_frees_the_slot(backend: LiveServer, editor: Editor) -> None:
    await editor.complete(1, 0)
    backend.engine.script = lambda request: [30.0, Chunk(0, "late"), Chunk(0, finish_reason="stop", receipt=Receipt())]
    backend.engine.requests.clear()
    kind = types.InlineCompletionTriggerKind.Invoked
    params = types.InlineCompletionParams(
        types.InlineCompletionContext(kind), types.TextDocumentIdentifier(editor.uri), types.Position(0, 3)
    )
    asked = editor.client.text_document_inline_completion_async(params)
    future = asyncio.ensure_future(asked)
    while not backend.engine.running:
        await asyncio.sleep(0.01)
    [number] = [key for key, value in editor.client.protocol._request_futures.items() if not value.done()]
    editor.client.cancel_request(types.CancelParams(number))
    with pytest.raises(JsonRpcException):
        await asyncio.wait_for(future, SECONDS)
    async with asyncio.timeout(SECONDS):
        while backend.engine.running:
            await asyncio.sleep(0.01)


async def test_nothing_worth_showing_is_an_empty_list(backend: LiveServer, editor: Editor) -> None:
    backend.engine.reply = "  \n"
    assert await editor.complete(1, 11) == []


async def test_a_server_that_is_gone_is_logged_once_and_costs_nothing(tmp_path: Path) -> None:
    editor = Editor(tmp_path)
    await editor.start("http://127.0.0.1:9")
    editor.open(SOURCE)
    for character in range(3):
        assert await editor.complete(1, character) == []
    assert sum("no answer" in line for line in editor.logged) == 2  # one of them for the workspace
    await editor.stop()


async def test_an_edit_replaces_the_lines_that_change(backend: LiveServer, editor: Editor) -> None:
    new = SOURCE.replace("return ", "return first + second")
    backend.engine.reply = f"{new}```\n"
    assert await editor.edit("Return the sum") == {"applied": True, "reason": None}
    assert editor.text == new
    [change] = editor.applied[0].document_changes or []
    assert isinstance(change, types.TextDocumentEdit)
    assert len(change.edits) == 1
    request = backend.engine.requests[-1]
    assert SOURCE in (request.prediction or "")
    assert request.edited_path == editor.path


async def test_an_edit_of_a_selection(backend: LiveServer, editor: Editor) -> None:
    backend.engine.reply = "    return first + second\n```\n"
    span = types.Range(types.Position(1, 0), types.Position(2, 0))
    assert (await editor.edit("Return the sum", span))["applied"]
    assert editor.text == SOURCE.replace("    return \n", "    return first + second\n")


async def test_an_edit_is_not_applied_to_a_document_that_changed_meanwhile(backend: LiveServer, editor: Editor) -> None:
    backend.engine.reply = "new = True\n```\n"
    backend.engine.delay = 0.05
    editing = asyncio.create_task(editor.edit("Replace it"))
    await asyncio.sleep(0.05)
    editor.type(0, 0, "#")
    assert (await editing)["applied"] is False
    assert editor.applied == []


async def test_an_edit_that_fails_changes_nothing_and_says_why(backend: LiveServer, editor: Editor) -> None:
    backend.engine.reply = "x" * 10_000
    result = await editor.edit("Fill the context " * 300)
    assert result["applied"] is False
    assert editor.text == SOURCE
    assert editor.shown


async def test_an_edit_that_leaves_nothing_is_not_applied(backend: LiveServer, editor: Editor) -> None:
    backend.engine.reply = "```\n"
    assert (await editor.edit("Tidy up"))["applied"] is False
    assert editor.text == SOURCE


async def test_wrong_arguments_of_the_command_are_an_error(editor: Editor) -> None:
    params = types.ExecuteCommandParams("agentspec.edit", [{"uri": editor.uri}])
    with pytest.raises(JsonRpcException, match="instruction"):
        await editor.client.workspace_execute_command_async(params)


async def test_what_was_accepted_is_told(backend: LiveServer, editor: Editor) -> None:
    backend.engine.reply = "first + second"
    [item] = await editor.complete(1, 11)
    assert item.command is not None
    params = types.ExecuteCommandParams(item.command.command, item.command.arguments)
    await editor.client.workspace_execute_command_async(params)
    assert not [line for line in editor.logged if "feedback" in line]
