// Python bindings of the native index core.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

NB_MODULE(_native, m) { m.doc() = "Native core of agentspec's index."; }
