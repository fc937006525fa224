"""The language server: documents from the editor, completions and edits from the agentspec server."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lsprotocol import types
from pygls.exceptions import JsonRpcInvalidParams
from pygls.lsp.server import LanguageServer
from pygls.uris import to_fs_path

from agentspec import __version__
from agentspec.lsp.backend import Backend, BackendError
from agentspec.lsp.changes import line_edits
from agentspec.lsp.inline import Cursor, Memory, Suggestion

if TYPE_CHECKING:
    from pygls.workspace import TextDocument

EDIT_COMMAND = "agentspec.edit"
"""Change a document by instruction: `[{"uri": ..., "instruction": ..., "range": optional}]`."""

ACCEPTED_COMMAND = "agentspec.accepted"
"""Editors run it after a suggestion was inserted: `[id]`."""


@dataclass(frozen=True, slots=True)
class Options:
    """How the language server works.

    Attributes:
        url: base URL of the agentspec server, without `/v1`.
        key: its key, None where it asks for none.
        debounce_seconds: pause in typing before the model is asked.
        max_tokens: longest inline completion.
    """

    url: str
    key: str | None
    debounce_seconds: float
    max_tokens: int


class EditServer(LanguageServer):
    """One editor's language server.

    Args:
        options: how it works.
    """

    def __init__(self, options: Options) -> None:
        super().__init__("agentspec", __version__, text_document_sync_kind=types.TextDocumentSyncKind.Incremental)
        self._options = options
        self._backend = Backend(options.url, options.key, options.max_tokens)
        self._memory = Memory()
        self._asked: dict[str, asyncio.Task[Suggestion]] = {}
        self._folders: list[str] = []
        self._silenced = False

    async def index_workspace(self) -> None:
        """Have the editor's folders indexed, where the server allows it."""
        for folder in self.workspace.folders.values():
            path = to_fs_path(folder.uri)
            if path is None:
                continue
            try:
                await self._backend.register(path)
                self._folders.append(path)
            except BackendError as error:
                self._log(f"{path} drafts nothing: {error}")

    async def end(self) -> None:
        """Give up what is being asked and close all connections."""
        for task in self._asked.values():
            task.cancel()
        await self._backend.close()

    def forget(self, uri: str) -> None:
        """Give up what is being asked for a document."""
        if task := self._asked.pop(uri, None):
            task.cancel()

    async def suggest(self, params: types.InlineCompletionParams) -> types.InlineCompletionList:
        """What to insert at a position: one suggestion, or none."""
        document = self.workspace.get_text_document(params.text_document.uri)
        cursor = Cursor.at(document.uri, document.source, document.offset_at_position(params.position))
        suggestion = self._memory.recall(cursor)
        if suggestion is None:
            automatic = params.context.trigger_kind == types.InlineCompletionTriggerKind.Automatic
            suggestion = await self._newest(cursor, self._options.debounce_seconds if automatic else 0.0)
        if suggestion is None or not suggestion.text:
            return types.InlineCompletionList([])
        accepted = types.Command("accepted", ACCEPTED_COMMAND, arguments=[suggestion.id])
        where = types.Range(params.position, params.position)
        return types.InlineCompletionList([types.InlineCompletionItem(suggestion.text, range=where, command=accepted)])

    async def _newest(self, cursor: Cursor, delay: float) -> Suggestion | None:
        """Ask the model; None when the user typed on meanwhile or the server has no answer."""
        self.forget(cursor.uri)
        task = self._asked[cursor.uri] = asyncio.create_task(self._ask(cursor, delay))
        try:
            suggestion = await task
        except BackendError as error:
            self._complain(error)
            return None
        except asyncio.CancelledError:
            task.cancel()
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise
            return None
        finally:
            if self._asked.get(cursor.uri) is task:
                del self._asked[cursor.uri]
        self._silenced = False
        self._memory.add(cursor, suggestion)
        return suggestion

    async def _ask(self, cursor: Cursor, delay: float) -> Suggestion:
        await asyncio.sleep(delay)
        path, repository = self._place(cursor.uri)
        return await self._backend.complete(cursor, path, repository)

    def _place(self, uri: str) -> tuple[str | None, str | None]:
        """A document's path inside its repository, and the repository."""
        path = to_fs_path(uri)
        for folder in self._folders if path is not None else ():
            if Path(path or "").is_relative_to(folder):
                return Path(path or "").relative_to(folder).as_posix(), folder
        return None, None

    async def edit(self, target: dict[str, Any]) -> dict[str, Any]:
        """Let the model change a document, and have the editor apply what changed.

        Args:
            target: `uri`, `instruction` and perhaps `range`, in the protocol's form.

        Returns:
            Whether it was `applied`, and the `reason` if not.

        Raises:
            JsonRpcInvalidParams: something is missing in `target`.
        """
        try:
            document = self.workspace.get_text_document(target["uri"])
            version = document.version
            body = self._edit_body(document, target["instruction"], target.get("range"))
        except (LookupError, TypeError) as error:
            message = f"{EDIT_COMMAND} takes one argument with 'uri', 'instruction' and perhaps 'range': {error!r}"
            raise JsonRpcInvalidParams(message) from error
        pieces = []
        answer_id = None
        try:
            async for chunk in self._backend.edit(body):
                pieces.append(chunk["delta"])
                answer_id = chunk["id"]
        except BackendError as error:
            self.window_show_message(types.ShowMessageParams(types.MessageType.Error, f"agentspec: {error}"))
            return {"applied": False, "reason": str(error)}
        new = "".join(pieces)
        if body["content"].strip() and not new.strip():
            return {"applied": False, "reason": "the model left nothing of the document"}
        edits = line_edits(body["content"], new, self.workspace.position_codec.client_num_units)
        if not edits:
            return {"applied": False, "reason": "the model changed nothing"}
        # The version makes the editor refuse if the user typed on meanwhile.
        versioned = types.OptionalVersionedTextDocumentIdentifier(document.uri, version)
        change = types.WorkspaceEdit(document_changes=[types.TextDocumentEdit(versioned, list(edits))])
        label = f"agentspec: {target['instruction']}"
        result = await self.workspace_apply_edit_async(types.ApplyWorkspaceEditParams(change, label))
        if result.applied and answer_id:
            await self.tell_accepted(answer_id)
        return {"applied": result.applied, "reason": result.failure_reason}

    def _edit_body(self, document: TextDocument, instruction: str, span: dict[str, Any] | None) -> dict[str, Any]:
        path, repository = self._place(document.uri)
        body: dict[str, Any] = {
            "path": path or Path(to_fs_path(document.uri) or document.uri).name,
            "content": document.source,
            "instruction": instruction,
            "repository": repository,
        }
        if span is not None:
            start, end = span["start"]["line"], span["end"]["line"]
            # A selection that ends before the first character of a line does not contain that line.
            last = end if span["end"]["character"] == 0 and end > start else end + 1
            body["selection"] = {"start_line": start + 1, "end_line": last}
        return body

    async def tell_accepted(self, answer_id: str) -> None:
        """Tell the server that its answer was taken."""
        try:
            await self._backend.accepted(answer_id)
        except BackendError as error:
            self._log(f"feedback was not taken: {error}")

    def _complain(self, error: BackendError) -> None:
        """Log an error once, not with every key."""
        if not self._silenced:
            self._log(str(error))
        self._silenced = True

    def _log(self, message: str) -> None:
        self.window_log_message(types.LogMessageParams(types.MessageType.Warning, f"agentspec: {message}"))


def create_server(options: Options) -> EditServer:
    """A language server that is ready to be started; pygls wants functions as handlers, not methods."""
    server = EditServer(options)

    @server.feature(types.INITIALIZED)
    async def initialized(_params: types.InitializedParams) -> None:
        await server.index_workspace()

    @server.feature(types.SHUTDOWN)
    async def shutdown(*_: object) -> None:
        await server.end()

    @server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    def did_close(params: types.DidCloseTextDocumentParams) -> None:
        server.forget(params.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_INLINE_COMPLETION, types.InlineCompletionOptions())
    async def inline_completion(params: types.InlineCompletionParams) -> types.InlineCompletionList:
        return await server.suggest(params)

    @server.command(EDIT_COMMAND)
    async def edit(target: dict[str, Any]) -> dict[str, Any]:
        return await server.edit(target)

    @server.command(ACCEPTED_COMMAND)
    async def accepted(answer_id: str) -> None:
        await server.tell_accepted(answer_id)

    return server
