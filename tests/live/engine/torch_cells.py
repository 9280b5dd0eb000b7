"""Cells that are written for torchrun, as people write them: nothing in them knows of us.

Each trains a tiny model and leaves `weights` (equal on all ranks when they trained together), `seen` (which samples its
rank took) and `size` (what the framework believes the world to be).
"""

from __future__ import annotations

_DATA = """
import torch
from torch.utils.data import DataLoader, Dataset
class Numbers(Dataset):
    def __len__(self): return 32
    def __getitem__(self, index):
        seen.append(index)
        return torch.full((4,), index / 32), torch.tensor([index / 16])
seen = []
def digest(parameters):
    return [round(float(p.double().sum()), 9) for p in parameters]
"""

DDP = (
    _DATA
    + """
import os
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler
dist.init_process_group("gloo")
size = dist.get_world_size()
local_rank = int(os.environ["LOCAL_RANK"])
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
sampler = DistributedSampler(Numbers())
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in DataLoader(Numbers(), batch_size=4, sampler=sampler):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
weights = digest(model.parameters())
dist.destroy_process_group()
"""
)

FSDP = (
    _DATA
    + """
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo")
size = dist.get_world_size()
mesh = init_device_mesh("cpu", (size,))
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
mine = Numbers()
for step in range(4):
    x, y = mine[step * size + dist.get_rank()]
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x[None]), y[None]).backward()
    optimizer.step()
weights = digest(p.full_tensor() for p in model.parameters())
dist.destroy_process_group()
"""
)

ACCELERATE = (
    _DATA
    + """
from accelerate import Accelerator
accelerator = Accelerator()
size = accelerator.num_processes
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(Numbers(), batch_size=4, shuffle=True))
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        accelerator.backward(torch.nn.functional.mse_loss(model(x), y))
        optimizer.step()
weights = digest(accelerator.unwrap_model(model).parameters())
accelerator.end_training()
"""
)

NOTEBOOK_LAUNCHER = """
from accelerate import Accelerator, notebook_launcher
def train(scale):
    global weights, size
    import torch
    accelerator = Accelerator()
    size = accelerator.num_processes
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    for step in range(3):
        optimizer.zero_grad()
        accelerator.backward(model(scale * torch.randn(4, 4)).pow(2).mean())
        optimizer.step()
    weights = [round(float(p.double().sum()), 9) for p in accelerator.unwrap_model(model).parameters()]
try:
    notebook_launcher(train, (1.0,), num_processes=8)
except Exception as problem:
    said = str(problem)
notebook_launcher(train, args=(1.0,), num_processes=2)
"""

_LIGHTNING = (
    _DATA
    + """
import logging, warnings
warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel("ERROR")
import lightning
class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, number):
        x, y = batch
        return torch.nn.functional.mse_loss(self.layer(x), y)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
quiet = dict(
    max_epochs=2, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False
)
"""
)

LIGHTNING = (
    _LIGHTNING
    + """
trainer = lightning.Trainer(accelerator="cpu", strategy="ddp", devices=world_size, **quiet)
model = Line()
trainer.fit(model, DataLoader(Numbers(), batch_size=4, shuffle=True))
size = trainer.world_size
weights = digest(model.parameters())
"""
)

LIGHTNING_BY_DEFAULT = (
    _LIGHTNING
    + """
def fit(**more):
    trainer = lightning.Trainer(accelerator="cpu", **quiet, **more)
    trainer.fit(Line(), DataLoader(Numbers(), batch_size=4))
    return trainer.world_size
said = []
try:
    fit()
except Exception as problem:
    said.append(str(problem))
try:
    layer = torch.nn.Linear(4, 1)
    lightning.Fabric(accelerator="cpu").setup(layer, torch.optim.SGD(layer.parameters(), lr=0.1))
except Exception as problem:
    said.append(str(problem))
size = fit(strategy=lightning.pytorch.strategies.SingleDeviceStrategy("cpu"))
"""
)

TRAINER = (
    _DATA
    + """
import os
os.environ["HF_HUB_OFFLINE"] = "1"
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
class Words(Numbers):
    def __getitem__(self, index):
        seen.append(index)
        return {"input_ids": torch.tensor([index % 8, 1, 2]), "labels": torch.tensor(index % 2)}
shape = dict(vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
model = BertForSequenceClassification(BertConfig(**shape))
arguments = TrainingArguments(
    output_dir="out", num_train_epochs=1, per_device_train_batch_size=4, report_to=[], save_strategy="no",
    disable_tqdm=True, logging_strategy="no",
)
trainer = Trainer(model=model, args=arguments, train_dataset=Words())
trainer.train()
size = arguments.world_size
weights = digest(model.parameters())
"""
)

ACCELERATE_APART = """
from accelerate import Accelerator
import torch
said = []
for way in ("prepare", "prepare_model"):
    try:
        getattr(Accelerator(), way)(torch.nn.Linear(4, 1))
    except Exception as problem:
        said.append(str(problem))
loader = Accelerator().prepare(torch.utils.data.DataLoader([1, 2]))
"""
