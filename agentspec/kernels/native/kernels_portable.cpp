#define AGENTSPEC_LANES 4
#define AGENTSPEC_NAME "portable"
#define AGENTSPEC_TABLES tables_portable
#include "kernels.inl"
