"""The stages: number, file stem, title and promise. The one home of their names and number."""

from typing import NamedTuple


class Stage(NamedTuple):
    number: int
    slug: str
    title: str
    promise: str

    @property
    def stem(self) -> str:
        """File stem shared by lesson, notebook, worksheet and solution: ``01_activations``."""
        return f"{self.number:02d}_{self.slug}"


STAGES = (
    Stage(1, "activations", "Perceptron, MLP and activations",
          "What a layer computes, and the five ways a forward pass misleads you."),
    Stage(2, "backpropagation", "Backpropagation and autograd",
          "Where gradients come from, what they cost, and how they go missing."),
    Stage(3, "losses", "Losses and gradient pathologies",
          "A falling loss can still teach the wrong thing, or nothing."),
    Stage(4, "optimizers", "Optimizers and learning-rate schedules",
          "One update rule at a time, checked against its formula."),
    Stage(5, "normalization", "Normalization, dropout and initialization",
          "The numbers a network keeps besides its weights."),
    Stage(6, "augmentation", "Augmentation, Mixup and early stopping",
          "More data without new data, and when to stop."),
    Stage(7, "cnns", "CNNs, ResNet and transfer learning",
          "What a pixel can see, and what fine-tuning forgets."),
    Stage(8, "transformers", "Transformers, attention and GPU kernels",
          "Masks, memory traffic, and a Flash Attention kernel of your own."),
    Stage(9, "scaling", "Mixed precision, distributed training and profiling",
          "Fewer bits, more machines, and where the time goes."),
    Stage(10, "peft", "LoRA, QLoRA and parameter-efficient tuning",
          "Train one percent of a model, and know which percent."),
    Stage(11, "compression", "Quantization, pruning, distillation and export",
          "Smaller, and still right: measured, not hoped."),
    Stage(12, "mlops", "Training stability and MLOps",
          "The loss is NaN at step 500. Now what?"),
    Stage(13, "serving", "Serving a language model",
          "Many users, one cache: whose words are in the answer?"),
    Stage(14, "preferences", "Learning from preferences",
          "The loss looks right, and the model has gone elsewhere: what holds it?"),
    Stage(15, "parallelism", "Parallelism, and planning a run",
          "A layer, a batch, a sequence in pieces; then a run of your own on eight GPUs."),
)
NUMBERS = range(1, len(STAGES) + 1)
SPAN = f"1 to {len(STAGES)}"  # as commands and errors say it


def stage(number: int) -> Stage:
    """The stage with this number. Raises ValueError if there is none."""
    if number not in NUMBERS:
        raise ValueError(f"stage: got {number}, expected {SPAN}.")
    return STAGES[number - 1]
