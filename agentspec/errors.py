"""The exception tree: every error agentspec raises on purpose.

Messages say what was wrong, with which input, and what to do about it. The API layer maps these to OpenAI error
objects by `status` and `code`; the CLI prints the message and exits with `exit_code`.
"""


class AgentspecError(Exception):
    """Base of all errors raised on purpose.

    Attributes:
        status: HTTP status the API answers with.
        code: machine-readable reason, as in OpenAI's error objects.
        exit_code: process exit status of the CLI.
    """

    status = 500
    code = "internal_error"
    exit_code = 1


class InvalidRequestError(AgentspecError):
    """The caller's input cannot be served as it is.

    Args:
        message: what was wrong and what to do.
        param: the request field at fault, if one is.
    """

    status = 400
    code = "invalid_request"
    exit_code = 2

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ContextOverflowError(InvalidRequestError):
    """Prompt plus requested completion do not fit the model's context."""

    code = "context_length_exceeded"


class NotFoundError(InvalidRequestError):
    """A named model, repository or resource does not exist."""

    status = 404
    code = "not_found"


class ForbiddenError(InvalidRequestError):
    """The input names something outside what this server may touch."""

    status = 403
    code = "forbidden"


class OverloadedError(AgentspecError):
    """No capacity right now; the caller may retry.

    Args:
        message: what is full.
        retry_after: seconds after which a retry is sensible.
    """

    status = 429
    code = "overloaded"

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class EngineUnavailableError(OverloadedError):
    """The engine is starting, restarting or stopped."""

    status = 503
    code = "engine_unavailable"


class EngineError(AgentspecError):
    """The engine failed while serving one request; others are not affected."""

    code = "engine_error"


class IndexStoreError(AgentspecError):
    """An index on disk cannot be used: missing, truncated, corrupt, or of another format."""

    code = "index_unusable"
    exit_code = 4


class TokenizerMismatchError(IndexStoreError):
    """An index was built with another tokenizer than the model's."""

    code = "tokenizer_mismatch"


class ModelError(AgentspecError):
    """A model cannot be fetched, verified or loaded."""

    code = "model_unusable"
    exit_code = 5


class DraftTreeError(AgentspecError):
    """A draft tree breaks one of its invariants (see `agentspec.drafters.tree`)."""

    code = "invalid_draft_tree"
