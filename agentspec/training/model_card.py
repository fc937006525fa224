"""The card that goes with a head: what it was trained on, how, and what it reached."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentspec.training.data import DataSet
    from agentspec.training.features import FeatureStore
    from agentspec.training.pipeline import HeadPlan
    from agentspec.training.replay import ReplayResult
    from agentspec.training.trainer import Progress


def model_card(
    plan: HeadPlan,
    data: DataSet,
    train: FeatureStore,
    history: Sequence[Progress],
    replayed: Mapping[str, ReplayResult],
) -> str:
    """Markdown.

    Args:
        plan: what was made.
        data: what was chosen to train on.
        train: what of it was recorded.
        history: the training log.
        replayed: the head alone on held-out outputs, by their sort.
    """
    recipe = plan.recipe
    measured = [line for line in history if line.acceptance is not None]
    first = f" (one in the first {recipe.single_share:.0%})" if recipe.single_share else ""
    positions = range(1, recipe.test_time_steps + 1)
    rows = [
        f"| {line.step} | " + " | ".join(f"{share:.3f}" for share in line.acceptance or ()) + " |"
        for line in _some(measured, 12)
    ]
    sources = [
        f"{count} {what}"
        for count, what in (
            (len(data.train), "prompts for the target to answer greedily"),
            (len(data.documents), "documents for it to continue"),
            (len(data.texts), "windows of text files"),
        )
        if count
    ]
    packages = ", ".join(f"{name} ({licence})" for name, licence in data.packages.items())
    return "\n".join(
        [
            f"# EAGLE-3 head for {plan.model}",
            "",
            "A draft head in SpecForge's and SGLang's checkpoint format (`LlamaForCausalLMEagle3`).",
            "",
            f"- Target: {plan.model}",
            f"- Draft vocabulary: {plan.draft_vocab_size} tokens",
            f"- Data: {len(train)} sequences, {train.tokens:,} tokens, recorded of {' and '.join(sources)}",
            *([f"- Begun as: the head in `{plan.start.name}`, trained further"] if plan.start else []),
            f"- Training: {recipe.steps} steps of at most {recipe.batch_tokens} tokens, {recipe.test_time_steps} steps "
            f"of training-time test{first}, AdamW, peak learning rate {recipe.learning_rate:g}, seed {recipe.seed}",
            "- Licence: that of the target, whose weights it began as. Prompts quote code under permissive licences; "
            "what was learnt from is the target's own output.",
            "- Alone on held-out outputs, greedy, trees of at most 16 nodes:",
            *(f"  - {sort}: {_reached(result)}" for sort, result in replayed.items()),
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


def _reached(result: ReplayResult) -> str:
    steps = max(1, result.steps)
    shares = ", ".join(f"{count / steps:.0%}" for count in result.reached)
    return (
        f"**{result.tokens_per_step:.2f} tokens per verify step** "
        f"({result.tokens} tokens, {result.drafted / steps:.1f} nodes a step; "
        f"at least 1, 2, ... drafted tokens accepted in {shares} of the steps)"
    )


def _some(lines: Sequence[Progress], count: int) -> list[Progress]:
    """At most `count` lines, evenly spread, the last one among them."""
    if len(lines) <= count:
        return list(lines)
    return [lines[round(at * (len(lines) - 1) / (count - 1))] for at in range(count)]
