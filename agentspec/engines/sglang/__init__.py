"""The production engine: an unmodified SGLang, extended through its own plugin entry points.

Two halves that never meet in one process: `plugin` and what it registers run inside SGLang's processes; `launcher`
and `engine` run in agentspec's and talk to SGLang over HTTP. Only the first half imports SGLang, and only when SGLang
itself calls it.
"""
