"""Bodies of `/v1/edits`, `/v1/apply` and `/v1/feedback`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from agentspec.api.edits.patch_formats import PatchFormat
from agentspec.api.schemas.common import AgentspecOptions, GenerationFields, Prediction, RequestModel, TokenCount
from agentspec.api.schemas.usage import ReceiptField, Usage

Output = Literal["file", "selection", "patch"]
Method = Literal["model", "exact"]
LineNumber = Annotated[int, Field(ge=0, lt=2**31)]


class FileFields(RequestModel):
    """A file to be changed, and how the model is to write it. The temperature is 0 when left out."""

    model: str | None = Field(default=None, description="the served model; null means the only one there is")
    path: Annotated[str, Field(max_length=4096)] | None = Field(
        default=None, description="the file's path, relative to the repository where one is named"
    )
    content: str | None = Field(default=None, description="its text; left out, it is read from the repository")
    repository: str | None = Field(default=None, description="id or path of a registered repository")
    output: Output | None = Field(default=None, description="the new file (default), or what became of it")
    stream: bool | None = None
    max_tokens: TokenCount | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    agentspec: AgentspecOptions | None = None
    user: str | None = None
    metadata: dict[str, Any] | None = None

    def generation(self, predicted: str) -> GenerationFields:
        """The fields of a generation whose output is expected to resemble `predicted`."""
        return GenerationFields(
            model=self.model,
            stream=self.stream,
            temperature=self.temperature or 0.0,
            top_p=self.top_p,
            seed=self.seed,
            prediction=Prediction(type="content", content=predicted) if predicted else None,
            repository=self.repository,
            edited_path=self.path,
            agentspec=self.agentspec,
        )


class Selection(RequestModel):
    """Whole lines of a file, counted from 1. An `end_line` just before `start_line` selects the place before it."""

    start_line: Annotated[LineNumber, Field(ge=1)]
    end_line: LineNumber


class OtherFile(RequestModel):
    """Another file that the model should know."""

    path: Annotated[str, Field(min_length=1, max_length=4096)]
    content: str


class EditRequest(FileFields):
    """A change to be made by instruction."""

    instruction: Annotated[str, Field(min_length=1)]
    selection: Selection | None = Field(default=None, description="change these lines only")
    context: Annotated[list[OtherFile], Field(max_length=64)] | None = Field(
        default=None, description="other files to be shown to the model"
    )


class ApplyRequest(FileFields):
    """A patch to be applied, or a sketch to be worked into the file."""

    update: Annotated[str, Field(min_length=1)] = Field(description="the patch or sketch")
    format: PatchFormat | None = Field(default=None, description="its format; found out when left out")
    instruction: str | None = Field(default=None, description="what the update is meant to do")
    output: Literal["file", "patch"] | None = Field(default=None, description="the new file (default) or a diff")


class EditAnswer(BaseModel):
    """The changed file. It is complete only where `finish_reason` is `stop`."""

    id: str
    object: Literal["edit", "apply"]
    created: int
    model: str
    path: str | None
    output: Output
    content: str
    method: Method = Field(description="`exact`: a patch that fitted, applied without the model")
    finish_reason: str
    usage: Usage
    agentspec: ReceiptField | None = None


class EditChunk(BaseModel):
    """One event of a stream; the deltas add up to the `content` of the whole answer."""

    id: str
    object: Literal["edit.chunk", "apply.chunk"]
    created: int
    model: str
    method: Method
    delta: str
    finish_reason: str | None = None
    usage: Usage | None = None
    agentspec: ReceiptField | None = None


class FeedbackRequest(RequestModel):
    """What became of an answer in the editor."""

    id: Annotated[str, Field(pattern=r"^[a-z]{2,8}[-_][0-9a-f]{32}$")] = Field(description="id of the answer")
    accepted: bool


class FeedbackAnswer(BaseModel):
    """The feedback was counted."""

    object: Literal["feedback"] = "feedback"
    id: str
    accepted: bool
