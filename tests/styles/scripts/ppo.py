"""PPO on a tiny grid: a rollout of one's own, two epochs of minibatches, actor and critic."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

ap = argparse.ArgumentParser()
ap.add_argument("--num-envs", type=int, default=16)
ap.add_argument("--horizon", type=int, default=16)
ap.add_argument("--minibatch", type=int, default=64)
ap.add_argument("--updates", type=int, default=6)
a = ap.parse_args()
world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
if world > 1:
    dist.init_process_group("gloo")


class Grid:
    def __init__(self, n):
        self.n, self.at = n, torch.randint(8, (n,))

    def observe(self):
        return nn.functional.one_hot(self.at, 8).float()

    def step(self, action):
        self.at = (self.at + action * 2 - 1).clamp(0, 7)
        reward = (self.at == 7).float()
        self.at = torch.where(self.at == 7, torch.randint(7, (self.n,)), self.at)
        return reward


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 64), nn.Tanh())
        self.pi, self.v = nn.Linear(64, 2), nn.Linear(64, 1)

    def forward(self, x):
        h = self.body(x)
        return self.pi(h), self.v(h).squeeze(-1)


torch.manual_seed(1)
policy = ActorCritic()
net = DDP(policy) if world > 1 else policy
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
torch.manual_seed(100 + rank)
env = Grid(a.num_envs)
for update in range(a.updates):
    obs, acts, logps, rewards, values = [], [], [], [], []
    with torch.no_grad():
        for _ in range(a.horizon):
            o = env.observe()
            logits, value = policy(o)
            d = torch.distributions.Categorical(logits=logits)
            act = d.sample()
            obs.append(o), acts.append(act), logps.append(d.log_prob(act)), values.append(value)
            rewards.append(env.step(act))
        ret, returns = policy(env.observe())[1], []
        for reward in reversed(rewards):
            ret = reward + 0.95 * ret
            returns.insert(0, ret)
    o, ac, lp, rt = torch.cat(obs), torch.cat(acts), torch.cat(logps), torch.cat(returns)
    adv = rt - torch.cat(values)
    adv = (adv - adv.mean()) / (adv.std() + 1e-8)
    for _ in range(2):
        for index in torch.randperm(len(o)).split(a.minibatch):
            logits, value = net(o[index])
            d = torch.distributions.Categorical(logits=logits)
            ratio = (d.log_prob(ac[index]) - lp[index]).exp()
            clipped = torch.minimum(ratio * adv[index], ratio.clamp(0.8, 1.2) * adv[index])
            loss = (
                -clipped.mean()
                + 0.5 * (value - rt[index]).pow(2).mean()
                - 0.01 * d.entropy().mean()
            )
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
    if rank == 0:
        print(f"update {update} mean_reward {torch.cat(rewards).mean():.3f} loss {loss.item():.4f}")
