"""Compiles our Triton kernels for GPUs that this machine need not have. Run by test_triton_compile.py."""

import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from agentspec.kernels.triton import accept, bits, compaction, merge, tree_attention

F32, F64, I32, I64, I1 = "*fp32", "*fp64", "*i32", "*i64", "*i1"
ONE = "constexpr"
"""An integer that is 1: Triton compiles a form of its own for it."""

KERNELS = {
    "draw greedily and sampled": (
        accept._draw,
        [F32, F32, I64, I64, I64, F64, I64, "i32", "i32", "i32"],
        {"TRUNCATED": False, "BLOCK": 2048, "PART": 16384},
    ),
    "draw from bfloat16 above thresholds": (
        accept._draw,
        ["*bf16", F32, I64, I64, F32, F64, I64, "i32", "i32", "i32"],
        {"TRUNCATED": True, "BLOCK": 2048, "PART": 16384},
    ),
    "walk": (
        accept._walk,
        [F64, I64, I64, I32, I64, I32, I32, "i32", "i32"],
        {"BY_ROW": False, "ROWS": 32, "PARTS": 8},
    ),
    "walk by row": (
        accept._walk,
        [F64, I64, I64, I32, I32, I32, I32, "i32", ONE],
        {"BY_ROW": True, "ROWS": 64, "PARTS": 1},
    ),
    "walk of roots alone": (
        accept._walk,
        [F64, I64, I64, I32, I32, I32, I32, ONE, "i32"],
        {"BY_ROW": True, "ROWS": 1, "PARTS": 8},
    ),
    "pack": (bits._pack, [I1, I64, "i32", ONE], {}),
    "pack wide trees": (bits._pack, [I1, I64, "i32", "i32"], {}),
    "move cache rows": (
        compaction._move,
        [I64, I64, I32, I32, "i32", "i32"],
        {"THROUGH_BATCH": True, "BLOCK": 1024},
    ),
    "move rows": (compaction._move_rows, [I32, I32, I32, "i32", "i32"], {"BLOCK": 1024}),
    "move tokens": (compaction._move_rows, [I32, I32, I32, "i32", ONE], {"BLOCK": 1024}),
    "merge": (
        merge._merge,
        [I64, I32, I32, I64, I64, I32, I64, I32, I32, I32, "i32", "i32", ONE],
        {"PADDING": -2, "ROWS": 64, "WORDS": 1, "NODES": 64},
    ),
    "merge wide trees": (
        merge._merge,
        [I64, I32, I32, I64, I64, I32, I64, I32, I32, I32, "i32", "i32", "i32"],
        {"PADDING": -2, "ROWS": 128, "WORDS": 2, "NODES": 128},
    ),
    **{
        f"attend {cache} soft cap {cap} window {window}": (
            tree_attention._attend,
            ["*bf16", cache, cache, I32, I32, I32, I64, I32, F32, F32, *["i32"] * 4, words, "fp32", "fp32", "i32"],
            {"PAGE": 1, "HEAD_DIM": 128, "TILE": 64, "KEYS": 64, "SOFT_CAP": cap, "WINDOWED": window},
        )
        for cache, cap, window, words in (("*bf16", False, False, ONE), ("*fp8e5", True, True, "i32"))
    },
}


def compile_kernel(name: str, capability: int) -> None:
    function, types, constants = KERNELS[name]
    ones = {key: 1 for key, kind in zip(function.arg_names, types, strict=False) if kind == ONE}
    constants = ones | constants
    types = [*types, *["constexpr"] * (len(function.arg_names) - len(types))]
    signature = dict(zip(function.arg_names, types, strict=True))
    constexprs = {(function.arg_names.index(key),): value for key, value in constants.items()}
    source = ASTSource(fn=function, signature=signature, constexprs=constexprs)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32))
    assert len(compiled.asm["cubin"]) > 0, name


if __name__ == "__main__":
    for one in KERNELS:
        compile_kernel(one, int(sys.argv[1]))
    print(f"{len(KERNELS)} kernels")
