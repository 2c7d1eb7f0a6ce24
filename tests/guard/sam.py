"""Sharpness-aware minimisation as it is used: a wrapper, with step(closure) or in two steps (arXiv 2010.01412)."""

import torch
from torch.optim import Optimizer


class SAM(Optimizer):
    def __init__(self, parameters, base, rho=0.05, **settings):
        super().__init__(parameters, {"rho": rho, **settings})
        self.base_optimizer = base(self.param_groups, **settings)
        self.param_groups = self.base_optimizer.param_groups

    def _parameters(self):
        return [p for group in self.param_groups for p in group["params"] if p.grad is not None]

    @torch.no_grad()
    def first_step(self):
        norm = torch.stack([p.grad.norm() for p in self._parameters()]).norm()
        for p in self._parameters():
            self.state[p]["before"] = p.data.clone()
            p.add_(p.grad, alpha=float(self.param_groups[0]["rho"] / norm))
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for p in self._parameters():
            p.data = self.state[p]["before"]
        self.base_optimizer.step()
        self.zero_grad()

    @torch.no_grad()
    def step(self, closure=None):
        self.first_step()
        with torch.enable_grad():
            closure()
        self.second_step()
