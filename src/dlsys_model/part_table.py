"""Every part of the model, one row each: which exercise it is, what calls it, what stands in."""

from __future__ import annotations

from typing import NamedTuple

PLACES = ("data", "model", "training", "two processes", "adapters", "compression", "meters")


class Part(NamedTuple):
    """An exercise as a part.

    place: one of PLACES. used: what calls it, and for what. standin: what takes its place.
    like: number of the argument whose shape, dtype and device the result must have.
    """

    id: str
    function: str
    place: str
    used: str
    standin: str
    like: int | None = None


OURS = "no library has it: lines of ours, for this model only"

CATALOGUE = (
    Part("12.9", "class_numbers", "data", "Text: a number for each letter", OURS),
    Part("09.5", "epoch_indices", "data", "Training: the order of the rows, on one rank or two",
         "torch.utils.data.DistributedSampler"),
    Part("06.7", "split_groups", "data", "second text: pairs to train and pairs to test",
         "sklearn.model_selection.GroupShuffleSplit"),
    Part("10.3", "fit_text", "data", "second text: prompt and answer in one row", "torch.cat"),
    Part("10.6", "lm_labels", "data", "second text: only the answer is learned", "torch.where"),
    Part("08.10", "decode_step", "model", "Block.attend: attention in training, cache in writing",
         "F.scaled_dot_product_attention", 0),
    Part("08.2", "decoder_mask", "model", "Network.forward: rows of padded texts",
         "torch.ones(...).tril()"),
    Part("01.2", "to_probs", "model", "write: logits to probabilities of letters",
         "torch.softmax", 0),
    Part("04.1", "decay_groups", "training", "Training: which weights decay", OURS),
    Part("04.6", "warmup_cosine", "training", "Training: the rate of each step",
         "torch.optim.lr_scheduler: LinearLR, then CosineAnnealingLR"),
    Part("04.8", "adam_step", "training", "Training: the update", "torch.optim.AdamW"),
    Part("04.9", "lion_step", "training", 'Training with rule="lion": the update', OURS),
    Part("03.2", "class_loss", "training", "Training: the loss", "F.cross_entropy"),
    Part("03.1", "ce_from_logits", "training",
         "Training with by_hand=True: loss and its gradient, without autograd",
         "F.cross_entropy and autograd"),
    Part("03.3", "clipped_step", "training", "Training: backward, clipping, step",
         "torch.nn.utils.clip_grad_norm_"),
    Part("09.1", "amp_step", "training", "Training with dtype=torch.bfloat16: the step",
         "torch.autocast"),
    Part("02.4", "accum_step", "training", "Training with parts_of=2: the step in two halves",
         OURS),
    Part("05.5", "ema_update", "training", "Training: the averaged weights",
         "torch.optim.swa_utils.get_ema_multi_avg_fn"),
    Part("02.5", "evaluate", "training", "Training: loss and share of right letters",
         "F.cross_entropy in torch.inference_mode"),
    Part("12.6", "make_meter", "training", "Training: mean loss between two entries of the log",
         OURS),
    Part("12.10", "rows_to_log", "training", "Training: the log, across a resumed run", OURS),
    Part("06.3", "stop_and_best", "training", "Training: when to stop, which weights to take",
         OURS),
    Part("12.8", "save_checkpoint", "training", "Training: what a kill leaves whole",
         "torch.save, then os.replace"),
    Part("09.11", "average_grads", "two processes", "two ranks: gradients of all rows",
         "torch.Tensor.backward and all_reduce"),
    Part("09.6", "ddp_accum", "two processes", "two ranks, two batches an update",
         "DistributedDataParallel.no_sync"),
    Part("09.7", "reshard", "two processes", "a state of two ranks, read by one", "torch.chunk"),
    Part("10.1", "hits", "adapters", "LoRA: the layers that a name hits", OURS),
    Part("07.7", "freeze", "adapters", "LoRA and distillation: what does not learn",
         "Module.requires_grad_ and Module.eval"),
    Part("10.4", "passport", "adapters", "LoRA: what is trained", OURS),
    Part("04.3", "train_cosine", "adapters", "LoRA: the training",
         "torch.optim.lr_scheduler.CosineAnnealingLR"),
    Part("10.5", "load_adapter", "adapters", "LoRA: from its file into the model",
         "Module.load_state_dict"),
    Part("10.2", "merge", "adapters", "LoRA: one weight for weight and adapter", "torch.addmm",
         0),
    Part("11.5", "stored_bytes", "compression", "the table: bytes of each model",
         "torch.save, counted"),
    Part("11.1", "quantise", "compression", "the table: 8 and 4 bits", OURS),
    Part("01.5", "soft_threshold", "compression", "the table: pruned by shrinking",
         "F.softshrink", 0),
    Part("11.2", "masked_step", "compression", "the table: pruned and trained on", OURS),
    Part("11.4", "drop_inputs", "compression", "the table: a narrower MLP",
         "torch.linalg.lstsq", 0),
    Part("11.3", "kd_loss", "compression", "the student's loss",
         "F.kl_div and F.cross_entropy"),
    Part("02.3", "stop_grad", "compression", "the student: the teacher's logits",
         "Tensor.detach and clone", 0),
    Part("06.4", "keep_best", "compression", "the student: its best epoch",
         "torch.Tensor.clone of a state_dict"),
    Part("11.7", "free_dims", "compression", "ONNX: the sizes that stay open", OURS),
    Part("11.6", "disagreements", "compression", "ONNX: the program against the model",
         "torch.allclose"),
    Part("01.1", "predict", "meters", "logits without a graph", "torch.inference_mode"),
    Part("09.9", "state_bytes", "meters", "costs: weights, gradients and moments", OURS),
    Part("04.2", "step_size", "meters", "costs: how far a step moves a weight", OURS),
    Part("12.2", "layer_report", "meters", "costs: how far a step moves each layer", OURS),
    Part("09.10", "find_waits", "meters", "costs: where a step waits", OURS),
    Part("05.2", "told_apart", "meters", "audit: how much of the stream tells rows apart", OURS),
    Part("05.3", "noisy_modules", "meters", "audit: modules that differ from call to call", OURS),
    Part("05.4", "gain_for", "meters", "audit: the gain of GELU",
         'nn.init.calculate_gain, for ReLU'),
    Part("01.4", "dead_units", "meters", "audit: units that are always 0",
         "torch.count_nonzero"),
    Part("07.8", "hidden_values", "meters", "audit: weights that no optimizer sees", OURS),
    Part("07.10", "audit", "meters", "audit: model against optimizer", OURS),
    Part("08.11", "batch_dependence", "meters", "audit: rows that see each other", OURS),
    Part("09.3", "unused_names", "meters", "audit: weights without a gradient",
         "torch.autograd.grad with allow_unused"),
    Part("12.1", "first_nan_module", "meters", "audit: where a NaN arises",
         "torch.nn.modules.module.register_module_forward_hook"),
    Part("08.4", "tiled_attention", "meters", "audit: attention in tiles against attention whole",
         "F.scaled_dot_product_attention"),
)
BY_ID = {part.id: part for part in CATALOGUE}
