"""The variant's CUDA source, compiled for the CPU behind a few stand-in lines, against the torch reference."""

import ctypes
import shutil
import subprocess
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.kernels.ancestor_bits import pack_mask
from agentspec.kernels.flashinfer_tree import build as build_module
from agentspec.kernels.flashinfer_tree.build import KernelBuildError, build, compiler_environment
from agentspec.kernels.flashinfer_tree.variant import HEAD_DIMS, SCALARS, TreeVariant
from agentspec.kernels.paged_tree_attention import _visible
from tests.kernels.attention_cases import row_mask
from tests.kernels.trees import draft_trees

HOST = r"""
#include <cmath>
#include <cstdint>
#define __device__
#define __host__
#define __forceinline__ inline
static int __popcll(uint64_t bits) { return __builtin_popcountll(bits); }
namespace math {
constexpr float log2e = 1.44269504088896340736f;
inline float tanh(float x) { return std::tanh(x); }
}
struct AttentionVariantBase {};
#define REGISTER_LOGITS_TRANSFORM(params, logits, batch_idx, qo_idx, kv_idx, qo_head_idx, kv_head_idx, ...) \
  template <typename Params, typename T> T LogitsTransform(const Params& params, T logits, uint32_t batch_idx, \
    uint32_t qo_idx, uint32_t kv_idx, uint32_t qo_head_idx, uint32_t kv_head_idx) { __VA_ARGS__ }
#define REGISTER_LOGITS_MASK(params, batch_idx, qo_idx, kv_idx, qo_head_idx, kv_head_idx, ...) \
  template <typename Params> bool LogitsMask(const Params& params, uint32_t batch_idx, \
    uint32_t qo_idx, uint32_t kv_idx, uint32_t qo_head_idx, uint32_t kv_head_idx) { __VA_ARGS__ }
struct Params {
  int64_t* ancestor_bits; int64_t words, window; double sm_scale, logits_soft_cap;
  int32_t* q_indptr; int32_t* kv_lengths;
  uint32_t get_qo_len(uint32_t b) const { return q_indptr[b + 1] - q_indptr[b]; }
  uint32_t get_kv_len(uint32_t b) const { return kv_lengths[b]; }
};
"""
ENTRY = r"""
extern "C" void visible(int64_t* bits, int64_t words, int64_t window, int32_t* q_indptr, int32_t* kv_lengths,
                        uint32_t batch, uint32_t rows, uint32_t keys, uint8_t* out) {
  Params params{bits, words, window, 1.0, 1.0, q_indptr, kv_lengths};
  AgentspecTreeAttention variant(params, batch, nullptr);
  for (uint32_t i = 0; i < rows; ++i)
    for (uint32_t k = 0; k < keys; ++k) out[i * keys + k] = variant.LogitsMask(params, batch, i, k, 0u, 0u);
}
extern "C" float exponent(double scale, double cap, float logits) {
  int32_t indptr[] = {0, 1}, lengths[] = {1};
  int64_t bits[] = {1};
  Params params{bits, 1, -1, scale, cap, indptr, lengths};
  AgentspecTreeAttention variant(params, 0, nullptr);
  return variant.LogitsTransform(params, logits, 0u, 0u, 0u, 0u, 0u) * variant.sm_scale_log2;
}
"""

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")


def on_host(source, folder):
    """The struct's functions as a library of this machine."""
    file, library = folder / "variant.cpp", folder / "variant.so"
    file.write_text(HOST + source + ENTRY)
    subprocess.run(["c++", "-std=c++17", "-O1", "-fPIC", "-shared", file, "-o", library], check=True)
    loaded = ctypes.CDLL(str(library))
    loaded.exponent.restype = ctypes.c_float
    loaded.exponent.argtypes = [ctypes.c_double, ctypes.c_double, ctypes.c_float]
    return loaded


def mask_of(library, trees, prefixes, width, window):
    """What the source lets every row of every request see, tile padding included."""
    masks = torch.stack([row_mask(tree, width) for tree in trees])
    bits = pack_mask(masks).flatten(0, 1).contiguous().numpy()
    indptr = np.arange(len(trees) + 1, dtype=np.int32) * width
    lengths = np.array([prefix + width for prefix in prefixes], np.int32)
    for b, prefix in enumerate(prefixes):
        out = np.empty((width + 2, prefix + width + 3), np.uint8)
        library.visible(
            bits.ctypes.data_as(ctypes.c_void_p),
            ctypes.c_int64(bits.shape[1]),
            ctypes.c_int64(window),
            indptr.ctypes.data_as(ctypes.c_void_p),
            lengths.ctypes.data_as(ctypes.c_void_p),
            b,
            *out.shape,
            out.ctypes.data_as(ctypes.c_void_p),
        )
        yield torch.from_numpy(out).bool(), masks[b]


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    return {
        window: on_host(
            TreeVariant(torch.bfloat16, torch.bfloat16, 128, window=window).source, tmp_path_factory.mktemp("host")
        )
        for window in (False, True)
    }


def agrees(library, windowed, trees, prefixes, width, window):
    for prefix, (got, mask) in zip(prefixes, mask_of(library, trees, prefixes, width, window), strict=True):
        expected = torch.zeros_like(got)
        expected[:width, : prefix + width] = _visible(mask, prefix, window if windowed else -1)
        if not torch.equal(got, expected):
            return False
    return True


@settings(deadline=None)
@given(
    trees=st.lists(draft_trees(4, max_nodes=20), min_size=1, max_size=3),
    prefix=st.integers(0, 12),
    padding=st.integers(0, 130),
    window=st.integers(0, 12),
)
def test_the_source_sees_what_the_reference_sees(libraries, trees, prefix, padding, window):
    width = max(map(len, trees)) + 1 + padding
    prefixes = [prefix + 3 * b for b in range(len(trees))]
    assert agrees(libraries[False], False, trees, prefixes, width, window)
    assert agrees(libraries[True], True, trees, prefixes, width, window)


MUTATIONS = [
    (">> (key % 64)", ">> (key % 32)"),
    ("set[key / 64]", "set[0]"),
    ("kv_idx < prefix_len) {", "kv_idx <= prefix_len) {"),
    ("+ later(set, -1) - 1 <= window", "+ later(set, -1) <= window"),
    ("later(set, static_cast<int32_t>(key)) <= window", "later(set, static_cast<int32_t>(key)) < window"),
    ("params.q_indptr[batch_idx]) * words", "params.q_indptr[batch_idx])"),
    ("qo_idx >= qo_len || ", ""),
    ("passed > 0 ? set[word] >> passed : set[word]", "set[word]"),
]


@pytest.mark.parametrize(("right", "wrong"), MUTATIONS)
def test_a_wrong_mask_is_noticed(right, wrong, tmp_path):
    source = TreeVariant(torch.bfloat16, torch.bfloat16, 128, window=True).source
    assert right in source
    library = on_host(source.replace(right, wrong), tmp_path)
    rng = np.random.default_rng(0)

    def noticed(seed):
        torch.manual_seed(seed)
        trees = [draw_tree(rng, int(rng.integers(1, 70))) for _ in range(2)]
        return not agrees(library, True, trees, [9, 12], 70, int(rng.integers(0, 12)))

    assert any(noticed(seed) for seed in range(20))


def draw_tree(rng, nodes):
    from tests.kernels.trees import tree_of  # noqa: PLC0415 - beside its one use

    return tree_of([(int(rng.integers(max(-1, node - 3), node)), node) for node in range(nodes)])


@pytest.mark.parametrize("cap", [0.0, 30.0])
def test_scores_are_scaled_and_capped(cap, tmp_path):
    library = on_host(TreeVariant(torch.float16, torch.float16, 64, soft_cap=cap > 0).source, tmp_path)
    for logits in (-500.0, -3.0, 0.0, 0.25, 80.0):
        score = torch.tensor(logits, dtype=torch.float64) * 0.125
        expected = (cap * torch.tanh(score / cap) if cap else score) / np.log(2.0)
        assert library.exponent(0.125, cap, logits) == pytest.approx(float(expected), rel=2e-6, abs=1e-6)


def test_every_form_has_a_name_of_its_own():
    forms = [
        TreeVariant(query, cache, dim, soft_cap, window)
        for query in (torch.float16, torch.bfloat16)
        for cache in (query, torch.float8_e4m3fn, torch.float8_e5m2)
        for dim in HEAD_DIMS
        for soft_cap in (False, True)
        for window in (False, True)
    ]
    assert len({form.name for form in forms}) == len(forms)
    assert all(form.jit_args()[9] == list(SCALARS) for form in forms)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.float32, torch.float32, 128), "queries are float16 or bfloat16"),
        ((torch.bfloat16, torch.int8, 128), "the cache is"),
        ((torch.bfloat16, torch.float16, 128), "does not go with queries"),
        ((torch.bfloat16, torch.bfloat16, 96), "head dimension 96 is not one of 64, 128, 256"),
    ],
)
def test_forms_that_do_not_exist_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        TreeVariant(*arguments)


@pytest.fixture
def no_compiler(monkeypatch, tmp_path):
    """A machine on which nothing of CUDA is found; its packages lie in the returned folder."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr(build_module, "SYSTEM_TOOLKIT", str(tmp_path / "none"))
    monkeypatch.setattr(
        build_module, "find_spec", lambda name: SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    )
    return tmp_path


def test_a_missing_compiler_is_named(no_compiler, monkeypatch):
    with pytest.raises(KernelBuildError, match="no CUDA compiler"):
        compiler_environment()
    monkeypatch.setenv("CUDA_HOME", str(no_compiler))
    with pytest.raises(KernelBuildError, match="where there is no bin/nvcc"):
        compiler_environment()


def test_the_newest_packaged_compiler_is_used_where_there_is_no_other(no_compiler, monkeypatch):
    for version in ("cu12", "cu13"):
        (no_compiler / version / "bin").mkdir(parents=True)
        (no_compiler / version / "bin" / "nvcc").touch()
    assert compiler_environment() == {"CUDA_HOME": str(no_compiler / "cu13")}
    monkeypatch.setattr("shutil.which", lambda name: "/somewhere/nvcc")
    assert compiler_environment() == {}, "what FlashInfer finds by itself is left to it"


def test_a_missing_flashinfer_is_named(monkeypatch):
    monkeypatch.setattr("agentspec.kernels.flashinfer_tree.build.find_spec", lambda name: None)
    with pytest.raises(KernelBuildError, match="flashinfer is not installed"):
        build(TreeVariant(torch.bfloat16, torch.bfloat16, 128), "9.0a")
