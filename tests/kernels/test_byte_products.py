"""Products of bytes against float64: a layer that only feeds forward, and the head behind it."""

import numpy as np
import pytest

from agentspec.kernels import _native

HEADS = {"heads": 1, "kv_heads": 1, "head_dim": 16}
EPSILON = 1e-5
FLOAT = float(np.finfo(np.float32).eps)


def rounded(matrix):
    """`[r, k]` in whole numbers of each row's own unit, up to 127; and the units `[r, 1]`."""
    unit = np.abs(matrix).max(1, keepdims=True) / 127
    return np.rint(matrix / np.where(unit > 0, unit, 1)), unit


def normalised(stream):
    return stream / np.sqrt((stream**2).mean(1, keepdims=True) + EPSILON)


class Bytes:
    """A decoder of bytes whose attention adds nothing; weights are float64 here and float32 there."""

    def __init__(self, rng, hidden, intermediate, vocabulary, *, feeds):
        def weights(rows, columns, scale=1.0):
            # Rows and columns of very different sizes, and a row of zeros.
            matrix = rng.normal(size=(rows, columns)) * np.exp(rng.normal(size=(rows, 1))) * scale / np.sqrt(columns)
            matrix[rows // 2] = 0
            return matrix.astype(np.float32)

        self.gate_up, self.down = weights(2 * intermediate, hidden), weights(hidden, intermediate, float(feeds))
        self.head = weights(vocabulary, hidden)
        self.decoder = _native.Decoder(
            hidden=hidden,
            intermediate=intermediate,
            norm_epsilon=EPSILON,
            bfloat16=False,
            threads=1,
            bytes=True,
            **HEADS,
        )
        ones = np.ones(hidden, np.float32)
        self.decoder.add_layer(
            attention_norm=ones, qkv=np.zeros((48, hidden), np.float32), qkv_bias=None, query_norm=None, key_norm=None,
            output=np.zeros((hidden, 16), np.float32), output_bias=None, feed_norm=ones, gate_up=self.gate_up,
            gate_up_bias=None, down=self.down, down_bias=None,
        )  # fmt: skip
        self.decoder.set_head(ones, self.head)

    def run(self, stream):
        """The outgoing stream and the logits."""
        rows = len(stream)
        slots = -(-rows // _native.KEY_BLOCK) * _native.KEY_BLOCK
        out, logits = stream.astype(np.float32), np.empty((rows, len(self.head)), np.float32)
        self.decoder.forward(
            stream=out, cosine=np.ones((rows, 8), np.float32), sine=np.zeros((rows, 8), np.float32),
            keys=[np.zeros((1, 1, slots // _native.KEY_BLOCK, 16 * _native.KEY_BLOCK), np.float32)],
            values=[np.zeros((1, 1, slots, 16), np.float32)], lengths=[0], counts=[rows], masks=[None],
            rows=np.arange(rows), capture=[], logits=logits, hidden=np.empty((rows, 0), np.float32),
        )  # fmt: skip
        return out, logits


def assert_product(found, activations, weights):
    """`found` is within what rounding both factors to bytes can move it, and is the product of the rounded ones."""
    whole, unit = rounded(activations)
    whole_weights, weight_unit = rounded(weights.astype(np.float64))
    exact = activations @ weights.T.astype(np.float64)
    # Each factor is off by half its unit at most: |(a + da)(w + dw) - aw| <= |a| |dw| + |w| |da| + |da| |dw|.
    largest, largest_weight = np.abs(activations).sum(1, keepdims=True), np.abs(weights).sum(1)[None]
    half, half_weight = unit / 2, weight_unit.T / 2
    bound = largest * half_weight + largest_weight * half + activations.shape[1] * half * half_weight
    slack = 64 * FLOAT * (largest * np.abs(weights).max(1)[None] + bound)
    assert (np.abs(found - exact) <= bound + slack).all()
    # A number on the edge between two bytes may go either way in float32; so few do that the sums hardly differ.
    product = (whole @ whole_weights.T) * unit * weight_unit.T
    step = unit * np.abs(weights).max(1)[None]
    assert (np.abs(found - product) <= step + slack).all()
    assert np.median(np.abs(found - product) - slack) <= 0


@pytest.fixture(autouse=True)
def _bytes():
    sizes = {"hidden": 16, "intermediate": 16, "norm_epsilon": EPSILON, "bfloat16": False, "threads": 1, "bytes": True}
    if not _native.Decoder(**sizes, **HEADS).bytes:
        pytest.skip("this processor does not multiply bytes")


@pytest.mark.parametrize("rows", [*range(1, 9), 12, 13, 24, 25, 31, 50])
@pytest.mark.parametrize(("hidden", "vocabulary"), [(16, 5), (48, 32), (144, 67), (1040, 129)])
def test_plain_products(rows, hidden, vocabulary):
    """The feed-forward adds nothing, so that the head sees the stream."""
    rng = np.random.default_rng(rows * hidden)
    model = Bytes(rng, hidden, 32, vocabulary, feeds=False)
    stream = rng.normal(size=(rows, hidden)).astype(np.float32) * np.exp(3 * rng.normal(size=(rows, 1)))
    stream[:, 3] *= 20
    out, logits = model.run(stream)
    np.testing.assert_array_equal(out, stream.astype(np.float32))
    assert_product(logits, normalised(stream.astype(np.float32).astype(np.float64)), model.head)


@pytest.mark.parametrize("rows", [1, 2, 5, 8, 12, 13, 30])
@pytest.mark.parametrize(("hidden", "intermediate"), [(16, 16), (80, 48), (144, 400)])
def test_gated_and_added_products(rows, hidden, intermediate):
    rng = np.random.default_rng(rows * hidden)
    model = Bytes(rng, hidden, intermediate, 16, feeds=True)
    stream = rng.normal(size=(rows, hidden)).astype(np.float32)
    out, _ = model.run(stream)
    whole, unit = rounded(normalised(stream.astype(np.float64)))
    whole_weights, weight_unit = rounded(model.gate_up.astype(np.float64))
    gate, up = np.split((whole @ whole_weights.T) * unit * weight_unit.T, 2, axis=1)
    fed = gate / (1 + np.exp(-gate)) * up
    assert_product(out.astype(np.float64) - stream, fed, model.down)


def test_a_row_does_not_depend_on_the_others():
    rng = np.random.default_rng(1)
    model = Bytes(rng, 80, 48, 67, feeds=True)
    stream = rng.normal(size=(30, 80)).astype(np.float32)
    _, together = model.run(stream)
    for rows in (1, 7, 13):
        _, alone = model.run(stream[:rows])
        np.testing.assert_array_equal(alone[0], together[0])


def test_weights_too_deep_for_their_sums_are_refused():
    hidden = 65552
    sizes = {"intermediate": 16, "norm_epsilon": EPSILON, "bfloat16": False, "threads": 1, "bytes": True}
    decoder = _native.Decoder(hidden=hidden, **sizes, **HEADS)
    with pytest.raises(ValueError, match="too wide for 8-bit weights"):
        decoder.set_head(np.ones(hidden, np.float32), np.zeros((3, hidden), np.float32))
