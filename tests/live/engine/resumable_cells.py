"""Cells for `--resumable` as people write them for torchrun: each loads its own last checkpoint and goes on.

All train a softmax regression, which comes to the same accuracy whatever the order of samples. Where
DISTURBED is set, each waits after five epochs for a change of size, and then rank 1 is killed after ten.
"""

from __future__ import annotations

from tests.live.engine.bench import NOTE

_POINTS = (
    NOTE
    + """
import signal, torch
from torch.utils.data import DataLoader, TensorDataset
chance = torch.Generator().manual_seed(0)
y = torch.randint(10, (2400,), generator=chance)
x = torch.randn(10, 64, generator=chance)[y] + 2.0 * torch.randn(2400, 64, generator=chance)
train, test = slice(1200), slice(1200, None)
points = TensorDataset(x[train], y[train])
batch = 32 // world_size
EPOCHS = 15
restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
def score(model):
    with torch.no_grad():
        return float((model(x[test]).argmax(1) == y[test]).float().mean())
def saved(epoch, told_to_end=lambda: False):
    "The checkpoint of this epoch is there."
    note(epoch=epoch, rank=rank, size=world_size, restarts=restarts)
    while DISTURBED and restarts == 0 and epoch >= 5 and not told_to_end():
        time.sleep(0.01)
    if DISTURBED and restarts == 1 and epoch >= 10 and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
"""
)

DDP = (
    _POINTS
    + """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler
dist.init_process_group("gloo")
model = torch.nn.Linear(64, 10)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
first, path = 0, os.path.join(FOLDER, "last.pt")
if os.path.exists(path):
    last = torch.load(path)
    first = last["epoch"]
    model.load_state_dict(last["model"])
    optimizer.load_state_dict(last["optimizer"])
together = DistributedDataParallel(model)
sampler = DistributedSampler(points)
loader = DataLoader(points, batch_size=batch, sampler=sampler)
for epoch in range(first, EPOCHS):
    sampler.set_epoch(epoch)
    for inputs, labels in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(together(inputs), labels).backward()
        optimizer.step()
    if rank == 0:
        torch.save(dict(epoch=epoch + 1, model=model.state_dict(), optimizer=optimizer.state_dict()), path + ".new")
        os.replace(path + ".new", path)
    saved(epoch + 1)
accuracy = score(model)
dist.destroy_process_group()
"""
)

HOROVOD = (
    DDP.replace("import torch.distributed as dist\n", "import horovod.torch as hvd\n")
    .replace("from torch.nn.parallel import DistributedDataParallel\n", "")
    .replace('dist.init_process_group("gloo")\n', "hvd.init()\n")
    .replace(
        "together = DistributedDataParallel(model)\n",
        "hvd.broadcast_parameters(model.state_dict(), root_rank=0)\n"
        "hvd.broadcast_optimizer_state(optimizer, root_rank=0)\n"
        "together, own = model, optimizer\n"
        "optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())\n",
    )
    .replace("DistributedSampler(points)", "DistributedSampler(points, num_replicas=hvd.size(), rank=hvd.rank())")
    .replace("optimizer=optimizer.state_dict()", "optimizer=own.state_dict()")
    .replace("dist.destroy_process_group()\n", "hvd.shutdown()\n")
)
"""A loop for `horovodrun`, with no elastic one in it."""

ACCELERATE = (
    _POINTS
    + """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(64, 10)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
loader = DataLoader(points, batch_size=batch, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
first, path = 0, os.path.join(FOLDER, "last")
if os.path.exists(path):
    first = int(open(path).read())
    accelerator.load_state(os.path.join(FOLDER, f"state-{first}"))
for epoch in range(first, EPOCHS):
    for inputs, labels in loader:
        optimizer.zero_grad()
        accelerator.backward(torch.nn.functional.cross_entropy(model(inputs), labels))
        optimizer.step()
    accelerator.save_state(os.path.join(FOLDER, f"state-{epoch + 1}"))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        with open(path + ".new", "w") as file:
            file.write(str(epoch + 1))
        os.replace(path + ".new", path)
    saved(epoch + 1)
accuracy = score(accelerator.unwrap_model(model))
accelerator.end_training()
"""
)

LIGHTNING = (
    _POINTS
    + """
import logging, warnings
warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel("ERROR")
import lightning
from lightning.pytorch.callbacks import ModelCheckpoint
class Points(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 10)
    def training_step(self, batch, number):
        if number == 1:
            saved(self.current_epoch, lambda: self.trainer.received_sigterm)
        return torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)
model = Points()
trainer = lightning.Trainer(
    accelerator="cpu", strategy="ddp", devices=world_size, max_epochs=EPOCHS, logger=False, enable_progress_bar=False,
    enable_model_summary=False, callbacks=[ModelCheckpoint(os.path.join(FOLDER, "ckpt"), save_last=True)],
)
trainer.fit(model, DataLoader(points, batch_size=batch, shuffle=True), ckpt_path="last")
accuracy = score(model.layer)
"""
)

TRAINER = (
    _POINTS
    + """
os.environ["HF_HUB_OFFLINE"] = "1"
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint
class Points(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 10)
    def forward(self, inputs, labels):
        scores = self.layer(inputs)
        return {"loss": torch.nn.functional.cross_entropy(scores, labels), "logits": scores}
class Saved(TrainerCallback):
    def on_step_end(self, arguments, state, control, **more):
        steps = state.max_steps // EPOCHS
        if state.global_step % steps == 2:
            saved(state.global_step // steps)
model = Points()
out = os.path.join(FOLDER, "out")
arguments = TrainingArguments(
    output_dir=out, use_cpu=True, num_train_epochs=EPOCHS, per_device_train_batch_size=batch, report_to=[],
    save_strategy="epoch", disable_tqdm=True, logging_strategy="no", learning_rate=0.02, seed=1,
)
rows = [{"inputs": a, "labels": b} for a, b in points]
trainer = Trainer(model=model, args=arguments, train_dataset=rows, callbacks=[Saved()])
trainer.train(resume_from_checkpoint=get_last_checkpoint(out) if os.path.isdir(out) else None)
accuracy = score(model.layer)
"""
)
