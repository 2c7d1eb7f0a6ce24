"""The items, each declared in a file of its own; in the order of their value to a reader who has little time."""

from holdfast.paper.item import PaperItem
from holdfast.paper.items import (
    batch_size,
    before_rescaling,
    figure1,
    figure2,
    gradient_noise,
    long_training,
    mas_logits,
    sample_sizes,
    sgd,
    summed_importances,
    table1,
    without_top,
)

ITEMS: dict[str, PaperItem] = {
    module.ITEM.name: module.ITEM
    for module in (
        table1,
        figure1,
        figure2,
        batch_size,
        mas_logits,
        before_rescaling,
        without_top,
        summed_importances,
        sample_sizes,
        gradient_noise,
        long_training,
        sgd,
    )
}
