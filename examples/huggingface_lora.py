"""Fine-tune a LoRA adapter on one task after another, and keep what the adapter learned first.

The model is a small Llama, built from a config and never trained itself: the adapter does all the learning. The lines
that protect it are marked.
"""

import tempfile

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import anchorhold  # added
from anchorhold.integrations.huggingface import AnchorholdCallback  # added

SYMBOLS = 10
DIGITS, LETTERS = (0, 1), (SYMBOLS, -3)  # a language: the first of its symbols, and the step from one to the next


def text(language: tuple[int, int]) -> list[dict[str, torch.Tensor]]:
    """Return a sequence from every symbol on, such as 5 6 7 8 9 0 1 2."""
    first, step = language
    rows = [torch.tensor([first + (n + step * place) % SYMBOLS for place in range(8)]) for n in range(SYMBOLS)]
    return [{"input_ids": row, "labels": row.clone()} for row in rows]


def adapted() -> PeftModel:
    """Return a frozen model with an adapter of rank 8 in every linear layer."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=2 * SYMBOLS,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        initializer_range=0.3,  # so that the frozen output layer tells tokens apart
    )
    lora = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(LlamaForCausalLM(config), lora)
    assert isinstance(model, PeftModel)
    return model


def fit(model: PeftModel, language: tuple[int, int], callbacks: list[AnchorholdCallback] | None = None) -> None:
    """Train the adapter on a language."""
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            output_dir=folder,
            num_train_epochs=30,
            per_device_train_batch_size=5,
            learning_rate=1e-2,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            seed=0,
        )
        Trainer(model, args, train_dataset=text(language), callbacks=callbacks).train()


@torch.no_grad()
def losses(model: PeftModel) -> str:
    """Return the mean loss of a token in both languages."""
    found = []
    for name, language in (("digits", DIGITS), ("letters", LETTERS)):
        ids = torch.stack([row["input_ids"] for row in text(language)])
        found.append(f"{name} {model.eval()(input_ids=ids, labels=ids).loss.item():.2f}")
    return ", ".join(found)


def main() -> None:
    """Compare two tasks with and without protection of the adapter."""
    model = adapted()
    fit(model, DIGITS)
    print("first task:  ", losses(model))
    fit(model, LETTERS)
    print("second task: ", losses(model))

    model = adapted()
    # With 1 digits lose 0.61 nats a token, with 10 they lose 0.03, and with 100 none, and letters are 0.05 worse.
    guard = anchorhold.Guard(  # added: from_scratch, since the model knows nothing before the first task
        model,
        anchorhold.Fisher(),
        exchange_rate=10.0,
        form="kronecker",
        options=anchorhold.GuardOptions(space="merged"),
        from_scratch=True,
    )
    callback = AnchorholdCallback(guard)  # added: each call of train() is a task
    fit(model, DIGITS, callbacks=[callback])  # added: the callback
    fit(model, LETTERS, callbacks=[callback])  # added: the callback
    print("and held:    ", losses(model))


if __name__ == "__main__":
    main()
