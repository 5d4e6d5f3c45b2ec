"""GRPO (Shao et al. 2024) teaches sums of two digits to a tiny transformer, while processes die.

    python examples/grpo_arithmetic.py                  # --plain-queue: the control

    2 generators ── groups ──▶ feeder: Rollouts ── whole groups, at most max_lag old ──▶ learner
       ▲              tokens ▼ grader ▲ rewards                                             │
       └──────────────── latest("policy") ◀──────────────── publish("policy") ──────────────┘

A generator and the learner are killed once. The generator's prompt comes again; the learner goes on
from its newest cut: model and table of one moment. So each prompt is trained once, filtered, or
given up. With ``--plain-queue`` there are slots for all prompts: groups grow older and older.
"""

from __future__ import annotations

import json
import multiprocessing
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
import typer
from torch import Tensor, nn

from async_loader import AsyncDataLoader, Field, Ragged, Rollouts, connect
from async_loader.rollouts import padded

torch.set_num_threads(1)
END, LONGEST = 10, 3  # 4, 8 is answered by 2, 1, END: units first
GROUPS, SIZE, SAVE_EVERY, WAIT_S = 8, 16, 20, 60.0
WARM_UP, RATE, CLIP, ENTROPY = 60, 1e-3, 0.2, 0.01
SCHEMA = {
    "tokens": Ragged("int32"), "logprob": Ragged("float32"), "version": Ragged("int32"),
    "reward": "float32",  # later, by the grader
    "asked": Field((2,), "int32", scope="group"),
}  # fmt: skip


class Policy(nn.Module):
    """Sums and the beginnings of their answers to the log-probabilities of each next token."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(11, 64), nn.Embedding(2 + LONGEST, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 256, 0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 11)

    def forward(self, asked: Tensor, answer: Tensor) -> Tensor:
        tokens = torch.cat([asked, answer], 1)
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        hidden = self.token(tokens) + self.place.weight[: tokens.shape[1]]
        return self.head(self.layers(hidden, mask, is_causal=True))[:, 1:].log_softmax(-1)

    @torch.inference_mode()
    def answer(self, asked: Tensor, greedy: bool = False) -> list[tuple[Any, Any]]:
        """Return the tokens of each answer, up to END, and their log-probabilities."""
        tokens, logprobs = asked[:, :0], []
        for _ in range(LONGEST):
            last = self(asked, tokens)[:, -1]
            new = last.argmax(-1, True) if greedy else torch.multinomial(last.exp(), 1)
            tokens, logprobs = torch.cat([tokens, new], 1), [*logprobs, last.gather(1, new)]
        lengths = [[*one, END].index(END) + 1 for one in tokens.tolist()]
        pairs = zip(tokens.numpy(), torch.cat(logprobs, 1).numpy(), lengths, strict=True)
        return [(one[:n], logprob[:n]) for one, logprob, n in pairs]


def right(asked: Any) -> list[int]:
    return [*map(int, str(int(sum(asked)))[::-1]), END]


def grade(tokens: Any, asked: Any) -> float:
    known = right(asked)
    same = sum(int(one) == other for one, other in zip(tokens, known, strict=False))
    return same / max(len(tokens), len(known))


def exact(net: Policy) -> float:
    asked = torch.cartesian_prod(torch.arange(10), torch.arange(10))
    said = zip(net.answer(asked, greedy=True), asked, strict=True)
    return sum(grade(tokens, one) == 1 for (tokens, _), one in said) / 100


def generate(address: str, prompts: list[Any], seed: int) -> None:
    torch.manual_seed(seed)
    net = Policy().eval()
    with connect(address, timeout_s=WAIT_S) as client:
        for group in client.table("sums").groups(prompts):  # waits for a slot
            weights = client.latest("policy", timeout_s=WAIT_S, as_torch=True)
            net.load_state_dict(weights.tensors)
            for one, logprob in net.answer(torch.tensor([group.prompt] * SIZE)):
                group.append(tokens=one, logprob=logprob, version=[weights.version] * len(one))
            group.update(asked=group.prompt)


def judge(address: str) -> None:
    with connect(address, timeout_s=WAIT_S) as client:
        table = client.table("sums")
        members = table.members(needs=["tokens"], give=["reward"], ahead=SIZE)
        for group in zip(*[members] * SIZE, strict=False):  # whole groups
            rewards = [grade(one["tokens"], one["asked"]) for one in group]
            table.update([one.index for one in group], reward=rewards)


def loss_of(net: Policy, batch: dict[str, Tensor]) -> Tensor:
    """Return the clipped objective with advantages within groups (equation 3), and entropy."""
    tokens, rewards = batch["tokens"].long(), batch["reward"].view(-1, SIZE)
    gain = ((rewards - rewards.mean(1, True)) / (rewards.std(1, keepdim=True) + 1e-4)).view(-1, 1)
    logprobs = net(batch["asked"].long()[batch["group"]], tokens[:, :-1])
    ratio = (logprobs.gather(2, tokens[..., None])[..., 0] - batch["logprob"]).exp()
    gains = torch.min(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain)
    there = torch.arange(tokens.shape[1]) < batch["length"][:, None]
    return (ENTROPY * (logprobs.exp() * logprobs).sum(-1) - gains)[there].mean()


def learn(address: str, folder: Path) -> None:
    net, optimizer, cut = torch.load(folder / "model.pt", weights_only=False)
    with connect(address, timeout_s=WAIT_S) as client:
        table = client.table("sums")
        table.load(folder / f"table-{cut['step']}")
        client.publish("policy", net.state_dict(), cut["step"])
        source = table.source(needs=["reward"], keep=lambda group: group["reward"].std() > 0)
        begun = cut.setdefault("begun", time.monotonic())
        form = partial(padded, schema=SCHEMA)
        with AsyncDataLoader(source, transform=form, timeout_s=WAIT_S) as loader:
            for step, batch in enumerate(loader, cut["step"] + 1):
                optimizer.zero_grad()
                loss_of(net, batch).backward()
                optimizer.step()
                client.publish("policy", net.state_dict(), step)
                cut["trained"] += batch["prompt_index"].tolist()
                if step % 10 == 0:
                    share, lag = exact(net), int(batch["lag"].max())
                    cut["points"].append((round(time.monotonic() - begun, 2), step, share, lag))
                    typer.echo(f"update {step:3}: {share:.2f} exact, {lag} versions old at most")
                if step % SAVE_EVERY == 0:  # a kill between the two leaves the cut before
                    cut["step"] = step
                    table.save(folder / f"table-{step}")
                    torch.save((net, optimizer, cut), folder / "new.pt")
                    (folder / "new.pt").replace(folder / "model.pt")
        (folder / "end.json").write_text(json.dumps(cut))


def main(
    updates: int = 400, max_lag: int = 1, seed: int = 0, plain_queue: bool = False,
    kill: bool = True, out: Path | None = None,
) -> None:  # fmt: skip
    """Draw GROUPS prompts for each update; those that are filtered make fewer updates of it."""
    torch.manual_seed(seed)
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["torch"])
    prompts = torch.randint(10, (updates * GROUPS, 2)).tolist()
    most = updates if plain_queue else max_lag  # slots for all prompts: nothing waits
    table = Rollouts(SCHEMA, batch=GROUPS, max_lag=most, size=SIZE, deadline_s=WAIT_S)
    with tempfile.TemporaryDirectory() as at, connect("embedded", tables={"sums": table}) as client:
        net, folder, workers = Policy(), Path(at), []
        optimizer = torch.optim.AdamW(net.parameters(), lr=RATE)
        for _ in range(WARM_UP):  # supervised: then it knows a few sums
            some = torch.randint(10, (128, 2))
            known = torch.tensor([[*right(one), END][:LONGEST] for one in some])
            optimizer.zero_grad()
            nn.functional.nll_loss(net(some, known[:, :-1]).mT, known).backward()
            optimizer.step()
        torch.save((net, optimizer, {"step": 0, "trained": [], "points": []}), folder / "model.pt")
        client.table("sums").save(folder / "table-0")

        def start(work: Any, *given: Any) -> None:
            one = processes.Process(target=work, args=(client.address, *given), daemon=True)
            one.start()
            workers.append(one)

        start(learn, folder)
        start(generate, prompts, seed)
        start(generate, prompts, seed + 100)
        start(judge)
        if kill:
            client.latest("policy", timeout_s=WAIT_S)
            client.latest("policy", updates // 8, timeout_s=WAIT_S)
            workers[1].kill()
            start(generate, prompts, seed + 200)
            client.latest("policy", updates // 5, timeout_s=WAIT_S)
            workers[0].kill()
            start(learn, folder)
        for process in workers:
            process.join()
        cut, stats = json.loads((folder / "end.json").read_text()), client.table("sums").stats()
    filtered = stats.ended.pop("filtered", 0)
    ways = f"{stats.trained} trained + {filtered} filtered + {sum(stats.ended.values())} given up"
    typer.echo(f"{stats.drawn} drawn = {ways}")
    assert stats.drawn == len(prompts) == stats.trained + filtered + sum(stats.ended.values())
    assert len(set(cut["trained"])) == len(cut["trained"]) == stats.trained  # each once
    if out is not None:
        out.write_text(json.dumps(cut["points"]))


if __name__ == "__main__":
    typer.run(main)
