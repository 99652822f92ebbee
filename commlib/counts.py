"""Counts and ranks as texts: '1 rank', '2 ranks', 'ranks 0, 1 and 3'."""

from collections.abc import Iterable


def counted(number: int | str, noun: str, many: str = "") -> str:
    """Return a number, or a list of some, with its noun; `many` is the plural of one that takes more than an s."""
    return f"{number} {noun if str(number) == '1' else many or f'{noun}s'}"


def ranks_text(ranks: Iterable[int]) -> str:
    """Write 'rank 1' or 'ranks 0, 1 and 3'."""
    numbers = [str(rank) for rank in sorted(set(ranks))]
    if len(numbers) < 2:
        return f"rank {''.join(numbers)}"
    return f"ranks {', '.join(numbers[:-1])} and {numbers[-1]}"
