// The floor under every decoding step: how fast this machine reads memory.
#pragma once

#include <cstdint>

namespace agentspec {

// Best bytes per second of `passes` reads of `bytes`, shared by `threads`. Seconds of processor time over `threads`:
// on an idle machine those of the clock, on a busy one without the turns of other programs.
double read_bandwidth(int64_t bytes, int threads, int passes);

}  // namespace agentspec
