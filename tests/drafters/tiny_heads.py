"""Small random EAGLE-3 heads."""

import torch

from agentspec.drafters.eagle3.config import HeadConfig
from agentspec.drafters.eagle3.head import Eagle3Head
from agentspec.drafters.eagle3.runner import TorchRunner
from agentspec.drafters.eagle3.session import Eagle3Session, Growth

HIDDEN = 24
VOCAB = 40


def tiny_config(**changes) -> HeadConfig:
    values = {
        "hidden": HIDDEN,
        "heads": 6,
        "kv_heads": 2,
        "head_dim": 8,
        "intermediate": 32,
        "vocab_size": VOCAB,
        "draft_vocab_size": 12,
        "norm_epsilon": 1e-5,
        "rope": {"rope_type": "default", "rope_theta": 10000.0, "max_position_embeddings": 256},
    }
    return HeadConfig(**{**values, **changes})


def tiny_head(seed: int = 0, **changes) -> Eagle3Head:
    torch.manual_seed(seed)
    head = Eagle3Head(tiny_config(**changes))
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, 1.0 if parameter.ndim == 1 else 0.0, 0.3)
    head.draft_to_target.copy_(torch.randperm(head.config.vocab_size)[: head.config.draft_vocab_size].sort().values)
    return head.eval().requires_grad_(requires_grad=False)


def tiny_embedding(seed: int = 1) -> torch.Tensor:
    return torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(seed))


def begin(head: Eagle3Head, embedding: torch.Tensor, growth: Growth) -> Eagle3Session:
    """A session that torch computes."""
    return Eagle3Session(TorchRunner(head, embedding, Eagle3Session.slots_for(growth)), growth)
