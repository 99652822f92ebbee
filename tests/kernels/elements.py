"""Elements of random bytes, so that a byte out of place shows, and their comparison."""

import torch


def random_of(dtype, shape, seed):
    """Random bytes as elements; bool has 0 and 1 only."""
    generator = torch.Generator().manual_seed(seed)
    size = (*shape[:-1], shape[-1] * dtype.itemsize)
    return torch.randint(0, 2 if dtype is torch.bool else 256, size, generator=generator, dtype=torch.uint8).view(dtype)


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def same_bits(result, expected):
    """Equal bytes, also of a result on a GPU; of 8-bit floats, one NaN is as good as another."""
    result = result.cpu()
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    same = bits(result) == bits(expected)
    if result.dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        same |= (result.float().isnan() & expected.float().isnan()).reshape(-1)
    assert same.all()
