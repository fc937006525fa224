"""The card that goes with a head: what it was trained on, how, and what it reached."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentspec.training.data import DataSet
    from agentspec.training.pipeline import HeadPlan
    from agentspec.training.trainer import Progress


def model_card(plan: HeadPlan, data: DataSet, tokens: int, history: Sequence[Progress]) -> str:
    """Markdown.

    Args:
        plan: what was made.
        data: what was chosen to train on.
        tokens: tokens in the training sequences recorded.
        history: the training log.
    """
    recipe = plan.recipe
    measured = [line for line in history if line.acceptance is not None]
    positions = range(1, recipe.test_time_steps + 1)
    rows = [
        f"| {line.step} | " + " | ".join(f"{share:.3f}" for share in line.acceptance or ()) + " |"
        for line in _some(measured, 12)
    ]
    sources = [f"{len(data.train)} prompts answered greedily by the target itself" if data.train else ""]
    sources += [f"{len(data.texts)} windows of text files" if data.texts else ""]
    packages = ", ".join(f"{name} ({licence})" for name, licence in data.packages.items())
    return "\n".join(
        [
            f"# EAGLE-3 head for {plan.model}",
            "",
            "A draft head in SpecForge's and SGLang's checkpoint format (`LlamaForCausalLMEagle3`).",
            "",
            f"- Target: {plan.model}",
            f"- Draft vocabulary: {plan.draft_vocab_size} tokens",
            f"- Data: {'; '.join(part for part in sources if part)}; {tokens:,} tokens recorded",
            f"- Training: {recipe.steps} steps of {recipe.batch} sequences, {recipe.test_time_steps} steps of "
            f"training-time test, AdamW, peak learning rate {recipe.learning_rate:g}, seed {recipe.seed}",
            "",
            "## Held-out acceptance by position",
            "",
            "Share of positions of the target's own output at which the head's best token is the target's, given that "
            "the drafted tokens before it were.",
            "",
            "| step | " + " | ".join(str(position) for position in positions) + " |",
            "| --- |" + " --- |" * len(positions),
            *rows,
            "",
            *(["## Packages quoted by the prompts", "", packages, ""] if packages else []),
        ]
    )


def _some(lines: Sequence[Progress], count: int) -> list[Progress]:
    """At most `count` lines, evenly spread, the last one among them."""
    if len(lines) <= count:
        return list(lines)
    return [lines[round(at * (len(lines) - 1) / (count - 1))] for at in range(count)]
