"""Stand-ins for the CPU functions of `sgl_kernel`, in torch and numpy.

SGLang's CPU engine calls compiled functions that its published wheels for machines without a GPU do not bring.
The functions here keep their names, argument order and in-place outputs, so that the unmodified SGLang runs on
them. Nothing in this package imports SGLang or the rest of agentspec: it is loaded while SGLang is still deciding
on its platform.
"""

from agentspec.kernels.sgl_cpu.install import install

__all__ = ["install"]
