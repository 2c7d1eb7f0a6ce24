"""Fine-tune a language model with Hugging Face's Trainer, and keep what it knew.

A small GPT-2, built from a config, learns to go up in steps of one through some digits; that stands for pretraining. It
is then fine-tuned to go down in steps of three through some letters, with and without protection. The lines that
protect it are marked.
"""

import copy
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import anchorhold  # added
from anchorhold.integrations.huggingface import AnchorholdCallback  # added

SYMBOLS = 10
DIGITS, LETTERS = (0, 1), (SYMBOLS, -3)  # a language: the first of its symbols, and the step from one to the next


def text(language: tuple[int, int]) -> list[dict[str, torch.Tensor]]:
    """Return a sequence from every symbol on, such as 5 6 7 8 9 0 1 2."""
    first, step = language
    rows = [torch.tensor([first + (n + step * place) % SYMBOLS for place in range(8)]) for n in range(SYMBOLS)]
    return [{"input_ids": row, "labels": row.clone()} for row in rows]


def fit(model: GPT2LMHeadModel, language: tuple[int, int], callbacks: list[AnchorholdCallback] | None = None) -> None:
    """Train a model on a language."""
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            output_dir=folder,
            num_train_epochs=60,
            per_device_train_batch_size=5,
            learning_rate=3e-3,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            seed=0,
        )
        Trainer(model, args, train_dataset=text(language), callbacks=callbacks).train()


@torch.no_grad()
def losses(model: GPT2LMHeadModel) -> str:
    """Return the mean loss of a token in both languages."""
    tokens = {"digits": DIGITS, "letters": LETTERS}
    found = []
    for name, language in tokens.items():
        ids = torch.stack([row["input_ids"] for row in text(language)])
        found.append(f"{name} {model.eval()(input_ids=ids, labels=ids).loss.item():.2f}")
    return ", ".join(found)


def main() -> None:
    """Compare fine-tuning with and without protection."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=2 * SYMBOLS, n_positions=8, n_embd=32, n_layer=2, n_head=2))
    fit(model, DIGITS)
    print("pretrained:", losses(model))
    plain = copy.deepcopy(model)
    fit(plain, LETTERS)
    print("fine-tuned:", losses(plain))

    # The model is certain of its few digits, so that a diagonal needs more than 1: docs/guides/how-strong.md
    # With 10, 100 and 1000 digits end at 0.89, 0.19 and 0.10 nats a token, and letters at 0.15, 0.31 and 1.94.
    guard = anchorhold.Guard(model, anchorhold.Fisher(), exchange_rate=100.0)  # added
    proxy = torch.stack([row["input_ids"] for row in text(DIGITS)])  # added: data that stands for what the model knows
    guard.consolidate([{"input_ids": proxy}])  # added
    callback = AnchorholdCallback(
        guard, consolidate_at_end=False
    )  # added: there is no third task to protect letters from
    fit(model, LETTERS, callbacks=[callback])  # added: the callback
    print("and held:  ", losses(model))


if __name__ == "__main__":
    main()
