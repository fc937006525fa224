"""From the fields of a call to the requests of the engine."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from agentspec.engines.base import GenerationRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentspec.api.schemas.common import GenerationFields
    from agentspec.api.services import Services
    from agentspec.engines.base import Prompt, SamplingParams


def new_id(prefix: str) -> str:
    """A fresh id that begins with `prefix`, e.g. `chatcmpl-`."""
    return prefix + uuid.uuid4().hex


def engine_requests(
    services: Services,
    *,
    caller: str,
    fields: GenerationFields,
    call_id: str,
    prompts: Sequence[Prompt],
    sampling: SamplingParams,
) -> list[GenerationRequest]:
    """One engine request per prompt.

    Raises:
        NotFoundError: the repository is not registered by this caller.
        InvalidRequestError: the form of the answer is not complete, or the choice of tools fits none that is offered.
    """
    repository = None
    if fields.repository is not None:
        repository = services.repositories.find(fields.repository, caller).id
    requests = [
        GenerationRequest(
            id=f"{call_id}-{position}",
            prompt=prompt,
            sampling=sampling,
            n=fields.choices,
            repository=repository,
            edited_path=fields.edited_path,
            prediction=fields.prediction.text() if fields.prediction is not None else None,
            speculation=fields.speculation,
            output_format=fields.output_format,
            tool_choice=fields.tool_policy,
        )
        for position, prompt in enumerate(prompts)
    ]
    requests[0].callable_tools()
    return requests
