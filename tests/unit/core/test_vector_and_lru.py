"""Vector, an immutable list, and LruDict, a dict with bounds."""

from hypothesis import given as for_all
from hypothesis import strategies as st

from midrun.core.lru import LruDict
from midrun.core.vector import Vector


@for_all(
    size=st.integers(0, 2200),
    changes=st.lists(st.tuples(st.integers(0, 2199), st.integers()), max_size=20),
)
def test_a_vector_is_equal_to_a_list_and_never_changed_in_place(
    size: int, changes: list[tuple[int, int]]
) -> None:
    items = list(range(size))
    vector: Vector[int] = Vector()
    for item in items:
        vector = vector.append(item)
    assert vector == Vector(items)
    before = list(vector)
    for index, item in changes:
        if index < size:
            items[index] = item
            vector = vector.replace(index, item)
    assert list(vector) == items
    assert before == list(range(size))


@for_all(
    size=st.integers(0, 200),
    added=st.integers(0, 80),
    changed=st.one_of(st.none(), st.integers(0, 199)),
)
def test_a_vector_counts_the_items_that_it_shares_with_an_earlier_one(
    size: int, added: int, changed: int | None
) -> None:
    earlier = Vector[object](object() for _ in range(size))
    later = earlier
    for _ in range(added):
        later = later.append(object())
    expected = size
    if changed is not None and changed < size:
        later, expected = later.replace(changed, object()), changed
    assert later.count_shared(earlier) == earlier.count_shared(later) == expected


def test_an_lru_dict_drops_the_item_that_was_used_least_recently() -> None:
    cache: LruDict[str, int] = LruDict(max_items=2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (1, None, 3)
    assert len(cache) == 2


def test_an_lru_dict_bounds_the_sum_of_the_weights() -> None:
    cache: LruDict[str, str] = LruDict(max_items=9, max_weight=100)
    for name in "abc":
        cache.put(name, name, weight=40)
    assert ("a" in cache, "b" in cache, "c" in cache) == (False, True, True)
    cache.put("b", "b", weight=10)  # replaces the weight 40
    assert cache.weight == 50
    assert cache.pop("b") == "b"
    assert cache.pop("b") is None


def test_an_item_that_is_too_heavy_for_an_lru_dict_evicts_no_other() -> None:
    """It only removes the old value of its own key."""
    cache: LruDict[str, str] = LruDict(max_items=9, max_weight=100)
    cache.put("a", "a", weight=50)
    cache.put("b", "old", weight=50)
    cache.put("b", "new", weight=101)
    assert list(cache.items()) == [("a", "a")]
    assert cache.weight == 50


def test_a_stored_none_differs_from_a_missing_item_of_an_lru_dict() -> None:
    cache: LruDict[str, None] = LruDict(max_items=1)
    cache.put("a", None)
    assert cache.get("a", "missing") is None
    assert cache.get("b", "missing") == "missing"
    assert list(cache) == ["a"]
