"""Property tests draw the same examples in every run: whether a commit passes must not depend on luck.

`HYPOTHESIS_PROFILE=explore` draws others, ten times as many; what it finds belongs into an `@example`.
"""

import os

from hypothesis import settings

settings.register_profile("same", derandomize=True)
settings.register_profile("explore", max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
