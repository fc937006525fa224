#include "kernels.hpp"

#include <string_view>

namespace agentspec {

const Kernels& tables_portable(Element element);
#if defined(AGENTSPEC_X86)
const Kernels& tables_avx2(Element element);
const Kernels& tables_avx512(Element element);
const Kernels& tables_avx512bf16(Element element);
#endif

const Kernels& select_kernels(Element element, const char* limit) {
  [[maybe_unused]] const std::string_view most = limit;
#if defined(AGENTSPEC_X86)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  // Every processor with the one instruction of the two has the other.
  const bool products = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
  if (avx512 && products && (most.empty() || most == "avx512bf16")) {
    return tables_avx512bf16(element);
  }
  if (avx512 && (most.empty() || most == "avx512bf16" || most == "avx512")) return tables_avx512(element);
  if (avx2 && most != "portable") return tables_avx2(element);
#endif
  return tables_portable(element);
}

}  // namespace agentspec
