"""Errors on the wire: OpenAI error objects, their HTTP statuses, and the handlers that make them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import Response

from agentspec.errors import AgentspecError, OverloadedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fastapi import FastAPI
    from starlette.requests import Request

TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
"""OpenAI's error types by HTTP status; other 4xx are `invalid_request_error`, 5xx are `server_error`."""

ANTHROPIC_PATH = "/v1/messages"

ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
"""Anthropic's error types by HTTP status; other 4xx are `invalid_request_error`, 5xx are `api_error`."""

CODES = {
    401: "invalid_api_key",
    404: "not_found",
    405: "method_not_allowed",
    413: "request_too_large",
    415: "unsupported_media_type",
}
"""Codes of errors that carry no code of their own, by HTTP status."""

UNION_TAGS = frozenset({"str", "int", "float", "bool", "none"})
"""Names by which pydantic tells apart the branches of a union; they are no part of a field's path."""

SHOWN_PROBLEMS = 3
"""Validation problems named in one message; more would bury the first."""


class ErrorObject(BaseModel):
    """What went wrong, for people (`message`) and programs (`type`, `param`, `code`)."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorResponse(BaseModel):
    """Body of every answer with a 4xx or 5xx status, and of errors inside a stream."""

    error: ErrorObject


class AnthropicErrorObject(BaseModel):
    """What went wrong, as Anthropic's clients read it."""

    type: str
    message: str


class AnthropicErrorResponse(BaseModel):
    """Body of errors below `/v1/messages`."""

    type: Literal["error"] = "error"
    error: AnthropicErrorObject


ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorResponse, "description": "The request was refused; the error object says why."},
    "5XX": {"model": ErrorResponse, "description": "The server could not serve the request."},
}
"""Error answers of every endpoint, for the OpenAPI schema."""


def status_of(error: Exception) -> int:
    """HTTP status that `error` is answered with."""
    if isinstance(error, AgentspecError):
        return error.status
    if isinstance(error, HTTPException):
        return error.status_code
    return 400 if isinstance(error, RequestValidationError) else 500


def error_object(error: Exception) -> ErrorObject:
    """The error object of an exception; one that was not raised on purpose shows nothing of its inside."""
    status = status_of(error)
    kind = TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    if isinstance(error, AgentspecError):
        param = getattr(error, "param", None)
        return ErrorObject(message=str(error), type=kind, param=param, code=error.code)
    if isinstance(error, HTTPException):
        return ErrorObject(message=str(error.detail), type=kind, code=CODES.get(status))
    if isinstance(error, RequestValidationError):
        return _validation_object(error.errors(), kind)
    return ErrorObject(
        message="The server failed on this request; its log has the cause under the request id.",
        type=kind,
        code="internal_error",
    )


def error_body(error: Exception, path: str) -> bytes:
    """JSON of an exception as clients of `path` know it: in Anthropic's shape below `/v1/messages`, else OpenAI's."""
    shown = error_object(error)
    if not path.startswith(ANTHROPIC_PATH):
        return ErrorResponse(error=shown).model_dump_json().encode()
    kind = ANTHROPIC_TYPES.get(status_of(error), "invalid_request_error" if status_of(error) < 500 else "api_error")
    return (
        AnthropicErrorResponse(error=AnthropicErrorObject(type=kind, message=shown.message)).model_dump_json().encode()
    )


def error_response(error: Exception, path: str) -> Response:
    """The HTTP answer to an exception on `path`, `Retry-After` included where a retry is sensible."""
    headers: dict[str, str] = {}
    if isinstance(error, HTTPException) and error.headers:
        headers.update(error.headers)
    if isinstance(error, OverloadedError):
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after)))
    if status_of(error) == 401:
        headers["www-authenticate"] = "Bearer"
    return Response(error_body(error, path), status_of(error), headers, "application/json")


def install_error_handlers(app: FastAPI) -> None:
    """Answer every error of `app`'s endpoints with an error object."""

    async def handle(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException) and error.status_code in {404, 405}:
            text = f"there is no {request.method} {request.url.path} here; /openapi.json lists what there is"
            error = HTTPException(error.status_code, text, error.headers)
        response = error_response(error, request.url.path)
        if response.status_code == 405 and (methods := _allowed_methods(request)):
            response.headers["allow"] = methods
        return response

    for kind in (AgentspecError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, handle)


def _allowed_methods(request: Request) -> str:
    """Methods of the requested path; a router names only those of the first of its routes that has this path."""
    path = getattr(request.scope.get("route"), "path", None)
    routes = (route for router in request.app.state.routers for route in router.routes if route.path == path)
    return ", ".join(sorted(method for route in routes for method in route.methods))


def _validation_object(problems: Sequence[Mapping[str, Any]], kind: str) -> ErrorObject:
    if problems[0]["type"] == "json_invalid":
        return ErrorObject(message=problems[0]["ctx"]["error"], type=kind, code="invalid_json")
    texts = list(dict.fromkeys(f"{_field(problem['loc']) or 'body'}: {problem['msg']}" for problem in problems))
    more = f"; and {len(texts) - SHOWN_PROBLEMS} more" if len(texts) > SHOWN_PROBLEMS else ""
    return ErrorObject(
        message="; ".join(texts[:SHOWN_PROBLEMS]) + more,
        type=kind,
        param=_field(problems[0]["loc"]),
        code="missing_required_parameter" if problems[0]["type"] == "missing" else "invalid_value",
    )


def _field(location: Sequence[int | str]) -> str | None:
    """Dotted path of a field, e.g. `messages.0.content`; union branches that pydantic names are cut off."""
    path: list[str] = []
    for part in location[1:]:
        if isinstance(part, str) and (part in UNION_TAGS or not part.islower() or not part.isidentifier()):
            break
        path.append(str(part))
    return ".".join(path) or None
