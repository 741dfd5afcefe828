"""What tokens cost. There is no table in the code: prices are configured, or loaded from who keeps them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from tidegate._errors import ConfigError
from tidegate._fields import unknown_field

if TYPE_CHECKING:
    from collections.abc import Sequence

PriceTable: TypeAlias = Mapping[str, Any]
"""Prices of one model; see `Prices`."""

_RATES = (
    "input",
    "cached_input",
    "cache_write",
    "cache_write_5m",
    "cache_write_30m",
    "cache_write_1h",
    "cache_write_12h",
    "input_audio",
    "input_image",
    "output",
    "reasoning",
    "output_audio",
    "output_image",
    "web_search",
)
_AMOUNT = 'must be US dollars per million tokens, 0 or more, such as "2.50"'

# What marks data in somebody else's form, which the core reads itself.
_LITELLM = "__litellm__"
_GENAI_PRICES = "__genai_prices__"


class Prices:
    """Prices in US dollars per million tokens, by pattern of the model's name.

    >>> Prices({"gpt-4.1*": {"input": "2.00", "cached_input": "0.50", "output": "8.00"}})

    Of several patterns that match, the exact name counts, then the one with the longest literal. A model that
    none matches has no price: its cost is `None`, never 0. Where ``cached_input`` or ``cache_write`` is
    missing, such tokens cost as much as ``input``; where ``reasoning`` is missing, as much as ``output``.
    """

    __slots__ = ("_json", "_source")

    def __init__(self, table: Mapping[str, PriceTable | Sequence[PriceTable]]) -> None:
        """Take a table of your own.

        Args:
            table: Pattern (``*`` and ``?`` are wildcards) → prices: ``input``, ``cached_input``,
                ``cache_write``, ``output``, ``reasoning``; more finely ``cache_write_5m``, ``_30m``, ``_1h``,
                ``_12h``, and ``input_`` and ``output_`` with ``audio`` and ``image``; per thousand:
                ``web_search``. Amounts are strings, ints or Decimals with at most 12 decimals; of a float,
                what it is written as counts. Besides: ``tiers`` (service tier → prices), ``above`` (number of
                input tokens → prices of the whole request once it has more), ``from`` (the day, in UTC, from
                which these prices hold); a list holds prices with different ``from``.

        Raises:
            ConfigError: An amount is no number or negative, or a name is none of these.
        """
        if not isinstance(table, Mapping):
            raise ConfigError("prices", type(table).__name__, "must be a mapping of model patterns to rates")
        import json

        self._json = json.dumps({pattern: _rules(pattern, rates) for pattern, rates in table.items()})
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
                table; or litellm's ``model_prices_and_context_window.json``; or ``data.json`` of
                genai-prices.

        Raises:
            ConfigError: The file cannot be read, or is in none of these forms.
        """
        import json
        from decimal import Decimal

        path = os.fspath(path)
        try:
            with open(path, encoding="utf-8") as file:  # noqa: PTH123 pathlib would double the import's time
                text = file.read()
            if path.endswith(".toml"):
                import tomllib

                data: Any = tomllib.loads(text, parse_float=Decimal)
            else:
                data = json.loads(text, parse_float=Decimal)
        except (OSError, ValueError) as error:
            raise ConfigError(
                "prices", path, f"must be a TOML or JSON file that can be read ({error})"
            ) from error
        if _is_litellm(data):
            return cls._foreign(f'{{"{_LITELLM}": {text}}}', f"litellm's map in {path}")
        if _is_genai_prices(data):
            return cls._foreign(f'{{"{_GENAI_PRICES}": {text}}}', f"data of genai-prices in {path}")
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
        import json

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


def _rules(pattern: object, given: object) -> Any:
    """Read what is said of one model: an object of prices, or several with different starts."""
    if not isinstance(pattern, str) or not pattern:
        raise ConfigError("prices", pattern, "must be the name of a model, or a pattern such as gpt-4.1*")
    path = f'prices["{pattern}"]'
    if isinstance(given, list):
        return [_rule(path, rule) for rule in given]
    return _rule(path, given)


def _rule(path: str, given: object) -> dict[str, Any]:
    table = _table(path, given)
    rule: dict[str, Any] = {}
    if "from" in table:
        # TOML has days; JSON writes them as text.
        rule["from"] = str(table.pop("from"))
    if "tiers" in table:
        tiers = _table(f"{path}.tiers", table.pop("tiers"))
        rule["tiers"] = {tier: _rates(f'{path}.tiers["{tier}"]', rates) for tier, rates in tiers.items()}
    return rule | _rates(path, table, also=("from", "tiers"))


def _rates(path: str, given: object, also: tuple[str, ...] = ()) -> dict[str, Any]:
    table = _table(path, given)
    rates: dict[str, Any] = {}
    if "above" in table:
        above = _table(f"{path}.above", table.pop("above"))
        rates["above"] = {
            str(tokens): _amounts(f'{path}.above["{tokens}"]', amounts) for tokens, amounts in above.items()
        }
    return rates | _amounts(path, table, also=("above", *also))


def _amounts(path: str, given: object, also: tuple[str, ...] = ()) -> dict[str, str]:
    amounts = _table(path, given)
    for name in amounts:
        if name not in _RATES:
            raise unknown_field(path, name, amounts[name], (*_RATES, *also))
    return {name: _amount(f"{path}.{name}", amount) for name, amount in amounts.items()}


def _table(path: str, given: object) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise ConfigError(path, given, 'must be a table such as {input = "2.00", output = "8.00"}')
    return {str(name): value for name, value in given.items()}


def _amount(field: str, value: object) -> str:
    from decimal import Decimal, InvalidOperation

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
    return isinstance(data, list) and all(
        isinstance(provider, dict) and isinstance(provider.get("models"), list) for provider in data
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
