import json
import sys
from datetime import date
from decimal import Decimal
from types import SimpleNamespace

import pytest

from tidegate import ConfigError, Gate, Prices


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        ("2.00", "2.00"),
        (2, "2"),
        (Decimal("0.15"), "0.15"),
        (0.1, "0.1"),
        (1e-7, "0.0000001"),
        ("1e2", "100"),
        (0, "0"),
    ],
)
def test_amounts_are_exact(amount, text):
    assert json.loads(Prices({"m*": {"input": amount}}).to_json()) == {"m*": {"input": text}}


def test_tiers_thresholds_and_days():
    flex = {"input": 1, "above": {272_000: {"input": "2"}}}
    table = {"m": [{"input": 2, "tiers": {"flex": flex}}, {"input": 3, "from": date(2026, 8, 21)}]}
    assert json.loads(Prices(table).to_json()) == {
        "m": [
            {"input": "2", "tiers": {"flex": {"input": "1", "above": {"272000": {"input": "2"}}}}},
            {"input": "3", "from": "2026-08-21"},
        ]
    }


@pytest.mark.parametrize("amount", ["-1", "x", "", float("nan"), float("inf"), "NaN", None, True, [1]])
def test_what_is_no_price_is_refused(amount):
    with pytest.raises(ConfigError) as caught:
        Prices({"m": {"output": amount}})
    assert caught.value.field == 'prices["m"].output'


@pytest.mark.parametrize(
    ("table", "field"),
    [
        ({"m": {"inptu": 1}}, 'prices["m"].inptu'),
        ({"m": 1}, 'prices["m"]'),
        ({"m": {"above": {"1000": {"outptu": 1}}}}, 'prices["m"].above["1000"].outptu'),
        ({"m": {"tiers": {"flex": 1}}}, 'prices["m"].tiers["flex"]'),
        ({"m": {"tiers": {"flex": {"from": "2026-01-01"}}}}, 'prices["m"].tiers["flex"].from'),
        ({1: {}}, "prices"),
        ({"": {}}, "prices"),
        ([], "prices"),
    ],
)
def test_a_table_of_another_form_is_refused(table, field):
    with pytest.raises(ConfigError) as caught:
        Prices(table)
    assert caught.value.field == field


OWN = {"gpt-4.1*": {"input": "2.00", "cached_input": "0.1"}}
LITELLM = {"sample_spec": {}, "m": {"litellm_provider": "a", "input_cost_per_token": 4e-06}}
GENAI = [{"id": "a", "models": [{"id": "m", "match": {"equals": "m"}, "prices": {"input_mtok": 0.1}}]}]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("own.json", json.dumps(OWN), OWN),
        ("own.toml", '["gpt-4.1*"]\ninput = "2.00"\ncached_input = 0.1\n', OWN),
        ("litellm.json", json.dumps(LITELLM), {"__litellm__": LITELLM}),
        ("genai.json", json.dumps(GENAI), {"__genai_prices__": GENAI}),
    ],
)
def test_files(tmp_path, name, text, expected):
    path = tmp_path / name
    path.write_text(text)
    assert json.loads(Prices.load(path).to_json()) == expected
    assert json.loads(Prices.load(str(path)).to_json()) == expected


def test_numbers_of_other_peoples_data_are_passed_as_they_are_written(tmp_path):
    path = tmp_path / "prices.json"
    path.write_text('{"m": {"litellm_provider": "a", "input_cost_per_token": 1.10000000000000000001e-06}}')
    assert "1.10000000000000000001e-06" in Prices.load(path).to_json()


@pytest.mark.parametrize(
    ("name", "text"), [("a.json", "{"), ("a.toml", "= 1"), ("a.json", "3"), ("a.json", None)]
)
def test_files_that_cannot_be_read(tmp_path, name, text):
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=r"a\.(json|toml)"):
        Prices.load(path)


def test_an_installed_package_is_read_in_its_published_form(monkeypatch):
    tiers = SimpleNamespace(base=Decimal(5), tiers=[SimpleNamespace(start=272000, price=Decimal(10))])
    match = SimpleNamespace(or_=[SimpleNamespace(equals="m"), SimpleNamespace(starts_with="m-")])
    model = SimpleNamespace(
        id="m", match=match, prices=SimpleNamespace(input_mtok=tiers, output_mtok=None), price_variants=None
    )
    provider = SimpleNamespace(
        id="acme", api_pattern="https://acme", model_match=None, provider_match=None,
        fallback_model_providers=None, models=[model],
    )  # fmt: skip
    module = SimpleNamespace(get_snapshot=lambda: SimpleNamespace(providers=[provider]))
    monkeypatch.setitem(sys.modules, "genai_prices", SimpleNamespace(data_snapshot=module))
    monkeypatch.setitem(sys.modules, "genai_prices.data_snapshot", module)
    (found,) = json.loads(Prices.from_genai_prices().to_json())["__genai_prices__"]
    assert found == {
        "id": "acme",
        "api_pattern": "https://acme",
        "models": [
            {
                "id": "m",
                "match": {"or": [{"equals": "m"}, {"starts_with": "m-"}]},
                "prices": {"input_mtok": {"base": "5", "tiers": [{"start": 272000, "price": "10"}]}},
            }
        ],
    }


def test_the_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    monkeypatch.setitem(sys.modules, "genai_prices.data_snapshot", None)
    with pytest.raises(ConfigError, match=r"pip install 'tidegate\[prices\]'"):
        Prices.from_genai_prices()


def test_a_gate_takes_a_table_as_it_is():
    assert repr(Gate(prices=OWN)) == "Gate(prices=<Prices: 1 pattern(s)>)"
    with pytest.raises(ConfigError) as caught:
        Gate(prices="prices.toml")
    assert caught.value.field == "prices"
