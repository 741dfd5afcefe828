import asyncio
import threading

import pytest

from tidegate import ConfigError, current_tags, tags


def test_tags_nest_and_end():
    with tags(route="a", tenant="t"):
        with tags(route="b"):
            assert current_tags() == {"route": "b", "tenant": "t"}
        assert current_tags() == {"route": "a", "tenant": "t"}
    assert current_tags() == {}


def test_tags_end_with_an_error():
    with pytest.raises(KeyError), tags(route="a"):
        raise KeyError
    assert current_tags() == {}


def test_one_object_may_be_entered_again():
    label = tags(route="a")
    with label, tags(route="b"), label:
        assert current_tags() == {"route": "a"}
    assert current_tags() == {}


def test_what_is_returned_is_the_callers_own():
    with tags(route="a"):
        current_tags()["route"] = "changed"
        assert current_tags() == {"route": "a"}


def test_decorated_functions():
    @tags(route="r")
    def plain(more):
        return current_tags() | more

    assert plain({"x": "y"}) == {"route": "r", "x": "y"}
    assert plain.__name__ == "plain"
    assert current_tags() == {}


async def test_decorated_coroutines_at_the_same_time():
    @tags(route="r")
    async def coroutine(name):
        with tags(name=name):
            await asyncio.sleep(0)
            return current_tags()

    found = await asyncio.gather(*(coroutine(name) for name in "abc"))
    assert found == [{"route": "r", "name": name} for name in "abc"]
    assert current_tags() == {}


async def test_tasks_inherit_and_do_not_leak():
    async def child():
        before = current_tags()
        with tags(step="child"):
            await asyncio.sleep(0)
        return before

    with tags(route="r"):
        task = asyncio.create_task(child())
    assert await task == {"route": "r"}
    assert current_tags() == {}


def test_other_threads_have_their_own():
    found = []
    with tags(route="r"):
        thread = threading.Thread(target=lambda: found.append(current_tags()))
        thread.start()
        thread.join()
    assert found == [{}]


@pytest.mark.parametrize(
    ("labels", "field"),
    [
        ({"route": 1}, "tags.route"),
        ({"route": None}, "tags.route"),
        ({"route": ""}, "tags.route"),
        ({"route": "x" * 129}, "tags.route"),
        ({"route": "a\nb"}, "tags.route"),
        ({"a b": "x"}, "tags.a b"),
        ({"x" * 65: "x"}, "tags." + "x" * 65),
        ({f"t{number}": "x" for number in range(17)}, "tags"),
    ],
)
def test_bad_labels_are_refused_at_once(labels, field):
    with pytest.raises(ConfigError) as caught:
        tags(**labels)
    assert caught.value.field == field


@pytest.mark.parametrize("value", ["x" * 128, "Zürich", "a/b:c d"])
def test_good_labels(value):
    with tags(route=value):
        assert current_tags() == {"route": value}


def test_too_many_in_all():
    with tags(**{f"t{number}": "x" for number in range(16)}), pytest.raises(ConfigError), tags(more="x"):
        pass
    assert current_tags() == {}


def test_generators_are_refused():
    with pytest.raises(ConfigError, match="inside it"):

        @tags(route="r")
        def generator():
            yield
