"""The KL to the last posterior as a hold, in loops of one's own."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Normal, kl_divergence

import anchorhold
from anchorhold.errors import AnchorholdWarning, BatchError, ConfigurationError, NotFiniteError
from tests import helpers

X, Y = torch.randn(12, 4, generator=torch.Generator().manual_seed(5)), torch.arange(12) % 3


def network():
    return anchorhold.variational.mean_field(helpers.network(4, 6, 3), log_variance=-3.0)


def guarded(model, **settings):
    hold = anchorhold.Variational(**{"samples": 20, **settings})
    guard = anchorhold.Guard(model, "fine-tune", holds=[hold], from_scratch=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    return guard, optimizer, hold


def step(model, optimizer, seed):
    torch.manual_seed(seed)
    optimizer.zero_grad()
    F.cross_entropy(model(X.double()), Y).backward()
    optimizer.step()


def test_steps_are_those_of_the_bound_written_out():
    """Two tasks of SGD by autograd of N·E[−log p] + KL, over N; the KL is torch's."""
    model, reference = network(), network()
    guard, optimizer, hold = guarded(model)
    plain = torch.optim.SGD(reference.parameters(), lr=0.1)
    prior = {name: torch.zeros_like(p) for name, p in reference.named_parameters()}  # variance 1
    for task, samples in enumerate((20, 50)):
        hold.samples = samples
        for i in range(4):
            step(model, optimizer, 10 * task + i)
            torch.manual_seed(10 * task + i)
            plain.zero_grad()
            loss = F.cross_entropy(reference(X.double()), Y)
            now = dict(reference.named_parameters())
            for name in now:
                if not name.endswith("_log_variance"):
                    q, p = (Normal(these[name], (0.5 * these[f"{name}_log_variance"]).exp()) for these in (now, prior))
                    loss = loss + kl_divergence(q, p).sum() / samples
            loss.backward()
            plain.step()
        guard.consolidate()
        prior = {name: p.detach().clone() for name, p in reference.named_parameters()}
    for own, other in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-10, atol=1e-12)


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 5)
        self.heads = nn.ModuleList(nn.Linear(5, 2) for _ in range(3))

    def forward(self, x, head):
        return self.heads[head](self.body(x))


def test_a_head_that_is_not_used_is_left_alone_and_a_new_one_begins_at_the_first_prior():
    torch.manual_seed(0)
    model = anchorhold.variational.mean_field(Heads())
    guard, optimizer, hold = guarded(model)
    last = [p.detach().clone() for p in model.heads[2].parameters()]
    for task in range(2):
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(X, task), Y % 2).backward()
            optimizer.step()
        guard.consolidate()
    assert all(torch.equal(a, b) for a, b in zip(last, model.heads[2].parameters(), strict=True))
    assert "heads.1.weight" in hold.prior and "heads.2.weight" not in hold.prior
    model.body = nn.Linear(4, 5)  # a layer that nobody has changed
    other, optimizer, _ = guarded(model)
    F.cross_entropy(model(X, 0), Y % 2).backward()
    optimizer.step()
    with pytest.warns(AnchorholdWarning, match="trained as numbers"):
        other.consolidate()


def test_a_saved_guard_goes_on_exactly(tmp_path):
    whole, stopped = network(), network()
    guard, optimizer, _ = guarded(whole)
    other, early, _ = guarded(stopped)
    for task in range(2):
        for i in range(3):
            step(whole, optimizer, i)
            if task == 0 or i == 0:
                step(stopped, early, i)
        guard.consolidate()
        if task == 0:
            other.consolidate()
    other.save(tmp_path / "guard.safetensors")
    again = network()
    again.load_state_dict(stopped.state_dict())
    resumed, late, hold = guarded(again)
    resumed.load(tmp_path / "guard.safetensors")
    for i in (1, 2):
        step(again, late, i)
    resumed.consolidate()
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), again.parameters(), strict=True))
    assert len(hold.prior) == 4


def test_a_coreset_changes_what_is_predicted_and_not_the_model():
    model = network()
    before = [p.detach().clone() for p in model.parameters()]
    batches = [(X[:6].double(), Y[:6]), (X[6:].double(), Y[6:])]
    weights = anchorhold.variational.refined(model.eval(), batches, epochs=60, learning_rate=0.05)
    assert not model.training
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    losses = [
        F.nll_loss(anchorhold.variational.predictive(model, X.double(), samples=20, weights=these), Y)
        for these in (None, weights)
    ]
    assert losses[1] < losses[0] - 0.05
    stays = anchorhold.variational.refined(model, batches, epochs=0)
    assert all(torch.equal(stays[name], p) for name, p in model.named_parameters())


def test_a_coreset_leaves_the_statistics_of_batch_norms_alone():
    torch.manual_seed(0)
    model = anchorhold.variational.mean_field(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)))
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    anchorhold.variational.refined(model, [(X + 5, Y)], epochs=3)
    assert before and all(torch.equal(before[name], buffer) for name, buffer in model.named_buffers())


def test_a_coreset_holds_means_whose_variances_are_frozen_and_variances_whose_means_are():
    """Against a loss that pulls everything outwards, by far less than the KL pulls back."""
    for frozen, moved in (("weight_log_variance", "weight"), ("weight", "weight_log_variance")):
        model = network()
        getattr(model[0], frozen).requires_grad_(False)
        found = anchorhold.variational.refined(
            model,
            [(X.double(), Y)],
            epochs=60,
            learning_rate=0.05,
            loss=lambda outputs, _: -1e-4 * outputs.square().mean(),
        )
        assert f"0.{frozen}" not in found
        assert 0 < (found[f"0.{moved}"] - getattr(model[0], moved)).abs().max() < 0.5


def test_a_coreset_that_is_near_to_all_samples():
    x = torch.randn(30, 2, 3, generator=torch.Generator().manual_seed(2))
    chosen = [4]
    while len(chosen) < 7:  # by its definition: the one whose nearest chosen one is farthest away
        nearest = [min(float((x[i] - x[j]).norm()) for j in chosen) for i in range(30)]
        chosen.append(max(range(30), key=nearest.__getitem__))
    for size in (1.0, 1e20, 1e-25, 1e-38):  # whose squares single precision does not have
        assert anchorhold.variational.k_center(x * size, 7, first=4).tolist() == chosen
    for none in (x.to(torch.complex64), x[:0], x[:, :0]):
        with pytest.raises(BatchError, match=r"complex64; expected finite real|there are no numbers"):
            anchorhold.variational.k_center(none, 1)
    assert sorted(anchorhold.variational.k_center(torch.zeros(5, 2), 5).tolist()) == [
        0,
        1,
        2,
        3,
        4,
    ]  # of equal ones, each once
    with pytest.raises(ConfigurationError, match="count=31 and first=0 of 30 samples"):
        anchorhold.variational.k_center(x, 31)
    with pytest.raises(BatchError, match="expected finite real numbers"):
        anchorhold.variational.k_center(x * torch.nan, 2)


def test_what_is_no_coreset_is_refused():
    model, x = network(), X.double()
    for given, error, message in (
        ([()], BatchError, "Batch 0 of the coreset is a tuple of 0"),
        ([(x, Y), x], BatchError, "Batch 1 of the coreset is a Tensor"),
        ([(x, Y[0])], BatchError, r"targets of shape \(\); expected a tensor with one for each sample"),
        ([], BatchError, "no samples"),
        (None, BatchError, "given None"),
        ([(x * torch.nan, Y)], NotFiniteError, "Batch 0 of the coreset has a NaN"),
    ):
        with pytest.raises(error, match=message):
            anchorhold.variational.refined(model, given)
    with pytest.raises(ConfigurationError, match=r"loss=3: expected a function loss\(outputs, targets\)"):
        anchorhold.variational.refined(model, [(x, Y)], loss=3)
    with pytest.raises(ConfigurationError, match="without distributions"):
        anchorhold.variational.refined(nn.Linear(4, 3).double(), [(x, Y)])
    with pytest.raises(ConfigurationError, match="all frozen"):
        anchorhold.variational.refined(model.requires_grad_(False), [(x, Y)])


def test_a_head_whose_gradient_is_zero_is_not_used():
    torch.manual_seed(0)
    model = anchorhold.variational.mean_field(Heads())
    guard, optimizer, hold = guarded(model)
    F.cross_entropy(model(X, 1), Y % 2).backward()  # a look that no step follows
    before = [p.detach().clone() for p in model.heads[1].parameters()]
    for _ in range(3):
        optimizer.zero_grad(set_to_none=False)
        F.cross_entropy(model(X, 0), Y % 2).backward()
        optimizer.step()
    guard.consolidate()
    assert all(torch.equal(a, b) for a, b in zip(before, model.heads[1].parameters(), strict=True))
    assert "heads.0.weight" in hold.prior and "heads.1.weight" not in hold.prior


def test_what_would_train_something_else_is_refused_at_the_first_step():
    plain = nn.Linear(4, 3).double()
    guard, optimizer, _ = guarded(plain)
    with pytest.raises(ConfigurationError, match="numbers, not distributions"):
        step(plain, optimizer, 0)
    model = network()
    guard, optimizer, _ = guarded(model, samples=None)
    with pytest.raises(ConfigurationError, match="their number has to be known"):
        step(model, optimizer, 0)
    model = network().eval()
    guard, optimizer, _ = guarded(model)
    with pytest.raises(ConfigurationError, match="without being drawn"):
        step(model, optimizer, 0)
    model = nn.Linear(4, 3).double()
    early = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = anchorhold.Guard(
        anchorhold.variational.mean_field(model), "fine-tune", holds=[anchorhold.Variational(5)], from_scratch=True
    )
    with pytest.warns(AnchorholdWarning, match="No attached optimizer trains 'weight_log_variance'"):
        guard.attach(early)
    with pytest.raises(ConfigurationError, match="made before mean_field"):
        step(model, early, 0)


class TestNarrowWeights:
    RESTART = -6.1  # which is no number of 32 bits

    def learned(self, model, **settings):
        guard, optimizer, hold = guarded(model, restart=self.RESTART, **settings)
        hold.narrow(model)  # before the first task, whose variances stay as they are
        step(model, optimizer, 0)
        guard.consolidate()
        return guard, optimizer, hold

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
    def test_a_task_begins_with_them_and_ends_with_its_own(self, dtype):
        model = network().to(dtype)
        guard, optimizer, hold = guarded(model, restart=self.RESTART)

        def learn(seed):
            torch.manual_seed(seed)
            optimizer.zero_grad()
            F.cross_entropy(model(X.to(dtype)), Y).backward()
            optimizer.step()

        learn(0)
        assert float(model[0].weight_log_variance.detach().float().mean()) == pytest.approx(-3, abs=0.1)
        guard.consolidate()
        prior = {name: q.log_variance.clone() for name, q in hold.prior.items()}
        hold.narrow(model)
        wanted = torch.full_like(model[0].weight_log_variance, self.RESTART)
        assert torch.equal(model[0].weight_log_variance, wanted)
        learn(1)
        learn(2)
        assert all(torch.equal(q.log_variance, prior[name]) for name, q in hold.prior.items())

    def test_a_task_that_begins_without_is_refused_and_nothing_is_moved(self):
        model = network()
        _, optimizer, hold = self.learned(model)
        before = [p.detach().clone() for p in model.parameters()]
        with pytest.raises(ConfigurationError, match=r"restart=-6\.1\).*expected hold\.narrow\(model\) after each"):
            step(model, optimizer, 1)
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
        hold.narrow(model)
        step(model, optimizer, 1)
        step(model, optimizer, 2)

    def test_a_new_head_that_is_narrow_by_itself_does_not_stand_for_what_was_learned(self):
        torch.manual_seed(0)
        model = anchorhold.variational.mean_field(Heads(), log_variance=self.RESTART)
        guard, optimizer, hold = guarded(model, restart=self.RESTART)
        for head in (0, 1):
            optimizer.zero_grad()
            F.cross_entropy(model(X, head), Y % 2).backward()
            if head:
                with pytest.raises(ConfigurationError, match=r"expected hold\.narrow"):
                    optimizer.step()
                hold.narrow(model.body, model.heads[head])
            optimizer.step()
            guard.consolidate()

    def test_a_closure_is_asked_again_where_its_step_has_led(self):
        model = network()
        guard, _, hold = self.learned(model)
        guard.detach()
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
        guard.attach(optimizer)
        hold.narrow(model)

        def closure():
            optimizer.zero_grad()
            loss = F.cross_entropy(model(X.double()), Y)
            loss.backward()
            return loss

        optimizer.step(closure)

    def test_a_guard_that_goes_on_within_a_task_asks_for_nothing(self):
        model, other = network(), network()
        guard, optimizer, hold = self.learned(model)
        hold.narrow(model)
        step(model, optimizer, 1)
        resumed, again, _ = guarded(other, restart=self.RESTART)
        other.load_state_dict(model.state_dict())
        resumed.load_state_dict(guard.state_dict())
        for trained, by in ((model, optimizer), (other, again)):
            step(trained, by, 2)
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            (("body",), r"was given a str; expected the model, or parts of it"),
            ((None,), "was given a NoneType"),
            ((), "was given 0 parts of a model, and none has a distribution"),
            ((nn.Linear(2, 2), nn.ReLU()), "was given 2 parts of a model, and none has a distribution"),
        ],
    )
    @pytest.mark.parametrize("restart", [-6.0, None])
    def test_what_is_no_part_of_a_model_is_refused(self, given, message, restart):
        with pytest.raises(ConfigurationError, match=message):
            anchorhold.Variational(10, restart=restart).narrow(*given)

    def test_without_a_restart_there_is_nothing_to_narrow_to(self):
        with pytest.raises(ConfigurationError, match=r"without restart=.*expected Variational\(restart=-6\.0\)"):
            anchorhold.Variational(5).narrow(network())

    def test_a_part_without_distributions_may_stand_beside_one_that_has_some(self):
        hold, model = anchorhold.Variational(10, restart=-6.0), network()
        hold.narrow(nn.Linear(2, 2), model)


def test_a_task_that_begins_narrow_is_not_told_of():
    model = network()
    guard, optimizer, hold = guarded(model, restart=-6.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for task in range(3):
            hold.narrow(model)
            step(model, optimizer, task)
            step(model, optimizer, 10 + task)
            guard.consolidate()
    assert hold.prior.keys() == {"0.weight", "0.bias", "2.weight", "2.bias"}


def test_a_model_that_is_consolidated_before_it_is_trained_is_told_to_have_no_posterior():
    guard, _, hold = guarded(network())
    with pytest.warns(AnchorholdWarning, match="consolidated before any step.*around 0, and not around the weights"):
        guard.consolidate()
    assert not hold.prior
