"""A radix cache in the plainest Python there is: lists, recursion, and a look at all leaves for each eviction."""

from dataclasses import dataclass, field

KEYS = {
    "lru": lambda node: (node.used,),
    "lfu": lambda node: (node.hits, node.used),
    "fifo": lambda node: (node.created, node.used),
    "mru": lambda node: (-node.used,),
    "filo": lambda node: (-node.created, node.used),
    "priority": lambda node: (node.priority, node.used),
    "slru": lambda node: (node.hits >= 2, node.used),
}


@dataclass(eq=False)
class Node:
    """A run of tokens below another; what a handle stands for is a node and the version of its end."""

    parent: "Node | None"
    namespace: object
    ids: list
    slots: list
    created: int = 0
    used: int = 0
    hits: int = 0
    priority: int = 0
    locks: int = 0  # of this very node
    version: int = 0
    dead: bool = False
    children: list = field(default_factory=list)

    def path(self):
        return [] if self.parent is None else [*self.parent.path(), self]

    def below(self):
        found = [self]
        for node in found:  # which grows meanwhile
            found += node.children
        return found

    def locked(self):
        return self.locks > 0 or any(child.locked() for child in self.children)


def shared(a, b, page):
    same = 0
    while same < min(len(a), len(b)) and a[same] == b[same]:
        same += 1
    return same - same % page


class Model:
    def __init__(self, page_size=1, policy="lru", capacity=None, eviction="leaf"):
        self.page, self.key, self.capacity, self.tail = page_size, KEYS[policy], capacity, eviction == "tail"
        self.root = Node(None, None, [], [])
        self.clock = 0

    def find(self, ids, namespace):
        """Return the nodes of the longest prefix, and its length; only part of the last one may be in it."""
        node, steps, done = self.root, [], 0
        while True:
            fits = [c for c in node.children if c.namespace == namespace and shared(c.ids, ids[done:], self.page)]
            if not fits:
                return steps, done
            (node,) = fits
            same = shared(node.ids, ids[done:], self.page)
            steps.append(node)
            done += same
            if same < len(node.ids):
                return steps, done

    def cut(self, steps, length):
        """Make the walk end with a node; return that node."""
        if not steps:
            return self.root
        node = steps[-1]
        end = length - sum(len(step.ids) for step in steps[:-1])
        if end < len(node.ids):
            front = Node(node.parent, node.namespace, node.ids[:end], node.slots[:end], node.created, node.used)
            front.hits, front.priority = node.hits, node.priority
            front.children = [node]
            node.parent.children[node.parent.children.index(node)] = front
            node.parent, node.ids, node.slots = front, node.ids[end:], node.slots[end:]
            steps[-1] = front
        return steps[-1]

    def match(self, ids, namespace=None, touch=True):
        steps, length = self.find(ids, namespace)
        end = self.cut(steps, length)
        if touch:
            self.clock += 1
            for node in steps:
                node.used = self.clock
        return length, [slot for node in steps for slot in node.slots], (end, end.version)

    def insert(self, ids, slots, namespace=None, priority=0, counted=0):
        ids = ids[: len(ids) - len(ids) % self.page]
        steps, length = self.find(ids, namespace)
        over = self.total() + len(ids) - length - self.capacity if self.capacity is not None else 0
        if len(ids) > length and over > 0:
            kept = sum(len(node.ids) for node in steps[:-1] if not node.locked())
            if steps and not steps[-1].locked():
                kept += length - sum(len(node.ids) for node in steps[:-1])
            if over > self.evictable() - kept:
                raise ValueError("capacity")
        end = self.cut(steps, length)
        self.clock += 1
        passed = 0
        for node in steps:
            passed += len(node.ids)
            node.used, node.priority = self.clock, max(node.priority, priority)
            node.hits += passed > counted
        freed = []
        if len(ids) > length:
            if over > 0:
                end.locks += 1
                freed = self.evict(over)
                end.locks -= 1
            hits = int(len(ids) > counted)
            rest = ids[length:], slots[length : len(ids)]
            end.children.append(Node(end, namespace, *rest, self.clock, self.clock, hits, priority))
            end = end.children[-1]
        return length, (end, end.version), freed

    def alive(self, handle):
        return not handle[0].dead and handle[0].version == handle[1]

    def lock(self, handle):
        if not self.alive(handle):
            raise ValueError("dead")
        handle[0].locks += 1

    def unlock(self, handle):
        if not self.alive(handle) or handle[0].locks == 0:
            raise ValueError("dead or not locked")
        handle[0].locks -= 1

    def evict(self, tokens, at_most=False):
        if tokens > self.evictable() and not at_most:
            raise ValueError("more than evictable")
        tokens = min(tokens, self.evictable())
        freed = []
        while len(freed) < tokens:
            leaves = [node for node in self.nodes() if not node.children and not node.locked()]
            keys = [(*self.key(node), node.used) for node in leaves]
            assert len(set(keys)) == len(keys), "the order is not total"
            victim = leaves[keys.index(min(keys))]
            wanted = -(-(tokens - len(freed)) // self.page) * self.page
            if self.tail and wanted < len(victim.ids):
                freed += victim.slots[-wanted:]
                victim.ids, victim.slots = victim.ids[:-wanted], victim.slots[:-wanted]
                victim.version += 1
            else:
                freed += victim.slots
                victim.dead = True
                victim.parent.children.remove(victim)
        return freed

    def reset(self):
        for node in self.root.below():
            node.dead = True
        self.root = Node(None, None, [], [])

    def nodes(self):
        return self.root.below()[1:]

    def total(self):
        return sum(len(node.ids) for node in self.nodes())

    def evictable(self):
        return sum(len(node.ids) for node in self.nodes() if not node.locked())

    def protected(self):
        return self.total() - self.evictable()

    def contents(self):
        """Return every cached sequence up to the end of each node, with its slots."""
        whole = {}
        for node in self.nodes():
            path = node.path()
            ids = tuple(token for step in path for token in step.ids)
            whole[node.namespace, ids] = [slot for step in path for slot in step.slots]
        return whole
