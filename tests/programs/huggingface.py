"""Programs of Hugging Face's libraries; the models are small, and their weights random."""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from commlib.communicator import Communicator
from tests.fused import fused

TOKENS = [[3, 14, 15, 92, 65, 35, 89, 79], [32, 38, 46, 26, 43, 38, 32, 79]]


def small_llama(**options: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = {"vocab_size": 128, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    shape |= {"num_attention_heads": 8, "num_key_value_heads": 4}
    rest = {"tie_word_embeddings": False, "pad_token_id": 0, "eos_token_id": None}
    return LlamaForCausalLM(LlamaConfig(**{**shape, **rest, **options})).eval()


def llama_of_one(comm: Communicator, folder: str) -> Any:
    """Write a model to `folder`, and return what it computes in one process."""
    model = small_llama().to(comm.device)
    if comm.rank == 0:
        model.save_pretrained(folder)
    return computed(model)


def loaded(folder: str) -> Any:
    """Load the model in tensor parallel."""
    from transformers import LlamaForCausalLM
    from transformers.distributed import DistributedConfig

    plan = DistributedConfig(tp_plan="auto", tp_size=dist.get_world_size())
    return LlamaForCausalLM.from_pretrained(folder, distributed_config=plan)


@torch.no_grad()
def fused_llama(device: torch.device, folder: str) -> Any:
    """Compile the model with its norms fused; return its logits, and how many all_reduces were fused of how many."""
    model, tokens = loaded(folder).eval(), torch.tensor(TOKENS, device=device)
    logits, count, ordered, others = fused(lambda x: model(x, use_cache=False).logits, tokens)
    return logits.cpu(), count, len(ordered) + ("_c10d_functional.all_reduce.default" in others)


def llama(device: torch.device, folder: str) -> Any:
    """Load the model in tensor parallel, and return what it computes."""
    model = loaded(folder)
    return [*computed(model), sum(p.to_local().numel() for p in model.parameters() if hasattr(p, "to_local"))]


@torch.inference_mode()
def computed(model: Any) -> Any:
    tokens = torch.tensor(TOKENS, device=model.device)
    generated = model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=8, do_sample=False)
    return [model(tokens).logits.cpu(), generated.tolist()]


def accelerate(device: torch.device) -> Any:
    """Train with an Accelerator, which wraps the model in DDP and gives each rank its part of the data."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    accelerator = Accelerator(cpu=device.type == "cpu", gradient_accumulation_steps=2)
    assert accelerator.num_processes == dist.get_world_size()
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    data = TensorDataset(torch.randn(64, 16), torch.arange(64) % 4)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, 8, shuffle=True))
    losses = []
    for x, target in loader:
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(x), target)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses += accelerator.gather_for_metrics(loss.detach()).tolist()
    weights = [value.cpu() for value in accelerator.get_state_dict(model).values()]
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    return losses, weights
