"""Slow, obvious versions of the maths, written without the package."""

import warnings

import torch
from torch.func import functional_call


def influence_through_weights(model, loss_fn, batch, goal, step, steps=1, names=None):
    """The derivative of the goal's mean loss for the example weights E, through every update.

    Unrolls ``steps`` updates with ``create_graph`` and differentiates for E. ``step(theta, grads,
    state)`` is one update, state None at first. Every forward pass starts from the random state
    and the buffers of this moment. Shape (n,).
    """
    rng = torch.get_rng_state()
    x, y = batch
    params = dict(model.named_parameters())
    theta = {k: p for k, p in params.items() if p.requires_grad and (names is None or k in names)}
    theta = {k: p.detach().clone().requires_grad_() for k, p in theta.items()}
    fixed = {k: p.detach() for k, p in params.items() if k not in theta}
    perturbation = torch.zeros(len(y), dtype=next(iter(theta.values())).dtype, requires_grad=True)

    def losses(at, inputs, targets):
        torch.set_rng_state(rng)
        buffers = {k: b.clone() for k, b in model.named_buffers()}
        args = inputs if isinstance(inputs, tuple) else (inputs,)
        args, named = ((), inputs) if isinstance(inputs, dict) else (args, {})
        out = functional_call(model, {**fixed, **at, **buffers}, args, named)
        return loss_fn(getattr(out, "logits", out), targets)

    state = None
    for _ in range(steps):
        each = losses(theta, x, y)
        objective = each.mean() + (perturbation * each).sum()
        grads = torch.autograd.grad(
            objective, list(theta.values()), create_graph=True, allow_unused=True
        )
        theta, state = step(theta, dict(zip(theta, grads)), state)
    result = torch.autograd.grad(losses(theta, *goal).mean(), perturbation)[0]
    torch.set_rng_state(rng)
    return result


def sgd(lr, momentum=0.0, dampening=0.0, nesterov=False, weight_decay=0.0, buffers=None):
    """The update of torch.optim.SGD, from its documentation, for `influence_through_weights`."""

    def step(theta, grads, state):
        state = dict(buffers or {}) if state is None else state
        moved, kept = {}, {}
        for k, t in theta.items():
            if grads[k] is None:
                moved[k] = t
                continue
            g = grads[k] + weight_decay * t
            if momentum:
                b = momentum * state[k] + (1 - dampening) * g if k in state else g
                kept[k] = b
                g = g + momentum * b if nesterov else b
            moved[k] = t - lr * g
        return moved, kept

    return step


def torch_step(optimizer, model):
    """The update of a torch optimizer by its own differentiable variant, from its state as it is,
    for `influence_through_weights`. With float64 as the default type it counts steps in it."""
    named = dict(model.named_parameters())
    names = {id(p): k for k, p in named.items()}
    own = [([names[id(p)] for p in g["params"]], dict(g)) for g in optimizer.param_groups]
    began = {k: optimizer.state.get(p, {}) for k, p in named.items()}

    def copied(entry):
        return {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in entry.items()}

    def step(theta, grads, state):
        state = began if state is None else state
        moved = {k: t.clone() for k, t in theta.items()}
        groups = []
        for keys, group in own:
            params = [moved[k] for k in keys if k in moved and grads[k] is not None]
            groups.append({**group, "params": params, "differentiable": True, "foreach": None})
        twin = type(optimizer)(groups, differentiable=True)
        with warnings.catch_warnings():  # it sets the gradients of tensors that are no leaves
            warnings.simplefilter("ignore")
            for k, p in moved.items():
                p.grad = grads[k]
                if state[k]:
                    twin.state[p] = copied(state[k])
            twin.step()
        return moved, {k: copied(twin.state.get(p, {})) for k, p in moved.items()}

    return step
