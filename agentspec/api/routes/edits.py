"""`/v1/edits`, `/v1/apply` and `/v1/feedback`: changing a file, and telling what became of the answer."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from starlette.responses import Response

from agentspec.api.edits.answer_text import AnswerText, unified_diff
from agentspec.api.edits.answers import EditReply
from agentspec.api.edits.lines import with_line_feeds
from agentspec.api.edits.patch_formats import apply_patch, detect_format
from agentspec.api.edits.prompts import apply_prompt, edit_prompt, selection_prompt
from agentspec.api.edits.replacements import PatchMismatchError
from agentspec.api.edits.repository_file import read_file
from agentspec.api.edits.source_file import SourceFile
from agentspec.api.errors import ERROR_RESPONSES
from agentspec.api.json_body import JsonRoute
from agentspec.api.schemas.edits import (
    ApplyRequest,
    EditAnswer,
    EditRequest,
    FeedbackAnswer,
    FeedbackRequest,
    FileFields,
    Selection,
)
from agentspec.api.services import CallerOf, Services, ServicesOf
from agentspec.api.streaming import STREAM_RESPONSE
from agentspec.errors import InvalidRequestError

router = APIRouter(prefix="/v1", route_class=JsonRoute, tags=["Edits"], responses=ERROR_RESPONSES)


@router.post("/edits", response_model=EditAnswer, responses=STREAM_RESPONSE)
async def create_edit(body: EditRequest, request: Request, services: ServicesOf, caller: CallerOf) -> Response:
    """Change a file, or some lines of it, as an instruction says."""
    reply = EditReply(services, "edit", body)
    file = await _file(body, services, caller)
    context = [SourceFile.of(other.path, other.content) for other in body.context or ()]
    output = body.output or "file"
    if body.selection is None:
        if output == "selection":
            raise InvalidRequestError("output 'selection' needs a selection", "output")
        prompt = edit_prompt(file, body.instruction, context)
        return await reply.written(request, caller, prompt, AnswerText(file, output, prompt.fence))
    start, end = _selected(body.selection, file)
    selected = SourceFile(file.path, "".join(file.lines()[start:end]))
    prompt = selection_prompt(file, selected, start + 1, body.instruction, context)
    return await reply.written(request, caller, prompt, AnswerText(file, output, prompt.fence, start, end))


@router.post("/apply", response_model=EditAnswer, responses=STREAM_RESPONSE)
async def apply_update(body: ApplyRequest, request: Request, services: ServicesOf, caller: CallerOf) -> Response:
    """Apply a patch to a file: exactly where it fits, else, as with a sketch, by the model."""
    reply = EditReply(services, "apply", body)
    file = await _file(body, services, caller)
    update = with_line_feeds(body.update)
    output = body.output or "file"
    kind = body.format or detect_format(update, file.text)
    if kind != "sketch":
        try:
            new = apply_patch(file.text, update, kind, file.path)
        except PatchMismatchError:
            pass  # the model may see what is meant
        else:
            return await reply.given(request, unified_diff(file, new) if output == "patch" else file.restored(new))
    prompt = apply_prompt(file, update, body.instruction)
    return await reply.written(request, caller, prompt, AnswerText(file, output, prompt.fence))


@router.post("/feedback")
async def give_feedback(body: FeedbackRequest, services: ServicesOf) -> FeedbackAnswer:
    """Count whether an answer was taken over. Nothing but a metric changes."""
    services.metrics.feedback_given(body.id, accepted=body.accepted)
    return FeedbackAnswer(id=body.id, accepted=body.accepted)


async def _file(fields: FileFields, services: Services, caller: str) -> SourceFile:
    """The file that a call is about.

    Raises:
        InvalidRequestError: neither its text nor a place to read it from is given, or it cannot be read.
    """
    path = fields.path or ""
    if fields.content is not None:
        return SourceFile.of(path, fields.content)
    if fields.repository is None or not path:
        raise InvalidRequestError("give the file's content, or a repository and a path in it", "content")
    root = services.repositories.find(fields.repository, caller).path
    content = await asyncio.to_thread(read_file, root, path, services.settings.index.max_file_bytes)
    return SourceFile.of(path, content)


def _selected(selection: Selection, file: SourceFile) -> tuple[int, int]:
    """First selected line, from 0, and the line behind the last one.

    Raises:
        InvalidRequestError: the file has no such lines.
    """
    start, end = selection.start_line - 1, selection.end_line
    count = len(file.lines())
    if not start <= end <= count:
        raise InvalidRequestError(
            f"lines {selection.start_line} to {selection.end_line} are none of a file of {count} lines", "selection"
        )
    return start, end
