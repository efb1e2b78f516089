"""Texts with a Hugging Face Trainer.

Questions to a bank, written by rules, about four subjects; 30% of the labels become the next subject. `SieveTrainer` is
a Trainer whose loss leaves out samples that look wrong. The small BERT is made from a configuration, so that nothing is
downloaded; use `AutoModelForSequenceClassification.from_pretrained` and your tokenizer instead. Needs `pip install
'.[huggingface]'` in a clone.
"""

import itertools
import random
import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

import labelsieve
from labelsieve.integrations.huggingface import SieveTrainer

SUBJECTS = {
    "arrival": ("when will {} be here", "where is {}", "i am waiting for {}", "how long does {} take to arrive"),
    "lost": ("i lost {}", "{} was stolen", "i cannot find {}", "somebody took {} from me"),
    "broken": ("{} does not work", "the machine refuses {}", "{} is broken", "nothing happens with {}"),
    "fee": ("what does {} cost", "why was i charged for {}", "is {} free", "how much do i pay for {}"),
}
THINGS = ("my card", "the new card", "my second card", "a spare card", "my transfer", "the letter", "my phone")
GREETINGS = ("hello", "please help", "good morning", "hi there", "quick question", "sorry to ask again")


def questions() -> list[tuple[str, int]]:
    """Return all sentences of the rules with the number of their subject, in random order."""
    texts = [
        (f"{greeting} {sentence.format(thing)}", number)
        for number, sentences in enumerate(SUBJECTS.values())
        for greeting, sentence, thing in itertools.product(GREETINGS, sentences, THINGS)
    ]
    random.Random(0).shuffle(texts)
    return texts


def main() -> None:
    texts = questions()
    words = {word: number for number, word in enumerate(sorted({w for text, _ in texts for w in text.split()}), 1)}
    tokens = [torch.tensor([words[word] for word in text.split()] + [0] * 16)[:16] for text, _ in texts]
    subjects = [number for _, number in texts]
    data = [{"input_ids": row, "labels": number} for row, number in zip(tokens, subjects, strict=True)]
    train, test = data[:500], data[500:]
    wrong = random.Random(1)
    train = [{**sample, "labels": (sample["labels"] + (wrong.random() < 0.3)) % 4} for sample in train]

    print(f"accuracy on {len(test)} test questions with right labels:")
    for method in ("cross-entropy", "mentornet-prop"):
        set_seed(0)
        small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
        model = BertForSequenceClassification(BertConfig(vocab_size=len(words) + 1, num_labels=4, **small))
        with tempfile.TemporaryDirectory() as folder:
            quiet = {"report_to": [], "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True}
            length = {"num_train_epochs": 20, "per_device_train_batch_size": 50, "learning_rate": 1e-3}
            args = TrainingArguments(folder, **length, **quiet)
            parts = {"model": model, "args": args, "train_dataset": train, "eval_dataset": test}
            if method == "cross-entropy":
                trainer = Trainer(**parts)
            else:
                loss_fn = labelsieve.SieveLoss(method, num_classes=4, noise_rate=0.3, warmup=10, align=True, floor=0.5)
                trainer = SieveTrainer(**parts, loss_fn=loss_fn)
            trainer.train()
            predicted = trainer.predict(test).predictions.argmax(1)
        right = sum(int(p) == sample["labels"] for p, sample in zip(predicted, test, strict=True))
        print(f"  {method:16}{right / len(test):.1%}")


if __name__ == "__main__":
    main()
