"""The `expected` text of errors about an unknown provider.

There are too many providers to list all.
"""

import re
from difflib import get_close_matches
from typing import Final

from gateway.providers import PROVIDERS
from gateway.providers.schemes.sections import KINDS

LISTED: Final = "a name that `gateway providers` lists"
DESCRIBED: Final = f"or {', '.join(KINDS)} with a `scheme`"


def expected_provider(like: str) -> str:
    """Return the `expected` text, with the closest provider name.

    Words of titles are matched too: WhatsApp is a product of `meta`.
    """
    called = {name: name for name in (*PROVIDERS, *KINDS)}
    for name in PROVIDERS:
        facts = PROVIDERS[name].facts
        for word in re.findall(r"[a-z0-9]{4,}", "" if facts is None else facts.title.lower()):
            called.setdefault(word, name)
    close = get_close_matches(like.lower(), called, n=1)
    return f"{LISTED}, {DESCRIBED}" + (f" (did you mean {called[close[0]]}?)" if close else "")
