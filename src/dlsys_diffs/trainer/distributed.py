"""What ranks exchange. Here all ranks live in one process, as a list of trainers."""

import torch


def average_gradients(models: list[torch.nn.Module]) -> None:
    """Give every rank the mean of all ranks' gradients."""
    for same in zip(*(model.parameters() for model in models), strict=True):
        if same[0].grad is None:
            continue
        mean = torch.stack([parameter.grad for parameter in same]).mean(dim=0)
        for parameter in same:
            parameter.grad.copy_(mean)


def average_buffers(models: list[torch.nn.Module]) -> None:
    """Give every rank the mean of all ranks' floating-point buffers."""
    for same in zip(*(model.buffers() for model in models), strict=True):
        if same[0].is_floating_point():
            mean = torch.stack(list(same)).mean(dim=0)
            for buffer in same:
                buffer.copy_(mean)


def broadcast(models: list[torch.nn.Module]) -> None:
    """Start every rank from the first one's parameters and buffers."""
    for model in models[1:]:
        model.load_state_dict(models[0].state_dict())


def combine(scores: list[dict[str, float]]) -> dict[str, float]:
    """The scores over all ranks' images; ranks may hold different numbers of them."""
    images = sum(score["images"] for score in scores)
    return {"images": images} | {
        name: sum(score[name] * score["images"] for score in scores) / images
        for name in ("loss", "accuracy")}


def agree(flags: list[bool]) -> bool:
    """Whether all ranks may make the update; one that may not stops the others."""
    return all(flags)
