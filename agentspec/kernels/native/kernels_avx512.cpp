#define AGENTSPEC_LANES 16
#define AGENTSPEC_NAME "avx512"
#define AGENTSPEC_TABLES tables_avx512
#include "kernels.inl"
