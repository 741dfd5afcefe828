"""What tokens cost. There is no table in the code: prices are configured, or loaded from who keeps them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from tidegate._errors import ConfigError
from tidegate._fields import unknown_field

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

Amount: TypeAlias = str | int | float | Decimal
"""US dollars per million tokens."""

_RATES = ("input", "cached_input", "cache_write", "output")
_AMOUNT = 'must be US dollars per million tokens, 0 or more, such as "2.50"'

# What marks data in somebody else's form, which the core reads itself.
_LITELLM = "__litellm__"
_GENAI_PRICES = "__genai_prices__"


class Prices:
    """Prices in US dollars per million tokens, by pattern of the model's name.

    >>> Prices({"gpt-4.1*": {"input": "2.00", "cached_input": "0.50", "output": "8.00"}})

    Of several patterns that match, the longest holds. A model that none matches has no price: its cost is
    `None`, never 0. Where ``cached_input`` or ``cache_write`` is missing, such tokens cost as much as
    ``input``.
    """

    __slots__ = ("_json", "_source")

    def __init__(self, table: Mapping[str, Mapping[str, Amount]]) -> None:
        """Take a table of your own.

        Args:
            table: Pattern (``*`` and ``?`` are wildcards) → rates: ``input``, ``cached_input``,
                ``cache_write``, ``output``. Amounts are strings, ints or Decimals; of a float, what it is
                written as counts.

        Raises:
            ConfigError: An amount is no number or negative, or a name is none of these four.
        """
        if not isinstance(table, Mapping):
            raise ConfigError("prices", type(table).__name__, "must be a mapping of model patterns to rates")
        self._json = json.dumps({pattern: _rates(pattern, rates) for pattern, rates in table.items()})
        self._source = f"{len(table)} pattern(s)"

    @classmethod
    def _foreign(cls, text: str, source: str) -> Prices:
        prices = cls.__new__(cls)
        prices._json = text
        prices._source = source
        return prices

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Prices:
        """Read prices from a file.

        Args:
            path: TOML (``["gpt-4.1*"]`` then ``input = "2.00"``) or JSON in the form of the constructor's
                table; or litellm's ``model_prices_and_context_window.json``; or the data of genai-prices.

        Raises:
            ConfigError: The file cannot be read, or is in none of these forms.
        """
        path = Path(path)
        try:
            text = path.read_text("utf-8")
            if path.suffix == ".toml":
                import tomllib

                data: Any = tomllib.loads(text, parse_float=Decimal)
            else:
                data = json.loads(text, parse_float=Decimal)
        except (OSError, ValueError) as error:
            raise ConfigError(
                "prices", path, f"must be a TOML or JSON file that can be read ({error})"
            ) from error
        if _is_litellm(data):
            return cls._foreign(f'{{"{_LITELLM}": {text}}}', f"litellm's map in {path.name}")
        if _is_genai_prices(data):
            return cls._foreign(f'{{"{_GENAI_PRICES}": {text}}}', f"data of genai-prices in {path.name}")
        if not isinstance(data, dict):
            raise ConfigError(
                "prices", path, "must be a table of prices, litellm's map or the data of genai-prices"
            )
        return cls(data)

    @classmethod
    def from_genai_prices(cls) -> Prices:
        """Take the prices of the installed package genai-prices (extra ``prices``).

        Raises:
            ConfigError: The package is not installed.
        """
        import importlib

        try:
            snapshot = importlib.import_module("genai_prices.data_snapshot").get_snapshot()
        except ModuleNotFoundError as error:
            raise ConfigError(
                "prices", "genai-prices", "must be installed: pip install 'tidegate[prices]'"
            ) from error
        data = [_provider(provider) for provider in snapshot.providers]
        return cls._foreign(json.dumps({_GENAI_PRICES: data}), "genai-prices")

    def to_json(self) -> str:
        """Return the prices as the core reads them.

        A table is ``{pattern: {rate: amount as a string}}``. Data in somebody else's form is the only value
        of ``{"__litellm__": …}`` or ``{"__genai_prices__": …}``.
        """
        return self._json

    def __repr__(self) -> str:
        return f"<Prices: {self._source}>"


def _rates(pattern: object, rates: object) -> dict[str, str]:
    if not isinstance(pattern, str) or not pattern:
        raise ConfigError("prices", pattern, "must be the name of a model, or a pattern such as gpt-4.1*")
    if not isinstance(rates, Mapping):
        raise ConfigError(
            f"prices.{pattern}", rates, 'must be a table such as {input = "2.00", output = "8.00"}'
        )
    for name in rates:
        if name not in _RATES:
            raise unknown_field(f"prices.{pattern}", str(name), rates[name], _RATES)
    return {name: _amount(f"prices.{pattern}.{name}", rate) for name, rate in rates.items()}


def _amount(field: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
        raise ConfigError(field, value, _AMOUNT)
    try:
        amount = Decimal(repr(value) if isinstance(value, float) else value)
    except InvalidOperation:
        raise ConfigError(field, value, _AMOUNT) from None
    if not amount.is_finite() or amount < 0:
        raise ConfigError(field, value, _AMOUNT)
    return f"{amount:f}"


def _is_litellm(data: object) -> bool:
    return isinstance(data, dict) and any(
        isinstance(entry, dict) and ("litellm_provider" in entry or "input_cost_per_token" in entry)
        for entry in data.values()
    )


def _is_genai_prices(data: object) -> bool:
    providers = data.get("providers") if isinstance(data, dict) else data
    return isinstance(providers, list) and all(
        isinstance(provider, dict) and isinstance(provider.get("models"), list) for provider in providers
    )


def _provider(provider: Any) -> dict[str, Any]:
    """Return what the core needs of a provider, in the form of the data that genai-prices publishes."""
    return _plain(
        provider, ("id", "api_pattern", "model_match", "provider_match", "fallback_model_providers")
    ) | {"models": [_plain(model, ("id", "match", "prices", "price_variants")) for model in provider.models]}


def _plain(item: Any, names: Sequence[str]) -> dict[str, Any]:
    values = ((name, getattr(item, name)) for name in names)
    return {name.rstrip("_"): _plain_value(value) for name, value in values if value is not None}


def _plain_value(value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, list):
        return [_plain_value(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain_value(item) for key, item in value.items()}
    # A Decimal stays exact as text; dates and times are written in ISO's form.
    fields = getattr(value, "__dict__", None)
    return (
        str(value) if fields is None else _plain(value, [name for name in fields if not name.startswith("_")])
    )
