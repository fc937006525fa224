from collections import defaultdict
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.drafters.tree import ROOT, DraftTree
from agentspec.kernels.acceptance import walk
from tests.kernels.trees import draft_trees, tree_of

VOCAB = 3
NO_TOKEN = -1


def never(token):
    return False


def scripted(tokens):
    """A target that draws these tokens, whatever the node."""
    supply = iter(tokens)
    return lambda node: next(supply)


def test_the_walk_follows_children_and_leaves_with_the_targets_own_token():
    #        5 ─ 6 ─ 7
    #        └─ 8
    tree = tree_of([(ROOT, 5), (0, 6), (1, 7), (0, 8)])
    verdict = walk(tree, scripted([5, 8, 9]), never)
    assert verdict.tokens == (5, 8, 9)
    assert verdict.path == (0, 3)


def test_an_empty_tree_is_plain_decoding():
    verdict = walk(DraftTree.empty(), scripted([4]), never)
    assert verdict.tokens == (4,)
    assert verdict.path == ()


def test_the_walk_stops_at_the_end_of_the_text_and_keeps_its_last_node():
    tree = tree_of([(ROOT, 5), (0, 6), (1, 7)])
    verdict = walk(tree, scripted([5, 6]), lambda token: token == 6)
    assert verdict.tokens == (5, 6)
    assert verdict.path == (0, 1)


def test_each_draw_is_made_at_the_node_reached():
    tree = tree_of([(ROOT, 1), (ROOT, 2), (1, 3)])
    nodes = []

    def draw(node):
        nodes.append(node)
        return {ROOT: 2, 1: 3, 2: 9}[node]

    walk(tree, draw, never)
    assert nodes == [ROOT, 1, 2]


# An exact model of speculative sampling, in fractions.


def path_to(tree, node):
    """The drafted tokens from the last committed one to `node`."""
    path = ()
    while node != ROOT:
        path = (int(tree.tokens[node]), *path)
        node = int(tree.parents[node])
    return path


def outcomes(tree, target, prefix):
    """Every verdict of one verify step with its exact probability, by running `walk` itself on each choice.

    `target(text)` is the model: the distribution, as fractions, of the token after `text`. As in a verify step, a draw
    at a node is from the distribution after that node's own path.
    """
    open_scripts = [()]
    while open_scripts:
        script = open_scripts.pop()
        nodes = []

        def draw(node, script=script, nodes=nodes):
            nodes.append(node)
            return script[len(nodes) - 1] if len(nodes) <= len(script) else NO_TOKEN

        verdict = walk(tree, draw, lambda token: token == NO_TOKEN)
        if len(nodes) > len(script):
            open_scripts += [(*script, token) for token in range(VOCAB)]
        else:
            probability = Fraction(1)
            for node, token in zip(nodes, script, strict=True):
                probability *= target(prefix + path_to(tree, node))[token]
            yield verdict, probability


def speculative_distribution(trees, target, length):
    """Exact distribution of the first `length` tokens when step i verifies a tree that depends on the text so far."""
    result = defaultdict(Fraction)
    pending = [((), Fraction(1))]
    while pending:
        text, mass = pending.pop()
        if len(text) >= length:
            result[text[:length]] += mass
            continue
        for verdict, probability in outcomes(trees(text), target, text):
            if probability:
                pending.append((text + verdict.tokens, mass * probability))
    return dict(result)


def plain_distribution(target, length):
    result = {(): Fraction(1)}
    for _ in range(length):
        result = {
            (*text, token): mass * share
            for text, mass in result.items()
            for token, share in enumerate(target(text))
            if share
        }
    return result


def fractions_summing_to_one(weights):
    total = sum(weights)
    return tuple(Fraction(weight, total) for weight in weights)


distributions = st.lists(st.integers(0, 9), min_size=VOCAB, max_size=VOCAB).filter(any).map(fractions_summing_to_one)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_trees_leave_exactly_the_targets_distribution(data):
    """Proof by enumeration: trees of overlapping sources that even depend on the text change nothing."""
    tables = data.draw(st.lists(distributions, min_size=7, max_size=7))
    forest = data.draw(st.lists(draft_trees(VOCAB, max_nodes=6), min_size=3, max_size=3))

    def target(text):
        return tables[sum((token + 1) * 3**place for place, token in enumerate(text)) % len(tables)]

    def trees(text):
        return forest[sum(text) % len(forest)]

    assert speculative_distribution(trees, target, length=3) == plain_distribution(target, length=3)


def test_the_textbook_case_in_exact_fractions():
    """p = (0.5, 0.3, 0.2), q = (0.6, 0.1, 0.3): rejection sampling, and the target drawing its own token."""
    p = tuple(Fraction(n, 10) for n in (5, 3, 2))
    q = tuple(Fraction(n, 10) for n in (6, 1, 3))

    # The classical scheme: draft x ~ q, accept with min(1, p/q), else draw from the residual.
    accepted = [min(a, b) for a, b in zip(p, q, strict=True)]
    excess = [max(a - b, Fraction(0)) for a, b in zip(p, q, strict=True)]
    residual = [share / sum(excess) for share in excess]
    assert sum(accepted) == Fraction(8, 10)
    assert residual == [0, 1, 0]
    rejected = 1 - sum(accepted)
    assert [a + rejected * r for a, r in zip(accepted, residual, strict=True)] == list(p)

    # Ours: whatever was drafted (x ~ q, one node), the emitted token has distribution p; the draft is accepted with
    # probability sum(q * p), and a tree that holds both of two tokens with the sum of their masses.
    emitted = [Fraction(0)] * VOCAB
    mass = Fraction(0)
    for draft, weight in enumerate(q):
        for verdict, probability in outcomes(tree_of([(ROOT, draft)]), lambda text: p, ()):
            emitted[verdict.tokens[0]] += weight * probability
            mass += weight * probability * len(verdict.path)
    assert emitted == list(p)
    assert mass == sum(a * b for a, b in zip(p, q, strict=True)) == Fraction(39, 100)
    both = tree_of([(ROOT, 0), (ROOT, 2)])
    accepted_mass = sum(
        (probability for verdict, probability in outcomes(both, lambda text: p, ()) if verdict.path), start=Fraction(0)
    )
    assert accepted_mass == Fraction(7, 10)
