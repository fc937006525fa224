#define AGENTSPEC_LANES 8
#define AGENTSPEC_NAME "avx2"
#define AGENTSPEC_TABLES tables_avx2
#include "kernels.inl"
