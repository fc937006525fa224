"""Bodies of the fill-in-the-middle endpoints: llama.cpp's `/infill` and Mistral's `/v1/fim/completions`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from agentspec.api.schemas.common import GenerationFields, RequestModel, TokenCount


class ExtraFile(RequestModel):
    """Another file that the completion may draw on."""

    filename: str = ""
    text: str


class InfillRequest(GenerationFields):
    """What llama.vim and llama.vscode send. The temperature is 0 when left out."""

    input_prefix: str = ""
    input_suffix: str = ""
    prompt: str = Field(default="", description="what the completion begins with already, behind the cursor marker")
    input_extra: list[ExtraFile] | None = None
    filename: str = Field(default="", description="name of the edited file")
    n_predict: Annotated[int, Field(ge=-1, lt=2**31)] | None = Field(
        default=None, description="0 only warms the prefix cache; -1 means no limit"
    )


class InfillTimings(BaseModel):
    """Speed as llama.cpp reports it; cached prompt tokens are not counted."""

    prompt_n: int
    prompt_ms: float
    predicted_n: int
    predicted_ms: float
    predicted_per_second: float


class InfillResponse(BaseModel):
    """The completion, or one event of a stream; the fields behind `stop` come with the last event."""

    index: int = 0
    content: str
    stop: bool
    id: str | None = Field(default=None, description="names the completion for /v1/feedback")
    model: str | None = None
    stop_type: Literal["eos", "limit", "none"] | None = None
    tokens_predicted: int | None = None
    tokens_evaluated: int | None = None
    tokens_cached: int | None = None
    truncated: bool | None = None
    timings: InfillTimings | None = None


class FimCompletionRequest(GenerationFields):
    """Mistral's request."""

    prompt: str
    suffix: str | None = None
    max_tokens: TokenCount | None = None
    random_seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
