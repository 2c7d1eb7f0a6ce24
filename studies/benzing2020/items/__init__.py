"""The paper's tables and figures, and some of our own, in the order of their value to a reader who has little time."""

from studies.benzing2020.item import PaperItem
from studies.benzing2020.items import accuracies
from studies.benzing2020.items.appendix import (
    before_rescaling,
    gradient_noise,
    mas_logits,
    sample_sizes,
    summed_importances,
    without_top,
)
from studies.benzing2020.items.left_open import authors_figure1, more_seeds, predictions, sample_sets, window
from studies.benzing2020.items.main_text import figure1, figure2, table1
from studies.benzing2020.items.our_own import forgetting, forms, keeping, overview, relatives

ITEMS: dict[str, PaperItem] = {
    item.name: item
    for item in (
        forgetting.ITEM,
        table1.ITEM,
        forms.ITEM,
        keeping.ITEM,
        window.PERMUTED,
        window.SPLIT,
        figure1.ITEM,
        figure2.ITEM,
        accuracies.BATCH_SIZE,
        mas_logits.ITEM,
        before_rescaling.ITEM,
        without_top.ITEM,
        summed_importances.ITEM,
        sample_sizes.ITEM,
        gradient_noise.ITEM,
        accuracies.TRAINING_FACTORS,
        accuracies.LONG_TRAINING,
        accuracies.SGD,
        predictions.ITEM,
        authors_figure1.ITEM,
        accuracies.OPEN_SEARCHES,
        sample_sets.ITEM,
        more_seeds.ITEM,
        relatives.ITEM,
        overview.ITEM,
    )
}
