// Python bindings of the native drafting core.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

NB_MODULE(_native, m) { m.doc() = "Native core of agentspec's drafters."; }
