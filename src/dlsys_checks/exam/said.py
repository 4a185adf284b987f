"""How people name each fault, a phrase a line. `dlsys.exam_names` finds a learner's words in it.

tests/exam_said.yml has other phrases, by which the matching is measured.
"""

SAID = {
    "03.1": """softmax before the loss
        softmax applied before cross entropy
        cross_entropy gets probabilities instead of logits
        softmax twice
        double softmax""",
    "12.7": """labels that belong to other images
        labels are shifted against the images
        images and labels are misaligned
        labels rolled by one
        wrong labels, each image has the label of another
        images and labels are in a different order
        images and labels were shuffled separately
        labels are not in the same row as their images""",
    "02.4": """losses of half batches are added up, not averaged
        gradient accumulation does not divide by the number of micro batches
        accumulated loss is not scaled
        the loss of each half is a mean, and the sum of both is twice too large""",
    "09.1": """the loss scale is never removed from the gradients
        gradients are not unscaled before clipping
        loss multiplied by 1024 without unscale
        scaled loss stays in the gradients""",
    "02.1": """gradients are never cleared
        zero_grad is missing
        gradients of the last step are still there and accumulate
        old gradients pile up over steps""",
    "03.3": """gradients are clipped at the wrong time
        clipping happens before backward
        clip_grad_norm_ after the step has no effect
        the clip comes too early, when there is no gradient yet""",
    "07.8": """layers in a plain list are not registered
        ModuleList is missing
        the model does not know its hidden layers, so their parameters are not trained
        python list or tuple of layers instead of nn.ModuleList""",
    "02.3": """the graph is cut by detach or .data
        detach in the forward pass stops gradients
        backward does not reach the first layers
        part of the model gets no gradient because of .data""",
    "07.10": """the optimizer was made before the head was replaced
        optimizer holds old parameters, new head is not trained
        head is created after the optimizer
        optimizer has tensors that are no longer in the model""",
    "10.1": """a list of names leaves out some layers, so they are frozen
        some parameters are not passed to the optimizer because their names do not match
        wrong module names, the attention is not trained
        names in the optimizer fit another model""",
    "04.2": """learning rate is too high
        learning rate 0.4 is far too large for Adam
        step size too big
        rate of SGD used with AdamW
        the learning rate is far too high
        the peak rate is too high, so training diverges""",
    "04.5": """learning rate is too low
        learning rate far too small to learn
        step size too tiny
        rate 1e-5, the weights hardly move
        the learning rate is far too low""",
    "04.3": """the schedule steps once per epoch instead of once per batch
        scheduler.step is called too rarely
        the learning rate schedule never finishes its warmup
        one cycle schedule in the wrong unit""",
    "04.1": """weight decay on the gain of the norm
        the norm weight is decayed
        batch norm scale gets weight decay
        decay is applied to one dimensional parameters""",
    "01.4": """dead ReLU units
        all hidden units are dead, bias is too negative
        units are zero for every input
        negative bias at initialization kills the relus""",
    "03.4": """weights are initialized too small
        initialization std is too small
        init of one hundredth instead of kaiming
        activations shrink because initial weights are tiny""",
    "01.1": """the test runs in train mode
        model.eval() is missing in evaluate
        dropout and batch norm are in training mode during evaluation
        evaluation does not call eval""",
    "05.3": """dropout is active in eval because F.dropout ignores the mode
        functional dropout always on
        F.dropout without training=self.training
        dropout as a function does not know about eval mode""",
    "08.11": """attention goes across the batch
        batch_first is missing
        attention mixes the images of a batch
        batch and sequence axes are swapped in MultiheadAttention""",
    "06.1": """the test images are augmented
        augmentation is applied at test time
        brighten is called in evaluate
        random brightness in the evaluation""",
    "07.4": """the test is normalized differently from training
        the test uses another scale for its inputs
        preprocessing of the evaluation differs, divided by 255
        inputs of the test are not standardized as in training""",
    "06.6": """uint8 overflow in the augmentation
        bytes wrap around when images are brightened
        brighten overflows above 255
        pixel values overflow instead of being clamped""",
    "09.5": """every epoch has the same order
        the shuffle uses the same seed each epoch
        batches are the same in every epoch
        data are not reshuffled between epochs""",
    "12.3": """the augmentation draws the same noise each time
        the random generator of brighten is seeded anew at each call
        augmentation is not random, same brightness in every call
        fixed seed in the augmentation""",
    "06.4": """the best state is not copied, it is the live model
        state_dict without clone goes on changing
        the checkpoint is a reference to the current weights
        kept state shares memory with the model""",
    "10.4": """the head is not saved in the checkpoint
        the kept state lacks the head, strict=False hides it
        checkpoint without the classifier
        the last layer is missing from the saved state
        the checkpoint of the best epoch leaves out the weights of the head
        the kept state is incomplete, the weights of the head are missing from it""",
    "09.8": """weights in bfloat16
        the model is trained in pure bfloat16 without float32 master weights
        updates are rounded away in bf16
        low precision weights, small updates are lost""",
    "11.1": """quantized with too few bits
        the small copy has only 2 bits
        rounding grid is too coarse
        number of bits for the weights is too low""",
    "09.11": """gradients are not averaged across ranks
        all-reduce is missing
        ranks do not synchronize their gradients
        each rank trains alone, no all reduce of gradients""",
    "09.12": """each rank clips its own gradient before the all-reduce
        clipping happens before averaging over ranks
        local clip instead of clip of the mean gradient
        gradients are clipped per rank""",
    "13.1": """a shared block is freed while another request still reads it
        reference count of cache blocks is wrong
        blocks of the cache are given back too early
        counter of readers is not increased for a shared block""",
    "13.2": """the cache key is only the block's own tokens, not the whole prefix
        prefix cache key ignores what comes before
        blocks with equal tokens but different prefix are shared
        hash of the block lacks its beginning""",
    "13.5": """after a rejected draft the next token is drawn from the full target
        speculative decoding samples from p instead of the residual p - q
        rejected token is replaced by a draw from the whole distribution
        residual distribution is missing in speculation""",
    "13.6": """rejected draft tokens stay in the key value cache
        the cache is not cut after rejected drafts
        cache is too long after speculation
        kv cache keeps entries of rejected tokens""",
    "14.1": """the reference is the policy itself
        reference policy is not a copy, it moves with the policy
        DPO reference is not frozen, clone is missing
        begun shares memory with the policy""",
    "14.2": """rewards are grouped across prompts
        advantages are normalized over different prompts
        view groups the wrong axis, rewards of other prompts
        group mean mixes prompts""",
    "14.3": """the KL penalty has no gradient on average
        wrong KL estimator, k1 in the loss has zero expected gradient
        the price is the log ratio, whose mean gradient is zero
        KL term does not hold the policy""",
    "14.4": """old log probabilities are recomputed at each step
        PPO ratio is always one
        old policy is the current policy, so the clip does nothing
        log probs of the draw are taken from now""",
    "15.1": """gradients of a split layer's input are not summed over ranks
        missing all-reduce in the backward pass of tensor parallelism
        input gradient is not all reduced in tensor parallel
        backward of the cut layer averages or drops parts of the other rank""",
    "15.3": """positions start at zero on every rank
        position offset of the rank is missing in sequence parallelism
        each rank uses wrong positions
        position embeddings of the parts do not continue""",
    "15.4": """the top-1 expert's weight is always one, so the router gets no gradient
        router weight is normalized by itself
        router is not trained because the gate is divided by itself
        softmax after topk of one expert makes weight constant""",
    "15.8": """activations are divided by the number of copies
        the memory plan divides activations by data parallel ranks
        data parallelism does not shrink activations
        plan underestimates activation memory""",
    "12.1": """division by zero standard deviation of a blank image
        a constant image has std zero, which gives nan
        normalizing a blank page divides by zero
        standard deviation of zero in scaled""",
    "06.7": """test images are also in the training set
        the test set overlaps with training data
        data leakage between train and test
        split ranges overlap""",
}


def rows() -> list[dict]:
    """Each fault as a row that the finder's index can read; its cause is the trap."""
    found = []
    for id, text in SAID.items():
        see, *also = (line.strip() for line in text.splitlines())
        found.append({"see": see, "also": also, "causes": [{"trap": id}], "page": ""})
    return found
