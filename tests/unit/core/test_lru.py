"""A dictionary with bounds drops the items that were used least recently."""

from midrun.core.lru import LruDict


def test_the_item_that_was_used_least_recently_is_dropped() -> None:
    cache: LruDict[str, int] = LruDict(max_items=2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (1, None, 3)
    assert len(cache) == 2


def test_the_sum_of_the_weights_is_bounded() -> None:
    cache: LruDict[str, str] = LruDict(max_items=9, max_weight=100)
    for name in "abc":
        cache.put(name, name, weight=40)
    assert ("a" in cache, "b" in cache, "c" in cache) == (False, True, True)
    cache.put("b", "b", weight=10)  # in place of the 40 that it had
    assert cache.weight == 50
    assert cache.pop("b") == "b"
    assert cache.pop("b") is None
    cache.put("d", "d", weight=101)
    assert (len(cache), cache.weight) == (0, 0)
