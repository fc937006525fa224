"""Fields that the generation endpoints share, and how they become engine parameters."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic_core import to_json

from agentspec.engines.base import OutputFormat, SamplingParams, ToolChoice
from agentspec.errors import InvalidRequestError

MAX_CHOICES = 128
"""Choices that one call may ask for, over all its prompts."""

Probability = Annotated[float, Field(ge=0, le=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
TokenCount = Annotated[int, Field(ge=1, lt=2**31)]
StopString = Annotated[str, Field(max_length=1000)]


class RequestModel(BaseModel):
    """Base of request bodies: types are taken literally, unknown fields are ignored."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, json_schema_extra={"additionalProperties": True})


class StreamOptions(RequestModel):
    """How a stream ends.

    Attributes:
        include_usage: send one more chunk, without choices, that holds the usage of the whole call.
    """

    include_usage: bool | None = None


class AgentspecOptions(RequestModel):
    """What only agentspec knows.

    Attributes:
        receipt: answer with the receipt: where the tokens came from and what they cost.
        speculation: false decodes plainly.
    """

    receipt: bool = False
    speculation: bool = True


class TextPart(RequestModel):
    """A piece of text content."""

    type: Literal["text"]
    text: str


class Prediction(RequestModel):
    """Text that the client expects to see in the output; drafts are made from it."""

    type: Literal["content"]
    content: str | list[TextPart]

    def text(self) -> str:
        """The predicted text."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class JsonSchema(RequestModel):
    """A schema with what OpenAI's API says of it."""

    name: str | None = None
    description: str | None = None
    definition: dict[str, Any] | bool | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(JsonSchema):
    """The form of the answer; a schema stands in `json_schema`, or beside the type as in the Responses API."""

    type: Literal["text", "json_object", "json_schema", "regex"]
    json_schema: JsonSchema | None = None
    pattern: Annotated[str, Field(min_length=1)] | None = Field(default=None, description="expression of a `regex`")

    def output_format(self, field: str) -> OutputFormat | None:
        """The form for the engine; None: free text.

        Args:
            field: name of the field that holds this, for messages.

        Raises:
            InvalidRequestError: the schema or the expression is missing.
        """
        if self.type == "text":
            return None
        if self.type == "json_object":
            return OutputFormat("json_object")
        if self.type == "regex":
            if self.pattern is None:
                raise InvalidRequestError("a format of type 'regex' needs a pattern", f"{field}.pattern")
            return OutputFormat("regex", self.pattern)
        schema = self.definition if self.json_schema is None else self.json_schema.definition
        if schema is None:
            raise InvalidRequestError("a format of type 'json_schema' needs a schema", f"{field}.json_schema")
        return OutputFormat("json_schema", to_json(schema).decode())


class GenerationFields(RequestModel):
    """Fields of both generation endpoints. Those left out or null take the defaults of `SamplingParams`."""

    model: str | None = Field(default=None, description="the served model; null means the only one there is")
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = Field(default=None, description="0 and -1 keep all tokens")
    min_p: Probability | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    logit_bias: (
        dict[Annotated[str, StringConstraints(pattern=r"^[0-9]{1,9}$")], Annotated[float, Field(ge=-100, le=100)]]
        | None
    ) = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: StopString | Annotated[list[StopString], Field(max_length=16)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=64)] | None = None
    ignore_eos: bool | None = None
    user: str | None = None
    metadata: dict[str, Any] | None = None
    prediction: Prediction | None = None
    repository: str | None = Field(default=None, description="id or path of a registered repository")
    edited_path: str | None = Field(default=None, description="file being edited, relative to the repository")
    response_format: ResponseFormat | None = None
    agentspec: AgentspecOptions | None = None

    def sampling(self, logprobs: int | None, max_tokens: int | None) -> SamplingParams:
        """Engine parameters of these fields; the endpoints differ in how they ask for the two arguments."""
        given: dict[str, Any] = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": None if self.top_k is None else max(0, self.top_k),
            "min_p": self.min_p,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "repetition_penalty": self.repetition_penalty,
            "logit_bias": {int(token): bias for token, bias in (self.logit_bias or {}).items()},
            "ignore_eos": self.ignore_eos,
        }
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return SamplingParams(
            seed=self.seed,
            stop=tuple(text for text in stop if text),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            logprobs=logprobs,
            max_tokens=max_tokens,
            **{name: value for name, value in given.items() if value is not None},
        )

    @property
    def output_format(self) -> OutputFormat | None:
        """The form of the answer.

        Raises:
            InvalidRequestError: it is not complete.
        """
        return None if self.response_format is None else self.response_format.output_format("response_format")

    @property
    def tool_policy(self) -> ToolChoice:
        """How the offered tools may be called."""
        return ToolChoice()

    @property
    def choices(self) -> int:
        """Choices per prompt."""
        return self.n or 1

    @property
    def wants_usage(self) -> bool:
        """Whether a stream is to end with a usage chunk."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def wants_receipt(self) -> bool:
        """Whether the answer is to carry the receipt."""
        return bool(self.agentspec and self.agentspec.receipt)

    @property
    def speculation(self) -> bool:
        """Whether drafts may be used."""
        return self.agentspec is None or self.agentspec.speculation
