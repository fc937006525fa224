"""Truncation of a whole batch on the device, as a threshold per row.

Same definition as `agentspec.kernels.sampling.Truncation`: min-p, then top-k, then top-p over what the two left, and
every token at or above the threshold is kept.
"""

from __future__ import annotations

import torch


def support_thresholds(
    scaled: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor
) -> torch.Tensor:
    """The least logit that may be drawn, at every row.

    Args:
        scaled: `float32[R, V]`, logits over the temperature.
        top_k: `int64[R]`, most likely tokens kept; 0 keeps all.
        top_p: `float32[R]`, mass that the most likely tokens must reach; 1 keeps all.
        min_p: `float32[R]`, share of the most likely token's probability; 0 keeps all.

    Returns:
        `float32[R]`, minus infinity where all are kept.
    """
    ordered = scaled.sort(dim=-1, descending=True).values
    vocabulary = scaled.shape[1]
    lowest = ordered[:, 0].double() + min_p.double().log()
    last = torch.where((top_k > 0) & (top_k < vocabulary), top_k, vocabulary) - 1
    by_count = ordered.gather(1, last[:, None])[:, 0].double()
    by_count = by_count.masked_fill((top_k <= 0) | (top_k >= vocabulary), -torch.inf)
    threshold = torch.maximum(lowest, by_count).float()
    kept = ordered.masked_fill(ordered < threshold[:, None], -torch.inf)
    total = kept.logsumexp(-1, keepdim=True)
    cumulated = (kept - total).double().exp().cumsum(-1)
    reached = torch.searchsorted(cumulated, top_p.double()[:, None]).clamp_(max=vocabulary - 1)
    # Where rounding keeps the sum below the mass, the least likely of the kept tokens is the last.
    reached = torch.minimum(reached, (kept > -torch.inf).sum(-1, keepdim=True) - 1)
    by_mass = kept.gather(1, reached)[:, 0].masked_fill(top_p >= 1, -torch.inf)
    return torch.maximum(threshold, by_mass)
