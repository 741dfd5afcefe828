"""The four classes as the official suite gets them.

The suite is nothing but failures in a row, and a gate exists to notice that: with the default gate its retry
budget would be empty and its breaker open after a few tests. Both are off here; all else is on.
"""

import tidegate
from tidegate import AsyncAzureOpenAI, AsyncOpenAI, AzureOpenAI, OpenAI

tidegate.configure(retry_budget=None, breaker=None)

__all__ = ["AsyncAzureOpenAI", "AsyncOpenAI", "AzureOpenAI", "OpenAI"]
