"""Generate text on several ranks: `commlib run -n 2 -m examples.llama.generate`.

Without --model the weights are made up, so the text is, too; its letters are bytes. --model is a folder of a Llama as
Hugging Face has it: config.json, *.safetensors and tokenizer.json.
"""

import argparse
from typing import Any

import torch

import commlib
from commlib.redops import dtype_named
from commlib.tp import RandomWeights
from examples.llama import Draw, Engine, Llama, LlamaConfig

STEM = "A communicator is what the program calls; "


class Bytes:
    """A tokenizer of one token for each byte."""

    def encode(self, text: str) -> list[int]:
        """Return the bytes of a text."""
        return list(text.encode())

    def decode(self, tokens: list[int]) -> str:
        """Return bytes as Python writes them."""
        return repr(bytes(tokens))


class Tokenizer:
    """The tokenizer of a folder."""

    def __init__(self, folder: str) -> None:
        from tokenizers import Tokenizer as Loaded  # comes with transformers

        self.loaded: Any = Loaded.from_file(f"{folder}/tokenizer.json")

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        tokens: list[int] = self.loaded.encode(text).ids
        return tokens

    def decode(self, tokens: list[int]) -> str:
        """Return the text of tokens as Python writes it."""
        return repr(self.loaded.decode(tokens))


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", help="a folder with config.json, *.safetensors and tokenizer.json")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="without it, GPUs where every rank has one")
    parser.add_argument("--dtype", type=dtype_named, default="float32")
    parser.add_argument("--max-new-tokens", type=int, default=16)
    parser.add_argument("--prompts", nargs="+", default=[STEM + "its backend", STEM + "a rank"])
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--top-k", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def made_up(comm: commlib.Communicator, dtype: torch.dtype) -> Llama:
    """Return a small model of made-up weights: the same on any number of ranks."""
    shape: dict[str, Any] = {"vocab_size": 256, "hidden_size": 256, "intermediate_size": 688, "head_dim": 32}
    heads: dict[str, Any] = {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4}
    model = Llama(comm, LlamaConfig(**shape, **heads), dtype=dtype)
    model.load(RandomWeights())
    return model


def generate(comm: commlib.Communicator, args: argparse.Namespace) -> None:
    """Generate for every prompt, and print on rank 0 what came out."""
    model = Llama.from_folder(comm, args.model, dtype=args.dtype) if args.model else made_up(comm, args.dtype)
    tokenizer = Tokenizer(args.model) if args.model else Bytes()
    engine = Engine(model)
    prompts = [tokenizer.encode(prompt) for prompt in args.prompts]
    results = engine.generate(prompts, args.max_new_tokens, Draw(args.temperature, args.top_k, args.seed))
    engine.close()  # its graphs: before the communicator
    if comm.rank == 0:
        for prompt, tokens, one in zip(args.prompts, prompts, results, strict=True):
            print(f"{prompt!r}: {len(tokens)} tokens, {one.reused} of them reused")
            print(f"  {tokenizer.decode(one.tokens)}")


def main() -> None:
    """Start the ranks' communicator, and generate on it."""
    args = arguments()
    backend = {"cpu": "shm", "cuda": "nccl", None: "auto"}[args.device]
    with commlib.init(backend=backend) as comm:
        generate(comm, args)


if __name__ == "__main__":
    main()
