#define AGENTSPEC_LANES 16
#define AGENTSPEC_NAME "avx512bf16"
#define AGENTSPEC_TABLES tables_avx512bf16
#include "kernels.inl"
