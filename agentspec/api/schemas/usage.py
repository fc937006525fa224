"""Usage and receipts: true counts of what a call cost, taken from the engine's receipts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentspec.engines.base import Receipt

PREDICTION = "prediction"
"""Name in receipts of the draft source that reads the client's predicted output."""


class PromptTokensDetails(BaseModel):
    """Of the prompt tokens, those whose KV was reused."""

    cached_tokens: int


class CompletionTokensDetails(BaseModel):
    """Tokens drafted from the client's prediction that the target confirmed, and those it did not."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(BaseModel):
    """OpenAI's usage object."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails

    @classmethod
    def of(cls, receipts: Sequence[Receipt], choices_per_prompt: int) -> Usage:
        """Usage of one call: prompts count once each, completions once per choice.

        Args:
            receipts: one per choice, the choices of one prompt side by side.
            choices_per_prompt: how many that are.
        """
        first_choices = receipts[::choices_per_prompt]
        prompt = sum(receipt.prompt_tokens for receipt in first_choices)
        completion = sum(receipt.completion_tokens for receipt in receipts)
        drafted = sum(receipt.drafted.get(PREDICTION, 0) for receipt in receipts)
        accepted = sum(receipt.accepted.get(PREDICTION, 0) for receipt in receipts)
        return cls(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=prompt + completion,
            prompt_tokens_details=PromptTokensDetails(
                cached_tokens=sum(receipt.cached_tokens for receipt in first_choices)
            ),
            completion_tokens_details=CompletionTokensDetails(
                accepted_prediction_tokens=accepted, rejected_prediction_tokens=drafted - accepted
            ),
        )


class ChoiceReceipt(BaseModel):
    """What one choice cost and where its tokens came from.

    Attributes:
        index: the choice.
        prompt_tokens: length of the rendered prompt.
        cached_tokens: leading prompt tokens whose KV was reused.
        completion_tokens: tokens generated.
        verify_steps: passes of the target after prefill.
        tokens_per_step: completion tokens per verify step.
        drafted: nodes verified, by draft source.
        accepted: nodes accepted, by draft source.
        queue_seconds: time before prefill began.
        prefill_seconds: time in prefill.
        draft_seconds: time in drafters.
        verify_seconds: time in verify steps, acceptance included.
        speculation: false when the choice was decoded plainly.
        warnings: why something asked for was not done.
    """

    index: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    verify_steps: int
    tokens_per_step: float
    drafted: dict[str, int]
    accepted: dict[str, int]
    queue_seconds: float
    prefill_seconds: float
    draft_seconds: float
    verify_seconds: float
    speculation: bool
    warnings: list[str]


class ReceiptField(BaseModel):
    """The `agentspec` field of an answer: one receipt per choice, in order."""

    receipts: list[ChoiceReceipt]

    @classmethod
    def of(cls, receipts: Sequence[Receipt]) -> ReceiptField:
        """The field for the receipts of a call's choices."""
        return cls(
            receipts=[
                ChoiceReceipt(
                    index=index,
                    prompt_tokens=receipt.prompt_tokens,
                    cached_tokens=receipt.cached_tokens,
                    completion_tokens=receipt.completion_tokens,
                    verify_steps=receipt.verify_steps,
                    tokens_per_step=receipt.completion_tokens / max(1, receipt.verify_steps),
                    drafted=dict(receipt.drafted),
                    accepted=dict(receipt.accepted),
                    queue_seconds=receipt.queue_seconds,
                    prefill_seconds=receipt.prefill_seconds,
                    draft_seconds=receipt.draft_seconds,
                    verify_seconds=receipt.verify_seconds,
                    speculation=receipt.speculation,
                    warnings=list(receipt.warnings),
                )
                for index, receipt in enumerate(receipts)
            ]
        )
