"""What the ranks of a job are in, seen from outside: records read, who waits for whom.

`findings.explain` and `stacks.listen` are for the rank itself, the rest for those who look; none of it loads torch or
native code.
"""
