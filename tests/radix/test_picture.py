"""dump() shows every node, as text and as a picture that is well-formed."""

from xml.etree import ElementTree

import numpy as np

from commlib.radix import RadixCache


def grown():
    cache = RadixCache(page_size=2)
    cache.insert(np.array([1, 2, 3, 4]), np.arange(4), priority=5)
    cache.insert(np.array([1, 2, 7, 8]), np.arange(4, 8))
    cache.insert(np.array([1, 2]), np.arange(8, 10), namespace="<a&b>")
    cache.lock(cache.match(np.array([1, 2, 7, 8])).handle)
    return cache


def test_text_has_a_line_for_each_node():
    assert grown().dump().splitlines() == [
        "root, 0 locks",
        "├─ #4  2 tokens  1…2  hits 1  used 3  in '<a&b>'",
        "└─ #2  2 tokens  1…2  hits 2  used 4  locked 1  priority 5",
        "   ├─ #1  2 tokens  3…4  hits 1  used 1  priority 5",
        "   └─ #3  2 tokens  7…8  hits 1  used 4  locked 1",
    ]


def test_the_picture_has_a_box_for_each_node(tmp_path):
    cache, path = grown(), tmp_path / "tree.svg"
    assert cache.dump(path) == cache.dump()
    svg = "{http://www.w3.org/2000/svg}"
    root = ElementTree.parse(path).getroot()
    groups = root.findall(f"{svg}g")
    assert len(groups) == 5
    boxes = [
        tuple(float(group.find(f"{svg}rect").get(key)) for key in ("x", "y", "width", "height")) for group in groups
    ]
    for i, (x, y, width, height) in enumerate(boxes):
        assert 0 <= x and x + width <= float(root.get("width")) and y + height <= float(root.get("height"))
        for left, top, wide, high in boxes[:i]:
            apart = x >= left + wide or left >= x + width or y >= top + high or top >= y + height
            assert apart, "two boxes overlap"


def test_an_empty_and_a_deep_tree_have_pictures(tmp_path):
    cache = RadixCache()
    assert cache.dump(tmp_path / "empty.svg") == "root, 0 locks"
    for length in range(1, 1500):
        cache.insert(np.arange(length), np.arange(length))
    assert len(cache.dump(tmp_path / "deep.svg").splitlines()) == 1500
