r"""The element-wise formulas of the measures that are taken during training, each written once.

They act in place on tensors of any shape and know nothing of parameters, so that the same function serves a model's
parameters one by one, pieces of them, or one flat buffer that holds them all. Symbols as in the paper: g is the task's
gradient at :math:`\theta_t`, g′ an independent estimate of it, Δ the step that was taken. The path integral is that of
Zenke, Poole and Ganguli 2017 (arXiv 1703.04200), the rest of Benzing 2020 (arXiv 2006.06357).
"""

import math

from torch import Tensor


def add_to_path_(path: Tensor, gradient: Tensor, step: Tensor) -> None:
    r"""Take one step of the path integral, :math:`\tilde\omega \leftarrow \tilde\omega - g\,\Delta`.

    The minus makes a parameter that lowered the loss important.
    """
    path.addcmul_(gradient, step, value=-1.0)


def add_to_second_moment_(second_moment: Tensor, gradient: Tensor, beta2: float) -> None:
    r"""Take one step of the running average, :math:`v \leftarrow \beta_2 v + (1-\beta_2)\,g^2`."""
    second_moment.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)


def average_second_moment_(second_moment: Tensor, gradient: Tensor, rate: float | Tensor) -> None:
    r"""Take one step of an average whose rate r changes from step to step, :math:`v \leftarrow v + r\,(g^2 - v)`."""
    second_moment.lerp_(gradient.square(), rate)


def window_rate(number: int | Tensor, window: float) -> float | Tensor:
    r"""Return the rate at which an average over the last w of all steps takes in the next one, after n of them.

    .. math:: r_n = \frac{1}{1 + w\,n}

    1/r is the window, which grows as the task goes on: at its end it reaches back over a share w of it, however long
    that has become, and with w = 1 it is the mean of all steps. Shamir and Zhang 2013 (arXiv 1212.1824), whose
    polynomial-decay averaging has η = 1/w − 1.
    """
    return 1 / (1 + window * number)


def add_pairs_to_second_moment_(
    second_moment: Tensor, mean: Tensor, mean_square: Tensor, estimates: int, alpha: float, beta2: float
) -> None:
    r"""Take one step of the running average with the mean of :math:`(g_r-\alpha g_s)^2` over all pairs r ≠ s.

    With R independent estimates of the gradient each of them can be g and each other one g′. The mean over all
    ordered pairs needs no pair, only the mean :math:`\bar g` of the estimates and the mean m of their squares:

    .. math:: (1-\alpha)^2\,\bar g^2 + \left(1+\alpha^2+\frac{2\alpha}{R-1}\right)(m-\bar g^2)

    In this form both terms are positive, and rounding errors are small against the first one.
    """
    signal = mean.square()
    noise = mean_square.sub(signal).clamp_(min=0)  # a variance, which rounding might make negative
    spread = 1 + alpha**2 + 2 * alpha / (estimates - 1)
    second_moment.mul_(beta2).add_(signal, alpha=(1 - beta2) * (1 - alpha) ** 2)
    second_moment.add_(noise, alpha=(1 - beta2) * spread)


def add_batch_gradient_(mean: Tensor, spread: Tensor, gradient: Tensor, samples: int, before: int) -> None:
    r"""Take in the mean gradient g of so many more samples, after those ``before``.

    .. math:: \delta = g - \bar g, \qquad \bar g \leftarrow \bar g + \tfrac{b}{N}\,\delta, \qquad
              s \leftarrow s + \tfrac{b\,(N-b)}{N}\,\delta^2

    :math:`\bar g` is the mean over all N samples, and :math:`s = \sum_k b_k\,(g_k-\bar g)^2` over the batches. West
    1979, "Updating mean and variance estimates"; sums of several processes are put together likewise.
    """
    off = gradient - mean
    share = samples / (before + samples)
    mean.add_(off, alpha=share)
    spread.addcmul_(off, off, value=share * before)


def squares_of_single_samples(mean: Tensor, spread: Tensor, batches: int, samples: int) -> Tensor:
    r"""Return an estimate, without bias, of the mean of single samples' squared gradients.

    .. math:: \hat F = \bar g^2 + \frac{N-1}{N}\,\frac{s}{n-1}

    for n batches of N samples in all. With C the variance of one sample's gradient and :math:`\mu` its mean, of
    independent samples :math:`E[s] = (n-1)\,C` and :math:`E[\bar g^2] = \mu^2 + C/N`, so that the expectation is
    :math:`\mu^2 + C`. For batches of one sample, n = N, it is the mean of their squares itself.
    """
    if samples == 1:
        return mean.square()
    return mean.square().add_(spread, alpha=(samples - 1) / samples / (batches - 1))


def distance_score(gained: Tensor, fisher: Tensor, moved: Tensor, epsilon: float) -> Tensor:
    r"""Return :math:`\Delta L / (\tfrac12 F\,\Delta\theta^2 + \epsilon)`, what a way in predictions has gained.

    :math:`\tfrac12 F\,\Delta\theta^2` is about the KL divergence of the predictions at its two ends. Chaudhry et al.
    2018, arXiv 1801.10112.
    """
    return gained / moved.square().mul_(fisher).mul_(0.5).add_(epsilon)


def rescaled(path: Tensor, displacement: Tensor, damping: float) -> Tensor:
    r"""Return :math:`\tilde\omega / ((\theta(T)-\theta(0))^2 + \xi)`."""
    return path / displacement.square().add_(damping)


def bias_corrected(second_moment: Tensor, beta2: float, steps: int) -> Tensor:
    r"""Return :math:`v / (1-\beta_2^n)`, the average as if it had not started from 0; 0 before the first step."""
    # expm1 and log1p keep the digits of 1 − β₂ⁿ when β₂ is close to 1.
    weight = -math.expm1(steps * math.log1p(beta2 - 1)) if beta2 else 1.0
    return second_moment / weight if steps else second_moment.clone()


def unbiased_alpha(samples: int) -> float:
    r"""Return :math:`\alpha(b) = (b + \sqrt{2b-1})/(b-1)`, for which SOS estimates the empirical Fisher without bias.

    It solves :math:`(1-\alpha)^2 = (1+\alpha^2)/b`, so that :math:`E[(g - \alpha g')^2] = (1-\alpha)^2\,\mathrm{EF}`
    for gradients of b samples each. At b = 1 the square of a gradient needs no correction, and α is 0.
    """
    if samples < 1:
        raise ValueError(f"samples={samples}: a gradient estimate has at least one sample.")
    return 0.0 if samples == 1 else (samples + math.sqrt(2 * samples - 1)) / (samples - 1)


def posterior_precision(second_moment: Tensor, batch_size: int, eta: float, *, scaled: bool) -> Tensor:
    r"""Return 1/(K+R), the inverse posterior variance of the paper's appendix on the square root of the Fisher.

    .. math:: \frac{b v}{1 + b\eta\sqrt{v}} \quad\text{or, scaled,}\quad \frac{b v}{1 + \eta'\sqrt{b v}}
    """
    hessian = batch_size * second_moment
    uncertainty = eta * (hessian if scaled else second_moment).sqrt() * (1 if scaled else batch_size)
    return hessian / uncertainty.add_(1)
