"""What every source of drafts brings where verifying has another price than here: on a GPU, on a CPU with AMX.

The embedded model writes its answers once, and its streams are kept. Every kind of draft is then replayed on them under
a given cost of a verify step; nothing is verified, so this takes seconds. The time that drafters take is measured here.

    python benchmarks/draft_simulation.py --prompts 40 --rows-ms 1:13,16:16.2,64:19.5

Speed on this machine, verified, is `agentspec bench edit --sources`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from agentspec.benchmarking.draft_modes import PLAIN, draft_modes
from agentspec.benchmarking.tasks import KINDS
from agentspec.cli.indexed_tasks import IndexedTasks, indexed_tasks
from agentspec.cli.ready_model import ready_model
from agentspec.config import Settings
from agentspec.drafters.base import Budget, DraftRequest
from agentspec.drafters.eagle3.drafter import shipped_head
from agentspec.engines.local.cost import CostCurve
from agentspec.engines.local.drafting import ChoiceDrafting
from agentspec.engines.local.speculation import StepClock
from agentspec.engines.local.target import load_target
from agentspec.repetition import tokens_before_loop
from agentspec.training.rollout import Rollout

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch import Tensor

    from agentspec.benchmarking.editing import EditTask
    from agentspec.drafters.base import Drafter, StreamDrafter, TextCodec
    from agentspec.engines.local.target import Target
    from agentspec.index.snapshot import Snapshot

MAX_NODES = 64
MAX_DEPTH = 256
FEWEST_TOKENS = 8
"""Shorter answers say nothing of drafting."""


class Answer(NamedTuple):
    """A recorded answer: its task, prompt and answer as tokens, and the target's streams `[T, C * hidden]` at them."""

    task: EditTask
    prompt: list[int]
    tokens: list[int]
    streams: Tensor


class Known(NamedTuple):
    """What is the same for all answers.

    Attributes:
        snapshot: the repository's index.
        codec: the target's tokenizer.
        vocab_size: of the target.
        min_path_prob: nodes less likely to be reached are not drafted.
    """

    snapshot: Snapshot
    codec: TextCodec
    vocab_size: int
    min_path_prob: float


class Totals(NamedTuple):
    """Sums over verify steps."""

    tokens: int
    steps: int
    drafted: int
    seconds: float
    drafting_seconds: float
    plain_seconds: float

    def row(self) -> str:
        """Cells of the table."""
        cells = (
            f"{self.tokens / self.steps:.2f}",
            f"{self.drafted / self.steps:.1f}",
            f"{1e3 * self.drafting_seconds / self.steps:.2f}",
            f"{self.plain_seconds / self.seconds:.2f}",
        )
        return " | ".join(cells)


def pooled(many: Iterable[Totals]) -> Totals:
    """The sums of sums, one at least."""
    return Totals(*map(sum, zip(*many, strict=True)))


def recorded(target: Target, codec: TextCodec, tasks: Sequence[EditTask]) -> Iterator[Answer]:
    """The target's greedy answers up to their stop string or to where they loop."""
    assert target.head is not None
    rollout = Rollout(target.model, target.head.capture)
    for kind in dict.fromkeys(task.kind for task in tasks):
        group = [task for task in tasks if task.kind == kind]
        prompts = [codec.encode(task.prompt) for task in group]
        longest = max(task.max_tokens for task in group)
        for task, features in zip(group, rollout.generate(prompts, longest), strict=True):
            said = features.tokens[features.prompt_length :].tolist()[: task.max_tokens]
            said = said[: min(_stopped(said, task.stop, codec), tokens_before_loop(said))]
            if len(said) < FEWEST_TOKENS:
                continue
            end = features.prompt_length + len(said)
            prompt = features.tokens[: features.prompt_length].tolist()
            yield Answer(task, prompt, said, features.hidden[:end])


def _stopped(tokens: list[int], stop: Sequence[str], codec: TextCodec) -> int:
    """Tokens up to the first stop string, the last of which completes it."""
    ends = (end for end in range(1, len(tokens) + 1) if any(text in codec.decode(tokens[:end]) for text in stop))
    return next(ends, len(tokens))


def replay(answer: Answer, drafter: Drafter | StreamDrafter | None, cost: CostCurve, known: Known) -> Totals:
    """One answer as the engine would decode it, with the time that it would take; no drafter: plainly."""
    steps = []
    clock = StepClock(cost)
    drafting = ChoiceDrafting("simulation", known.vocab_size)
    start = len(answer.prompt)
    if drafter is not None:
        prompt = np.array(answer.prompt, np.int32)
        path = answer.task.edited_path
        drafting.begin(drafter, DraftRequest(prompt, known.snapshot, edited_path=path, codec=known.codec))
        drafting.read(0, answer.streams[:start])
        drafting.commit(answer.tokens[:1])
    at = 1
    while at < len(answer.tokens):
        before, context = drafting.seconds, start + at - 1
        room = min(MAX_DEPTH, len(answer.tokens) - at)
        if drafter is not None and drafting.wants_draft():
            drafting.propose(Budget(MAX_NODES, room, known.min_path_prob, clock.verify_curve(1, context, MAX_NODES)))
        else:
            drafting.skip()
        if drafting.warning:
            raise SystemExit(drafting.warning)
        accepted = drafting.tree.accepted_path(answer.tokens[at:])
        emitted = answer.tokens[at : at + len(accepted) + 1]
        verify = cost.seconds(1 + len(drafting.tree), context)
        drafting.step_cost(verify, clock.plain_seconds(1, context))
        drafting.read(context, answer.streams[context : context + len(emitted)])
        drafting.commit(emitted)
        spent = drafting.seconds - before
        plain = sum(cost.seconds(1, context + further) for further in range(len(emitted)))
        steps.append(Totals(len(emitted), 1, len(drafting.tree), verify + spent, spent, plain))
        at += len(emitted)
    return pooled(steps)


def curve_of(text: str) -> CostCurve:
    """`ROWS:MS,ROWS:MS`: milliseconds of a pass, linear between the sizes and beyond the last two."""
    points = sorted((int(rows), float(ms) / 1e3) for rows, ms in (point.split(":") for point in text.split(",")))
    return CostCurve(tuple(p[0] for p in points), tuple(p[1] for p in points), (0.0,) * len(points))


def arguments_of(description: str) -> argparse.ArgumentParser:
    """What to replay drafters on: a repository, and a model with its head."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repository", type=Path, default=Path())
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--head", help="a folder; default: the head shipped for the model")
    return parser


class Opened(NamedTuple):
    """What the arguments of `arguments_of` name."""

    settings: Settings
    target: Target
    indexed: IndexedTasks


def opened(arguments: argparse.Namespace) -> Opened:
    """Open it; exits where the model has no head."""
    torch.set_num_threads(1)
    head = arguments.head or shipped_head(arguments.model)
    if head is None:
        raise SystemExit(f"no head is shipped for {arguments.model}; name one with --head")
    settings = Settings.load(engine={"model": arguments.model, "draft_head": str(head), "threads": 1})
    indexed = indexed_tasks(settings, ready_model(settings), arguments.repository, None, arguments.prompts)
    return Opened(settings, load_target(settings), indexed)


def main() -> int:
    """Run."""
    assert __doc__ is not None
    parser = arguments_of(__doc__)
    parser.add_argument(
        "--rows-ms",
        action="append",
        type=curve_of,
        metavar="ROWS:MS,...",
        help="verify cost; default: as measured here",
    )
    arguments = parser.parse_args()
    settings, target, (snapshot, codec, tasks) = opened(arguments)
    answers = list(recorded(target, codec, tasks))
    known = Known(snapshot, codec, target.model.vocab_size, settings.drafting.min_path_prob)
    assert isinstance(target.cost, CostCurve)
    for cost in arguments.rows_ms or [target.cost]:
        print("\nms of a pass: " + ", ".join(f"{n} rows {cost.seconds(n, 0) * 1e3:.1f}" for n in (1, 4, 8, 16, 32, 64)))
        print("\n| kind | mode | tokens/step | drafted/step | drafting, ms/step | speed of plain |")
        print("| --- | --- | --- | --- | --- | --- |")
        for kind in [*KINDS, "all"]:
            for mode, drafter in draft_modes(target).items():
                chosen = None if mode == PLAIN else drafter
                of_kind = [answer for answer in answers if kind in (answer.task.kind, "all")]
                if of_kind:
                    totals = pooled(replay(answer, chosen, cost, known) for answer in of_kind)
                    print(f"| {kind} | {mode} | {totals.row()} |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
